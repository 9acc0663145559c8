// cuda/sim/process.h: the state of the simulated driver in one process: initialised or not, its devices, and the error
// that ended it.
#ifndef GPUMEM_CUDA_SIM_PROCESS_H_
#define GPUMEM_CUDA_SIM_PROCESS_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cuda/cuda_api.h"
#include "cuda/sim/store.h"
#include "cuda/sim/vmm.h"

namespace simcuda {

inline constexpr int kDriverVersion = 13000;  // what cuDriverGetVersion answers

// One device as this process sees it.
struct VisibleDevice {
  DeviceStore* store = nullptr;
  int machine_index = 0;   // its line in the config; the PCI address follows from it
  std::uint64_t life = 1;  // the device's, when this process began
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
  // As Enter, for the virtual memory calls: what they do in a poisoned process is not known.
  static Process* EnterForVmm(CUresult* result);
  static Process* IfInitialised();
  // A child of a process that had called cuInit: nothing works in it.
  static bool IsForkedChild();

  const std::vector<VisibleDevice>& devices() const { return devices_; }
  bool IsDevice(int ordinal) const { return ordinal >= 0 && static_cast<std::size_t>(ordinal) < devices_.size(); }
  Vmm& vmm() { return *vmm_; }
  // The device was lost and recovered since; its memory is empty, and this process has nothing to do with it any more.
  bool IsOfEarlierLife(const VisibleDevice& device) const;

  // CUDA_SUCCESS, or the error that every call of this process returns from now on. The first one stays.
  CUresult sticky() const { return sticky_.load(std::memory_order_acquire); }
  void Poison(CUresult error);
  // Tells NVML's listeners.
  void ReportXid(int ordinal, std::uint32_t code);

 private:
  Process() = default;
  static CUresult Make(Process** out);

  std::vector<VisibleDevice> devices_;
  std::vector<std::unique_ptr<DeviceStore>> stores_;  // all devices of the machine
  std::vector<gpumem::UniqueFd> nodes_;               // the visible devices' nodes, open until the process ends
  std::unique_ptr<Vmm> vmm_;
  std::atomic<CUresult> sticky_{CUDA_SUCCESS};
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_PROCESS_H_
