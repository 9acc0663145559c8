// cuda/sim/process.h: the state of the simulated driver in one process: initialised or not, its devices, and the error
// that ended it.
#ifndef GPUMEM_CUDA_SIM_PROCESS_H_
#define GPUMEM_CUDA_SIM_PROCESS_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_api.h"
#include "cuda/sim/store.h"
#include "cuda/sim/vmm.h"

namespace simcuda {

inline constexpr int kDriverVersion = 13000;  // what cuDriverGetVersion answers

// One device as this process sees it.
struct VisibleDevice {
  DeviceStore* store = nullptr;
  int machine_index = 0;  // its line in the config; the PCI address follows from it
};

// Made once by cuInit, never destroyed. Thread-safe.
class Process {
 public:
  // cuInit. Reads SIMCUDA_DIR and CUDA_VISIBLE_DEVICES the first time; says on stderr why there is no device.
  static CUresult Init();

  // The process for a call that needs a working driver. Null, with the call's result in `*result`, before cuInit, in a
  // forked child of an initialised process, and after a sticky error.
  static Process* Enter(CUresult* result);
  // As Enter, for calls that a sticky error does not concern (properties of devices).
  static Process* EnterForQuery(CUresult* result);

  const std::vector<VisibleDevice>& devices() const { return devices_; }
  bool IsDevice(int ordinal) const { return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices_.size(); }
  Vmm& vmm() { return *vmm_; }

  // CUDA_SUCCESS, or the error that every call of this process returns from now on. The first one stays.
  CUresult sticky() const { return sticky_.load(std::memory_order_acquire); }
  void Poison(CUresult error);

 private:
  Process() = default;
  static CUresult Make(Process** out);

  std::vector<VisibleDevice> devices_;
  std::vector<std::unique_ptr<DeviceStore>> stores_;  // all devices of the machine
  std::unique_ptr<Vmm> vmm_;
  std::atomic<CUresult> sticky_{CUDA_SUCCESS};
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_PROCESS_H_
