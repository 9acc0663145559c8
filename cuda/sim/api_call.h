// cuda/sim/api_call.h: what every exported function of the simulated libcuda begins with.
#ifndef GPUMEM_CUDA_SIM_API_CALL_H_
#define GPUMEM_CUDA_SIM_API_CALL_H_

#include "cuda/cuda_api.h"

namespace simcuda {

inline constexpr int kAnyDevice = -1;  // the thread's context's, or the process's only one, or none

// One call of one entry point on one device: `ordinal()`, which is asked only where the machine's settings say
// anything. Passes the fault point; `result` is then what the call must return at once when it is not CUDA_SUCCESS. At
// its end, when the call took effect, a kill-after rule acts.
class ApiCall {
 public:
  template <typename Ordinal>
  ApiCall(const char* entry, const Ordinal& ordinal) {
    if (MayFault()) Pass(entry, ordinal());
  }
  ~ApiCall();
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;

  CUresult result() const { return result_; }

 private:
  static bool MayFault();
  void Pass(const char* entry, int ordinal);

  CUresult result_ = CUDA_SUCCESS;
  bool kill_after_ = false;
};

// A piece of stream work is about to run on the device: `what` is "work", or "kernel" for a launch. Not CUDA_SUCCESS:
// it must not run, and the result poisons the process.
CUresult PassWorkPoint(const char* what, int ordinal);

// The ordinal of this thread's current context, or kAnyDevice.
int CurrentOrdinal();

}  // namespace simcuda

#define SIMCUDA_CALL_ON(entry, ordinal)                                 \
  const simcuda::ApiCall simcuda_call(#entry, [&] { return ordinal; }); \
  if (simcuda_call.result() != CUDA_SUCCESS) return simcuda_call.result()
#define SIMCUDA_CALL(entry) SIMCUDA_CALL_ON(entry, simcuda::kAnyDevice)

#endif  // GPUMEM_CUDA_SIM_API_CALL_H_
