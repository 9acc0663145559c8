// cuda/sim/api_context.cc: contexts, streams and events, as exported.
#include <pthread.h>

#include <map>
#include <utility>
#include <vector>

#include "cuda/cuda_api.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/process.h"
#include "cuda/sim/streams.h"

namespace simcuda {
namespace {

struct ThreadState {
  std::vector<CUcontext> contexts;  // that this thread pushed; the last one is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

// A key and not thread_local: the C library frees the thread-local storage of a library that was loaded at run time on
// whichever thread takes over the stack, which the thread sanitizer reports as a race.
ThreadState& ThisThread() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    pthread_key_create(&made, [](void* state) { delete static_cast<ThreadState*>(state); });
    return made;
  }();
  auto* state = static_cast<ThreadState*>(pthread_getspecific(key));
  if (state == nullptr) {
    state = new ThreadState;
    pthread_setspecific(key, state);
  }
  return *state;
}

CUresult MakeContext(Process* process, int device, CUcontext* out) {
  std::unique_ptr<Presence> presence;
  DeviceStore* const store = process->devices()[static_cast<std::size_t>(device)].store;
  if (store->Enter(&presence) != DeviceStore::Outcome::kOk) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<Stream> default_stream = Stream::Start(true);
  if (default_stream == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  *out = Contexts().Add(std::make_shared<Context>(*process, device, std::move(presence), std::move(default_stream)));
  return CUDA_SUCCESS;
}

// The process's primary contexts, by device. Thread-safe.
class PrimaryContexts {
 public:
  CUresult Retain(Process* process, CUdevice device, CUcontext* out) {
    const gpumem::MutexLock lock(&mu_);
    Primary& primary = by_device_[device];
    if (primary.references == 0) {
      const CUresult result = MakeContext(process, device, &primary.handle);
      if (result != CUDA_SUCCESS) return result;
    }
    ++primary.references;
    *out = primary.handle;
    return CUDA_SUCCESS;
  }
  // `*last` is set to the context when its last reference went.
  CUresult Release(CUdevice device, CUcontext* last) {
    const gpumem::MutexLock lock(&mu_);
    Primary& primary = by_device_[device];
    if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.references == 0) *last = std::exchange(primary.handle, nullptr);
    return CUDA_SUCCESS;
  }
  bool IsActive(CUdevice device) {
    const gpumem::MutexLock lock(&mu_);
    return by_device_[device].references > 0;
  }

 private:
  struct Primary {
    CUcontext handle = nullptr;
    int references = 0;
  };
  gpumem::Mutex mu_;
  std::map<CUdevice, Primary> by_device_ GPUMEM_GUARDED_BY(mu_);
};
PrimaryContexts& Primaries() {
  static auto* const primaries = new PrimaryContexts;
  return *primaries;
}

CUcontext Current() {
  const auto& contexts = ThisThread().contexts;
  return contexts.empty() ? nullptr : contexts.back();
}

}  // namespace

int CurrentOrdinal() {
  const auto context = Current() != nullptr ? Contexts().Find(Current()) : nullptr;
  return context != nullptr ? context->device() : kAnyDevice;
}

CUresult EnterContext(Call* call) {
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (Current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  call->context = Contexts().Find(Current());
  if (call->context == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  call->process = process;
  return CUDA_SUCCESS;
}

CUresult EnterStream(CUstream stream, Call* call) {
  const CUresult result = EnterContext(call);
  if (result != CUDA_SUCCESS) return result;
  const auto number = reinterpret_cast<uintptr_t>(stream);
  constexpr uintptr_t kLegacyStream = 1;
  if (number == 0 || number == kLegacyStream) {
    call->stream = call->context->default_stream();
    return CUDA_SUCCESS;
  }
  const auto entry = Streams().Find(stream);
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  call->context = entry->context;
  call->stream = entry->stream;
  return CUDA_SUCCESS;
}

}  // namespace simcuda

using simcuda::Call;
using simcuda::Contexts;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::Event;
using simcuda::Events;
using simcuda::Mark;
using simcuda::Primaries;
using simcuda::Process;
using simcuda::StreamEntry;
using simcuda::Streams;
using simcuda::ThisThread;

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxRetain, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return Primaries().Retain(process, device, context);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxRelease, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  CUcontext last = nullptr;
  result = Primaries().Release(device, &last);
  if (result != CUDA_SUCCESS || last == nullptr) return result;
  const auto context = Contexts().Remove(last);
  if (context != nullptr) context->Destroy();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxGetState, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (flags != nullptr) *flags = 0;
  if (active != nullptr) *active = Primaries().IsActive(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  SIMCUDA_CALL(cuCtxSetCurrent);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (context != nullptr && Contexts().Find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto& contexts = ThisThread().contexts;
  if (!contexts.empty()) contexts.pop_back();
  if (context != nullptr) contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  SIMCUDA_CALL(cuCtxGetCurrent);
  CUresult result = CUDA_SUCCESS;
  if (Process::EnterForQuery(&result) == nullptr) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = simcuda::Current();
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  SIMCUDA_CALL(cuCtxPushCurrent);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (context == nullptr || Contexts().Find(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ThisThread().contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  SIMCUDA_CALL(cuCtxPopCurrent);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  auto& contexts = ThisThread().contexts;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  SIMCUDA_CALL(cuCtxGetDevice);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.context->device();
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  SIMCUDA_CALL(cuCtxSynchronize);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  call.context->Synchronize();
  return call.process->sticky();
}

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  SIMCUDA_CALL(cuMemGetInfo);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  simcuda::DeviceStore* const store = call.process->devices()[static_cast<size_t>(call.context->device())].store;
  uint64_t used = 0;
  if (store->UsedBytes(&used) != simcuda::DeviceStore::Outcome::kOk) return CUDA_ERROR_OPERATING_SYSTEM;
  if (free != nullptr) *free = store->config().capacity_bytes - used;
  if (total != nullptr) *total = store->config().capacity_bytes;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  SIMCUDA_CALL(cuStreamCreate);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (stream == nullptr || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto entry = std::make_shared<StreamEntry>();
  entry->context = call.context;
  entry->stream = call.context->AddStream(flags == CU_STREAM_DEFAULT);
  if (entry->stream == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  *stream = Streams().Add(std::move(entry));
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int) {
  SIMCUDA_CALL(cuStreamCreateWithPriority);
  return cuStreamCreate(stream, flags);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  SIMCUDA_CALL(cuStreamDestroy);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  const auto entry = Streams().Remove(stream);
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  entry->context->RemoveStream(entry->stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
  SIMCUDA_CALL(cuStreamSynchronize);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  // The default stream is done when what it waits for is: an empty piece of work takes those marks.
  call.context->Enqueue(call.stream, [] { return CUDA_SUCCESS; }).Wait();
  return call.process->sticky();
}

CUresult cuStreamQuery(CUstream stream) {
  SIMCUDA_CALL(cuStreamQuery);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  const bool done = call.stream->Now().Done();
  if (call.process->sticky() != CUDA_SUCCESS) return call.process->sticky();
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  SIMCUDA_CALL(cuStreamWaitEvent);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Mark recorded;
  {
    const gpumem::MutexLock lock(&found->mu);
    recorded = found->recorded;
  }
  call.context->Enqueue(call.stream, [] { return CUDA_SUCCESS; }, {recorded});
  return CUDA_SUCCESS;
}

// Nothing is ever captured here: the simulation has no graphs.
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  SIMCUDA_CALL(cuStreamIsCapturing);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIMCUDA_CALL(cuThreadExchangeStreamCaptureMode);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (mode == nullptr || static_cast<int>(*mode) < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, ThisThread().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  SIMCUDA_CALL(cuEventCreate);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (event == nullptr || (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *event = Events().Add(std::make_shared<Event>());
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  SIMCUDA_CALL(cuEventDestroy);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  return Events().Remove(event) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  SIMCUDA_CALL(cuEventRecord);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Mark mark = call.context->Enqueue(call.stream, [] { return CUDA_SUCCESS; });
  const gpumem::MutexLock lock(&found->mu);
  found->recorded = std::move(mark);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  SIMCUDA_CALL(cuEventQuery);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Mark recorded;
  {
    const gpumem::MutexLock lock(&found->mu);
    recorded = found->recorded;
  }
  if (!recorded.Done()) return CUDA_ERROR_NOT_READY;
  return process->sticky();
}

CUresult cuEventSynchronize(CUevent event) {
  SIMCUDA_CALL(cuEventSynchronize);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  const auto found = Events().Find(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Mark recorded;
  {
    const gpumem::MutexLock lock(&found->mu);
    recorded = found->recorded;
  }
  recorded.Wait();
  return process->sticky();
}

}  // extern "C"
