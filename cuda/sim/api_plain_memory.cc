// cuda/sim/api_plain_memory.cc: plain allocations on the device and on the host, legacy IPC, and what an address is, as
// exported.
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/plain_memory.h"
#include "cuda/sim/process.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::Captures;
using simcuda::EnterContext;
using simcuda::PlainMemory;
using simcuda::PlainRange;
using simcuda::Process;

using Kind = PlainRange::Kind;

uint64_t AddressOf(const void* memory) { return reinterpret_cast<uintptr_t>(memory); }

// What every call here begins with: it allocates or frees, which a capture may forbid.
CUresult Enter(Call* call) {
  const CUresult result = EnterContext(call);
  return result == CUDA_SUCCESS ? Captures::All().CheckUnsafe() : result;
}

PlainRange RangeIn(const Call& call, Kind kind, uint64_t begin, uint64_t bytes, unsigned flags) {
  PlainRange range;
  range.kind = kind;
  range.begin = begin;
  range.bytes = bytes;
  range.context = call.context->handle();
  range.device = call.context->device();
  range.flags = flags;
  return range;
}

CUresult AllocateHost(void** memory, size_t bytes, unsigned int flags) {
  Call call;
  const CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned int kAllFlags = 7;  // portable, device-mapped, write-combined: no difference here
  if (memory == nullptr || bytes == 0 || (flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto rounded = gpumem::CheckedRoundUp(bytes, 4096);
  void* const got = rounded ? std::aligned_alloc(4096, *rounded) : nullptr;
  if (got == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!PlainMemory::All().Add(RangeIn(call, Kind::kPinnedHost, AddressOf(got), bytes, flags))) {
    // The program registered memory that it then freed: its mistake, and ours to refuse.
    std::free(got);
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  *memory = got;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  SIMCUDA_CALL(cuMemAlloc);
  Call call;
  CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = call.process->vmm().AllocateLinear(call.context->device(), bytes, address);
  if (result == CUDA_SUCCESS) PlainMemory::All().Add(RangeIn(call, Kind::kDevice, *address, bytes, 0));
  return result;
}

// Waits for all work first, as the driver does.
CUresult cuMemFree_v2(CUdeviceptr address) {
  SIMCUDA_CALL(cuMemFree);
  Call call;
  const CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  call.context->Synchronize();
  if (call.process->sticky() != CUDA_SUCCESS) return call.process->sticky();
  if (address == 0) return CUDA_SUCCESS;
  if (!PlainMemory::All().Remove(address, Kind::kDevice)) return CUDA_ERROR_INVALID_VALUE;
  return call.process->vmm().FreeLinear(address);
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
  SIMCUDA_CALL(cuMemHostAlloc);
  return AllocateHost(memory, bytes, flags);
}
CUresult cuMemAllocHost_v2(void** memory, size_t bytes) {
  SIMCUDA_CALL(cuMemAllocHost);
  return AllocateHost(memory, bytes, 0);
}

CUresult cuMemFreeHost(void* memory) {
  SIMCUDA_CALL(cuMemFreeHost);
  Call call;
  const CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  call.context->Synchronize();
  if (!PlainMemory::All().Remove(AddressOf(memory), Kind::kPinnedHost)) return CUDA_ERROR_INVALID_VALUE;
  std::free(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* memory, size_t bytes, unsigned int flags) {
  SIMCUDA_CALL(cuMemHostRegister);
  Call call;
  const CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned int kPortable = 1;
  constexpr unsigned int kDeviceMap = 2;
  constexpr unsigned int kAllFlags = 15;
  if (memory == nullptr || bytes == 0 || (flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!gpumem::CheckedAdd(AddressOf(memory), bytes)) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & ~(kPortable | kDeviceMap)) != 0) return CUDA_ERROR_NOT_SUPPORTED;  // input-output memory, read-only
  if (call.process->vmm().IsReserved(AddressOf(memory))) return CUDA_ERROR_INVALID_VALUE;
  return PlainMemory::All().Add(RangeIn(call, Kind::kRegisteredHost, AddressOf(memory), bytes, flags))
             ? CUDA_SUCCESS
             : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* memory) {
  SIMCUDA_CALL(cuMemHostUnregister);
  Call call;
  const CUresult result = Enter(&call);
  if (result != CUDA_SUCCESS) return result;
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.context->Synchronize();
  return PlainMemory::All().Remove(AddressOf(memory), Kind::kRegisteredHost) ? CUDA_SUCCESS
                                                                             : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

// Host and device address are the same number. Copies know both kinds; a kernel cannot reach host memory here.
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned int flags) {
  SIMCUDA_CALL(cuMemHostGetDevicePointer);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto range = PlainMemory::All().Find(AddressOf(memory));
  if (!range || !range->is_host()) return CUDA_ERROR_INVALID_VALUE;
  *address = AddressOf(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* memory) {
  SIMCUDA_CALL(cuMemHostGetFlags);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  const auto range = PlainMemory::All().Find(AddressOf(memory));
  if (flags == nullptr || !range || range->kind != Kind::kPinnedHost) return CUDA_ERROR_INVALID_VALUE;
  *flags = range->flags;
  return CUDA_SUCCESS;
}

// The whole plain allocation, or the one mapping, that contains the address.
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  SIMCUDA_CALL(cuMemGetAddressRange);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  CUdeviceptr found = 0;
  uint64_t size = 0;
  if (const auto range = PlainMemory::All().Find(address); range) {
    found = range->begin;
    size = range->bytes;
  } else {
    result = process->vmm().FindMapping(address, &found, &size);
    if (result != CUDA_SUCCESS) return result;
  }
  if (base != nullptr) *base = found;
  if (bytes != nullptr) *bytes = size;
  return CUDA_SUCCESS;
}

// Legacy IPC: only for memory of cuMemAlloc; the simulation has none of it, as a platform may.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  SIMCUDA_CALL(cuIpcGetMemHandle);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  const auto range = PlainMemory::All().Find(address);
  if (handle == nullptr || !range || range->is_host()) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle, unsigned int flags) {
  SIMCUDA_CALL(cuIpcOpenMemHandle);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned int kLazyEnablePeerAccess = 1;  // required
  if (address == nullptr || flags != kLazyEnablePeerAccess) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr) {
  SIMCUDA_CALL(cuIpcCloseMemHandle);
  Call call;
  const CUresult result = EnterContext(&call);
  return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : result;  // none was ever opened
}

// A dma-buf of a range: the attribute says that there is none.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long) {
  SIMCUDA_CALL(cuMemGetHandleForAddressRange);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (handle == nullptr || address == 0 || bytes == 0 || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // extern "C"
