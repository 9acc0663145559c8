// cuda/sim/api_memory.cc: copies and fills, as exported.
//
// A synchronous call and its twin with a stream are one implementation: work in a stream, and a wait. Access is checked
// twice: at the call, where a fault is an ordinary refusal, and as the work runs, where it is the process's end.
#include <cstring>
#include <functional>

#include "base/checked.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/device_memory.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::Captures;
using simcuda::DeviceMemory;
using simcuda::EnterStream;
using simcuda::PerThread;
using simcuda::Vmm;

using Need = Vmm::Need;

enum class When { kNow, kInStream };

CUresult Run(const Call& call, When when, const std::function<bool(const DeviceMemory&)>& work) {
  const DeviceMemory memory(call.process->vmm(), call.context->device());
  const auto checked = [memory, work] { return work(memory) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS; };
  if (when == When::kInStream) return simcuda::Submit(call, checked);
  const CUresult result = Captures::All().CheckWait(call);
  if (result != CUDA_SUCCESS) return result;
  call.context->Enqueue(call.stream, checked).Wait();
  return call.process->sticky();
}

bool Allows(const Call& call, CUdeviceptr address, uint64_t bytes, Need need) {
  const bool allowed = call.process->vmm().Allows(address, bytes, call.context->device(), need);
  if (!allowed && SIMCUDA_BREAK("refused-copy-sticks")) call.process->Poison(CUDA_ERROR_ILLEGAL_ADDRESS);
  return allowed;
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

template <typename Value>
CUresult SetValues(CUdeviceptr to, Value value, size_t count, CUstream stream, When when,
                   bool (DeviceMemory::*fill)(CUdeviceptr, Value, uint64_t) const) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || count == 0) return result;
  const auto bytes = gpumem::CheckedMul(count, sizeof value);
  if (!bytes || to % sizeof value != 0 || !Allows(call, to, *bytes, Need::kWrite)) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory& memory) { return (memory.*fill)(to, value, count); });
}
CUresult Set8(CUdeviceptr to, uint8_t value, size_t count, CUstream stream, When when) {
  return SetValues(to, value, count, stream, when, &DeviceMemory::Fill8);
}
CUresult Set16(CUdeviceptr to, uint16_t value, size_t count, CUstream stream, When when) {
  return SetValues(to, value, count, stream, when, &DeviceMemory::Fill16);
}
CUresult Set32(CUdeviceptr to, uint32_t value, size_t count, CUstream stream, When when) {
  return SetValues(to, value, count, stream, when, &DeviceMemory::Fill32);
}

// cuMemcpy: what an address is, its value tells. One that the driver has not given out is the host's.
CUresult Any(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, When when) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS || bytes == 0) return result;
  void* const host_to = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  const void* const host_from = reinterpret_cast<const void*>(static_cast<uintptr_t>(from));
  const bool to_device = call.process->vmm().IsReserved(to);
  const bool from_device = call.process->vmm().IsReserved(from);
  if (to_device && from_device) return DtoD(to, from, bytes, stream, when);
  if (to_device) return HtoD(to, host_from, bytes, stream, when);
  if (from_device) return DtoH(host_to, from, bytes, stream, when);
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
  return Run(call, when, [=](const DeviceMemory&) {
    std::memmove(host_to, host_from, bytes);
    return true;
  });
}

}  // namespace

extern "C" {

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyHtoD);
  return HtoD(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void* from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyHtoD);
  return HtoD(to, from, bytes, PerThread(nullptr), When::kNow);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyHtoDAsync);
  return HtoD(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyHtoDAsync);
  return HtoD(to, from, bytes, PerThread(stream), When::kInStream);
}

CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoH);
  return DtoH(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyDtoH_v2_ptds(void* to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoH);
  return DtoH(to, from, bytes, PerThread(nullptr), When::kNow);
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoHAsync);
  return DtoH(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemcpyDtoHAsync_v2_ptsz(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoHAsync);
  return DtoH(to, from, bytes, PerThread(stream), When::kInStream);
}

// On hardware a copy on the device does not block the host; the simulation's does, which hides no mistake: it is
// ordered in the default stream either way.
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoD);
  return DtoD(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpyDtoD);
  return DtoD(to, from, bytes, PerThread(nullptr), When::kNow);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoDAsync);
  return DtoD(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoDAsync);
  return DtoD(to, from, bytes, PerThread(stream), When::kInStream);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpy);
  return Any(to, from, bytes, nullptr, When::kNow);
}
CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  SIMCUDA_CALL(cuMemcpy);
  return Any(to, from, bytes, PerThread(nullptr), When::kNow);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyAsync);
  return Any(to, from, bytes, stream, When::kInStream);
}
CUresult cuMemcpyAsync_ptsz(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyAsync);
  return Any(to, from, bytes, PerThread(stream), When::kInStream);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  SIMCUDA_CALL(cuMemsetD8);
  return Set8(to, value, count, nullptr, When::kNow);
}
CUresult cuMemsetD8_v2_ptds(CUdeviceptr to, unsigned char value, size_t count) {
  SIMCUDA_CALL(cuMemsetD8);
  return Set8(to, value, count, PerThread(nullptr), When::kNow);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD8Async);
  return Set8(to, value, count, stream, When::kInStream);
}
CUresult cuMemsetD8Async_ptsz(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD8Async);
  return Set8(to, value, count, PerThread(stream), When::kInStream);
}

CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  SIMCUDA_CALL(cuMemsetD16);
  return Set16(to, value, count, nullptr, When::kNow);
}
CUresult cuMemsetD16_v2_ptds(CUdeviceptr to, unsigned short value, size_t count) {
  SIMCUDA_CALL(cuMemsetD16);
  return Set16(to, value, count, PerThread(nullptr), When::kNow);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD16Async);
  return Set16(to, value, count, stream, When::kInStream);
}
CUresult cuMemsetD16Async_ptsz(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD16Async);
  return Set16(to, value, count, PerThread(stream), When::kInStream);
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) {
  SIMCUDA_CALL(cuMemsetD32);
  return Set32(to, value, count, nullptr, When::kNow);
}
CUresult cuMemsetD32_v2_ptds(CUdeviceptr to, unsigned int value, size_t count) {
  SIMCUDA_CALL(cuMemsetD32);
  return Set32(to, value, count, PerThread(nullptr), When::kNow);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD32Async);
  return Set32(to, value, count, stream, When::kInStream);
}
CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
  SIMCUDA_CALL(cuMemsetD32Async);
  return Set32(to, value, count, PerThread(stream), When::kInStream);
}

}  // extern "C"
