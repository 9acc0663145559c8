// cuda/sim/api_event.cc: events, as exported.
#include <utility>

#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

using simcuda::Call;
using simcuda::Captures;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::Event;
using simcuda::Events;
using simcuda::EventTime;
using simcuda::kEventExternal;
using simcuda::Mark;
using simcuda::PerThread;
using simcuda::Process;

// The number that the toolkit's header gives the newest ABI; the older one has a function of its own here.
#undef cuEventElapsedTime

namespace {

Mark RecordedMark(Event* event) {
  const gpumem::MutexLock lock(&event->mu);
  return event->recorded;
}

CUresult Record(CUevent event, CUstream stream, unsigned int flags) {
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if ((flags & ~kEventExternal) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Events().Find(event);
  if (found == nullptr || found->context != call.context) return CUDA_ERROR_INVALID_HANDLE;
  return Captures::All().RecordEvent(call, found, flags == kEventExternal);
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  SIMCUDA_CALL(cuEventCreate);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (event == nullptr || (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool timed = (flags & CU_EVENT_DISABLE_TIMING) == 0;
  *event = Events().Add(std::make_shared<Event>(call.context, timed));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  SIMCUDA_CALL(cuEventDestroy);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  return Events().Remove(event) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  SIMCUDA_CALL(cuEventRecordWithFlags);
  return Record(event, stream, flags);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  SIMCUDA_CALL(cuEventRecord);
  return Record(event, stream, 0);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  SIMCUDA_CALL(cuStreamWaitEvent);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if ((flags & ~kEventExternal) != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Captures::All().WaitEvent(call, found, flags == kEventExternal);
}

CUresult cuEventQuery(CUevent event) {
  SIMCUDA_CALL(cuEventQuery);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  result = Captures::All().CheckEvent(*found);
  if (result != CUDA_SUCCESS) return result;
  if (!RecordedMark(found.get()).Done()) return CUDA_ERROR_NOT_READY;
  return process->sticky();
}

CUresult cuEventSynchronize(CUevent event) {
  SIMCUDA_CALL(cuEventSynchronize);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  result = Captures::All().CheckEvent(*found);
  if (result != CUDA_SUCCESS) return result;
  RecordedMark(found.get()).Wait();
  return process->sticky();
}

// It asks how far two events are: not in a capture that forbids that.
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  SIMCUDA_CALL(cuEventElapsedTime);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<EventTime> times[2];
  bool done = true;
  int i = 0;
  for (const CUevent event : {start, end}) {
    const auto found = Events().Find(event);
    if (found == nullptr || !found->timed) return CUDA_ERROR_INVALID_HANDLE;
    result = Captures::All().CheckEvent(*found);
    if (result != CUDA_SUCCESS) return result;
    const gpumem::MutexLock lock(&found->mu);
    if (found->time == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    done = done && found->recorded.Done();
    times[i++] = found->time;
  }
  if (!done) return CUDA_ERROR_NOT_READY;
  constexpr float kNsPerMs = 1e6F;
  *milliseconds = static_cast<float>(times[1]->ns() - times[0]->ns()) / kNsPerMs;
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) { return cuEventRecord(event, PerThread(stream)); }
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
  return cuEventRecordWithFlags(event, PerThread(stream), flags);
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
  return cuStreamWaitEvent(PerThread(stream), event, flags);
}

}  // extern "C"
