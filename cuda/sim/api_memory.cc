// cuda/sim/api_memory.cc: copies, fills, and plain allocations, as exported.
//
// A synchronous call and its twin with a stream are one implementation: work in a stream, and a wait. Access is checked
// twice: at the call, where a fault is an ordinary refusal, and as the work runs, where it is the process's end.
#include <cstdlib>
#include <functional>
#include <memory>

#include "base/checked.h"
#include "cuda/cuda_api.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/device_memory.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::DeviceMemory;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::Vmm;

using Need = Vmm::Need;

enum class When { kNow, kInStream };

CUresult Run(const Call& call, When when, const std::function<bool(const DeviceMemory&)>& work) {
  const DeviceMemory memory(call.process->vmm(), call.context->device());
  const simcuda::Mark mark = call.context->Enqueue(
      call.stream, [memory, work] { return work(memory) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS; });
  if (when == When::kInStream) return CUDA_SUCCESS;
  mark.Wait();
  return call.process->sticky();
}

bool Allows(const Call& call, CUdeviceptr address, uint64_t bytes, Need need) {
  return call.process->vmm().Allows(address, bytes, call.context->device(), need);
}

CUresult HtoD(CUdeviceptr to, const void* from, size_t bytes, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  if (from == nullptr || !Allows(call, to, bytes, Need::kWrite)) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory& memory) { return memory.Write(to, from, bytes); });
}

CUresult DtoH(void* to, CUdeviceptr from, size_t bytes, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  if (to == nullptr || !Allows(call, from, bytes, Need::kRead)) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory& memory) { return memory.Read(from, to, bytes); });
}

CUresult DtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  if (!Allows(call, from, bytes, Need::kRead) || !Allows(call, to, bytes, Need::kWrite)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Run(call, when, [=](const DeviceMemory& memory) { return memory.Copy(to, from, bytes); });
}

CUresult Set8(CUdeviceptr to, unsigned char value, size_t count, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || count == 0) return result;
  if (!Allows(call, to, count, Need::kWrite)) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory& memory) { return memory.Fill8(to, value, count); });
}

CUresult Set32(CUdeviceptr to, unsigned int value, size_t count, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || count == 0) return result;
  const auto bytes = gpumem::CheckedMul(count, sizeof value);
  if (!bytes || to % sizeof value != 0 || !Allows(call, to, *bytes, Need::kWrite)) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory& memory) { return memory.Fill32(to, value, count); });
}

}  // namespace

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyHtoD);
  return HtoD(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyHtoDAsync);
  return HtoD(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoH);
  return DtoH(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoHAsync);
  return DtoH(to, from, bytes, stream, When::kInStream);
}
// On hardware a copy on the device does not block the host; the simulation's does, which hides no mistake: it is
// ordered in the default stream either way.
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoD);
  return DtoD(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoDAsync);
  return DtoD(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  SIMCUDA_CALL(cuMemsetD8);
  return Set8(to, value, count, nullptr, When::kNow);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD8Async);
  return Set8(to, value, count, stream, When::kInStream);
}
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  SIMCUDA_CALL(cuMemsetD32);
  return Set32(to, value, count, nullptr, When::kNow);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD32Async);
  return Set32(to, value, count, stream, When::kInStream);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  SIMCUDA_CALL(cuMemAlloc);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (address == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return call.process->vmm().AllocateLinear(call.context->device(), bytes, address);
}

// Waits for all work first, as the driver does.
CUresult cuMemFree_v2(CUdeviceptr address) {
  SIMCUDA_CALL(cuMemFree);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  call.context->Synchronize();
  if (call.process->sticky() != CUDA_SUCCESS) return call.process->sticky();
  return address != 0 ? call.process->vmm().FreeLinear(address) : CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** memory, size_t bytes, unsigned int flags) {
  SIMCUDA_CALL(cuMemHostAlloc);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned int kAllFlags = 7;  // portable, device-mapped, write-combined: no difference here
  if (memory == nullptr || bytes == 0 || (flags & ~kAllFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto rounded = gpumem::CheckedRoundUp(bytes, 4096);
  void* const got = rounded ? std::aligned_alloc(4096, *rounded) : nullptr;
  if (got == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *memory = got;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void* memory) {
  SIMCUDA_CALL(cuMemFreeHost);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  call.context->Synchronize();
  std::free(memory);
  return CUDA_SUCCESS;
}

}  // extern "C"
