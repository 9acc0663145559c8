// cuda/sim/api_stream.cc: streams, as exported.
#include <algorithm>
#include <utility>

#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"
#include "cuda/sim/thread_state.h"

using simcuda::Call;
using simcuda::Captures;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::PerThread;
using simcuda::StreamEntry;
using simcuda::Streams;

namespace {

// As a recent device says; the simulation takes priorities and does nothing with them.
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

CUresult Create(CUstream* stream, unsigned int flags, int priority) {
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (stream == nullptr || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto entry = std::make_shared<StreamEntry>();
  entry->context = call.context;
  entry->stream =
      call.context->AddStream(flags == CU_STREAM_DEFAULT, std::clamp(priority, kGreatestPriority, kLeastPriority));
  if (entry->stream == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  *stream = Streams().Add(std::move(entry));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  SIMCUDA_CALL(cuStreamCreate);
  return Create(stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  SIMCUDA_CALL(cuStreamCreateWithPriority);
  return Create(stream, flags, priority);
}

// Work that is queued still runs. A capturing stream is refused, and stays.
CUresult cuStreamDestroy_v2(CUstream stream) {
  SIMCUDA_CALL(cuStreamDestroy);
  Call call;
  CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  const auto entry = Streams().Find(stream);
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  call.context = entry->context;
  call.stream = entry->stream;
  result = Captures::All().CheckNotCapturing(call);
  if (result != CUDA_SUCCESS) return result;
  if (Streams().Remove(stream) == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // another thread was faster
  entry->context->RemoveStream(entry->stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  SIMCUDA_CALL(cuStreamSynchronize);
  Call call;
  CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  result = Captures::All().CheckWait(call);
  if (result != CUDA_SUCCESS) return result;
  // The default stream is done when what it waits for is: an empty piece of work takes those marks.
  call.context->Enqueue(call.stream, [] { return CUDA_SUCCESS; }).Wait();
  return call.process->sticky();
}

CUresult cuStreamQuery(CUstream stream) {
  SIMCUDA_CALL(cuStreamQuery);
  Call call;
  CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  result = Captures::All().CheckWait(call);
  if (result != CUDA_SUCCESS) return result;
  const bool done = call.stream->Now().Done();
  if (call.process->sticky() != CUDA_SUCCESS) return call.process->sticky();
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  SIMCUDA_CALL(cuStreamGetFlags);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = call.stream->blocking() ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  SIMCUDA_CALL(cuStreamGetPriority);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *priority = call.stream->priority();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  SIMCUDA_CALL(cuStreamGetCtx);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = call.context->handle();
  return CUDA_SUCCESS;
}

// The ABI of CUDA 12.5 also asks for a part of the device ("green context"), of which there are none.
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  const CUresult result = cuStreamGetCtx(stream, context);
  if (result == CUDA_SUCCESS && green != nullptr) *green = nullptr;
  return result;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIMCUDA_CALL(cuCtxGetStreamPriorityRange);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  SIMCUDA_CALL(cuLaunchHostFunc);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return simcuda::Submit(call, [function, data] {
    function(data);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(PerThread(stream)); }
CUresult cuStreamQuery_ptsz(CUstream stream) { return cuStreamQuery(PerThread(stream)); }
CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int* flags) {
  return cuStreamGetFlags(PerThread(stream), flags);
}
CUresult cuStreamGetPriority_ptsz(CUstream stream, int* priority) {
  return cuStreamGetPriority(PerThread(stream), priority);
}
CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext* context) { return cuStreamGetCtx(PerThread(stream), context); }
CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  return cuStreamGetCtx_v2(PerThread(stream), context, green);
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return cuLaunchHostFunc(PerThread(stream), function, data);
}

}  // extern "C"
