// cuda/sim/api_vmm.cc: the virtual memory management entry points, as exported. None needs a context.
#include "cuda/cuda_api.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/process.h"
#include "cuda/sim/streams.h"

using simcuda::kAnyDevice;
using simcuda::Process;

namespace {

// The device that a call concerns.
int OfHandle(CUmemGenericAllocationHandle handle) {
  Process* const process = Process::IfInitialised();
  return process != nullptr ? process->vmm().OrdinalOfHandle(handle) : kAnyDevice;
}
int At(CUdeviceptr address) {
  Process* const process = Process::IfInitialised();
  return process != nullptr ? process->vmm().OrdinalAt(address) : kAnyDevice;
}
int OfFd(void* shareable) {
  Process* const process = Process::IfInitialised();
  const auto fd = reinterpret_cast<uintptr_t>(shareable);
  return process != nullptr && fd <= 0x7fffffff ? process->vmm().OrdinalOfFd(static_cast<int>(fd)) : kAnyDevice;
}

// The process, when neither its state nor a capture forbids the call.
Process* Enter(CUresult* result) {
  Process* const process = Process::EnterForVmm(result);
  if (process == nullptr) return nullptr;
  *result = simcuda::CheckVmmCall();
  return *result == CUDA_SUCCESS ? process : nullptr;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  SIMCUDA_CALL_ON(cuMemGetAllocationGranularity, prop != nullptr ? prop->location.id : kAnyDevice);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (granularity == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!process->IsDevice(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  *granularity = process->devices()[static_cast<size_t>(prop->location.id)].store->config().granularity_bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
  SIMCUDA_CALL_ON(cuMemCreate, prop != nullptr ? prop->location.id : kAnyDevice);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (handle == nullptr || prop == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  simcuda::Call call;
  if (SIMCUDA_BREAK("create-needs-context") && simcuda::EnterContext(&call) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  result = process->vmm().Create(handle, bytes, *prop);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && SIMCUDA_BREAK("out-of-memory-sticks")) process->Poison(result);
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  SIMCUDA_CALL_ON(cuMemRelease, OfHandle(handle));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  return process != nullptr ? process->vmm().Release(handle) : result;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  SIMCUDA_CALL_ON(cuMemExportToShareableHandle, OfHandle(handle));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return static_cast<CUresult>(simcuda::AnswerTo(simcuda::Question::kFabric));
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  return process->vmm().Export(handle, static_cast<int*>(shareable));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  SIMCUDA_CALL_ON(cuMemImportFromShareableHandle, OfFd(shareable));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) return static_cast<CUresult>(simcuda::AnswerTo(simcuda::Question::kFabric));
  if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  const auto fd = reinterpret_cast<uintptr_t>(shareable);  // the descriptor itself, not its address
  if (fd == 0 || fd > 0x7fffffff) return CUDA_ERROR_INVALID_VALUE;
  return process->vmm().Import(static_cast<int>(fd), handle);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle) {
  SIMCUDA_CALL_ON(cuMemGetAllocationPropertiesFromHandle, OfHandle(handle));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  return prop != nullptr ? process->vmm().GetProperties(handle, prop) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  SIMCUDA_CALL_ON(cuMemRetainAllocationHandle, At(reinterpret_cast<uintptr_t>(address)));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return process->vmm().Retain(reinterpret_cast<uintptr_t>(address), handle);
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  SIMCUDA_CALL(cuMemAddressReserve);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return process->vmm().Reserve(address, bytes, alignment, hint);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  SIMCUDA_CALL(cuMemAddressFree);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  return process != nullptr ? process->vmm().Free(address, bytes) : result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  SIMCUDA_CALL_ON(cuMemMap, OfHandle(handle));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return process->vmm().Map(address, bytes, handle);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  SIMCUDA_CALL_ON(cuMemUnmap, At(address));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  simcuda::Call call;
  if (SIMCUDA_BREAK("unmap-waits") && simcuda::EnterContext(&call) == CUDA_SUCCESS) call.context->Synchronize();
  return process != nullptr ? process->vmm().Unmap(address, bytes) : result;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* desc, size_t count) {
  SIMCUDA_CALL_ON(cuMemSetAccess, At(address));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  return process != nullptr ? process->vmm().SetAccess(address, bytes, desc, count) : result;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  SIMCUDA_CALL_ON(cuMemGetAccess, At(address));
  CUresult result = CUDA_SUCCESS;
  Process* const process = Enter(&result);
  if (process == nullptr) return result;
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return process->vmm().GetAccess(address, location->id, flags);
}

}  // extern "C"
