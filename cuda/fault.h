// cuda/fault.h: what a driver error means for the process that got it. Header-only; std only.
//
// Source: cuda.h says of each of the process-fatal codes that the process must be terminated and relaunched; the codes
// after them are treated alike because no later call in the process can be relied on.
#ifndef GPUMEM_CUDA_FAULT_H_
#define GPUMEM_CUDA_FAULT_H_

#include "cuda/cuda_api.h"

namespace gpumem::cuda {

// The numbers are those of GPUMEM_FAULT_* in gpumem.h.
enum class FaultClass : int {
  kNone = 0,     // success, or an error that says nothing about the process: out of memory, bad argument, not ready
  kProcess = 1,  // the process must be replaced
  kEcc = 2,      // as kProcess, and the memory itself is in doubt
  kDevice = 3,   // as kProcess, and the device may be gone
};

constexpr FaultClass Classify(CUresult error) {
  switch (static_cast<int>(error)) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:  // an uncorrectable error that the device kept to the processes that touched it
      return FaultClass::kEcc;
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return FaultClass::kDevice;
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:
    case CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return FaultClass::kProcess;
    default:
      return FaultClass::kNone;
  }
}

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_FAULT_H_
