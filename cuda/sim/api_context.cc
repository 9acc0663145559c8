// cuda/sim/api_context.cc: contexts, as exported.
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/plain_memory.h"
#include "cuda/sim/process.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"
#include "cuda/sim/thread_state.h"

namespace simcuda {
namespace {

constexpr unsigned kScheduleMask = 7;  // CU_CTX_SCHED_MASK: one of automatic, spin, yield, blocking
constexpr unsigned kAllFlags = 0xff;   // CU_CTX_FLAGS_MASK
constexpr unsigned kApiVersion = 3020;

bool AreFlags(unsigned flags) {
  const unsigned schedule = flags & kScheduleMask;
  return (flags & ~kAllFlags) == 0 && (schedule & (schedule - 1)) == 0;
}

CUresult MakeContext(Process* process, int device, unsigned flags, CUcontext* out) {
  std::unique_ptr<Presence> presence;
  DeviceStore* const store = process->devices()[static_cast<std::size_t>(device)].store;
  if (store->Enter(&presence) != DeviceStore::Outcome::kOk) return CUDA_ERROR_OPERATING_SYSTEM;
  std::shared_ptr<Stream> default_stream = Stream::Start(true);
  if (default_stream == nullptr) return CUDA_ERROR_OPERATING_SYSTEM;
  auto context = std::make_shared<Context>(*process, device, flags, std::move(presence), std::move(default_stream));
  *out = Contexts().Add(context);
  context->set_handle(*out);
  return CUDA_SUCCESS;
}

// Ends a context that is no longer registered, and the plain memory in it. Memory of cuMemCreate is of no context.
void EndContext(const std::shared_ptr<Context>& context) {
  context->Destroy();
  for (const PlainRange& range : PlainMemory::All().RemoveAll(context->handle())) {
    if (range.kind == PlainRange::Kind::kDevice) context->process().vmm().FreeLinear(range.begin);
    if (range.kind == PlainRange::Kind::kPinnedHost) {
      std::free(reinterpret_cast<void*>(static_cast<std::uintptr_t>(range.begin)));
    }
  }
}

// The process's primary contexts, by device. Thread-safe.
class PrimaryContexts {
 public:
  CUresult Retain(Process* process, CUdevice device, CUcontext* out) {
    const gpumem::MutexLock lock(&mu_);
    Primary& primary = by_device_[device];
    if (primary.handle == nullptr) {
      const CUresult result = MakeContext(process, device, primary.flags, &primary.handle);
      if (result != CUDA_SUCCESS) return result;
    }
    ++primary.references;
    *out = primary.handle;
    return CUDA_SUCCESS;
  }
  // The context that a release or a reset now would end; null when it would end none.
  CUcontext EndedByRelease(CUdevice device) {
    const gpumem::MutexLock lock(&mu_);
    const Primary& primary = by_device_[device];
    return primary.references == 1 ? primary.handle : nullptr;
  }
  CUcontext EndedByReset(CUdevice device) {
    const gpumem::MutexLock lock(&mu_);
    return by_device_[device].handle;
  }
  // `*last` is set to the context when its last reference went.
  CUresult Release(CUdevice device, CUcontext* last) {
    const gpumem::MutexLock lock(&mu_);
    Primary& primary = by_device_[device];
    if (primary.references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--primary.references == 0) *last = std::exchange(primary.handle, nullptr);
    return CUDA_SUCCESS;
  }
  // Its references stay, for their holders to release; the next Retain makes it anew.
  CUcontext Reset(CUdevice device) {
    const gpumem::MutexLock lock(&mu_);
    by_device_[device].flags = 0;
    return std::exchange(by_device_[device].handle, nullptr);
  }
  void SetFlags(CUdevice device, unsigned flags) {
    const gpumem::MutexLock lock(&mu_);
    by_device_[device].flags = flags;
  }
  void GetState(CUdevice device, unsigned* flags, bool* active) {
    const gpumem::MutexLock lock(&mu_);
    *flags = by_device_[device].flags;
    *active = by_device_[device].handle != nullptr;
  }
  bool IsPrimary(CUcontext context) {
    const gpumem::MutexLock lock(&mu_);
    for (const auto& [device, primary] : by_device_) {
      if (primary.handle == context) return true;
    }
    return false;
  }

 private:
  struct Primary {
    CUcontext handle = nullptr;
    int references = 0;
    unsigned flags = 0;
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

CUresult Create(CUcontext* context, unsigned flags, CUdevice device) {
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (context == nullptr || !AreFlags(flags)) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  result = MakeContext(process, device, flags, context);
  if (result == CUDA_SUCCESS) ThisThread().contexts.push_back(*context);
  return result;
}

// As EnterContext, of a named context; null is the current one.
CUresult EnterNamed(CUcontext context, Call* call) {
  if (context == nullptr) return EnterContext(call);
  CUresult result = CUDA_ERROR_UNKNOWN;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  call->context = Contexts().Find(context);
  if (call->context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  call->process = process;
  return CUDA_SUCCESS;
}

CUresult Synchronize(const Call& call) {
  const CUresult result = Captures::All().CheckWaitAll(call.context);
  if (result != CUDA_SUCCESS) return result;
  call.context->Synchronize();
  return call.process->sticky();
}

}  // namespace

int CurrentOrdinal() {
  const auto context = Current() != nullptr ? Contexts().Find(Current()) : nullptr;
  return context != nullptr ? context->device() : kAnyDevice;
}

CUresult EnterContext(Call* call) {
  CUresult result = CUDA_ERROR_UNKNOWN;
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
  if (number == 0 || number == kLegacyStream) {
    call->stream = call->context->default_stream();
    return CUDA_SUCCESS;
  }
  if (number == kPerThreadStream) {
    call->stream = ThisThread().DefaultStream(call->context);
    return call->stream != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  }
  const auto entry = Streams().Find(stream);
  if (entry == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (entry->context->destroyed()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  call->context = entry->context;
  call->stream = entry->stream;
  return CUDA_SUCCESS;
}

}  // namespace simcuda

using simcuda::Call;
using simcuda::Captures;
using simcuda::Contexts;
using simcuda::EnterContext;
using simcuda::Primaries;
using simcuda::Process;
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
  if (const auto ended = Contexts().Find(Primaries().EndedByRelease(device)); ended != nullptr) {
    result = Captures::All().CheckWaitAll(ended);
    if (result != CUDA_SUCCESS) return result;
  }
  CUcontext last = nullptr;
  result = Primaries().Release(device, &last);
  if (result != CUDA_SUCCESS || last == nullptr) return result;
  const auto context = Contexts().Remove(last);
  if (context != nullptr) simcuda::EndContext(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxReset, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (const auto ended = Contexts().Find(Primaries().EndedByReset(device)); ended != nullptr) {
    result = Captures::All().CheckWaitAll(ended);
    if (result != CUDA_SUCCESS) return result;
  }
  const auto context = Contexts().Remove(Primaries().Reset(device));
  if (context != nullptr) simcuda::EndContext(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxSetFlags, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (!simcuda::AreFlags(flags)) return CUDA_ERROR_INVALID_VALUE;
  Primaries().SetFlags(device, flags);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  SIMCUDA_CALL_ON(cuDevicePrimaryCtxGetState, device);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  unsigned its_flags = 0;
  bool is_active = false;
  Primaries().GetState(device, &its_flags, &is_active);
  if (flags != nullptr) *flags = its_flags;
  if (active != nullptr) *active = is_active ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  SIMCUDA_CALL(cuCtxCreate);
  return simcuda::Create(context, flags, device);
}

// Execution affinities and parameters of the newer ABIs: the simulation has none to offer.
CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinities, int count, unsigned int flags,
                        CUdevice device) {
  SIMCUDA_CALL(cuCtxCreate);
  if (affinities != nullptr || count != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return simcuda::Create(context, flags, device);
}
CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
  SIMCUDA_CALL(cuCtxCreate);
  if (parameters != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return simcuda::Create(context, flags, device);
}

// A primary context is ended by its last release, not by this.
CUresult cuCtxDestroy_v2(CUcontext context) {
  SIMCUDA_CALL(cuCtxDestroy);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = Contexts().Find(context);
  if (found == nullptr || Primaries().IsPrimary(context)) return CUDA_ERROR_INVALID_CONTEXT;
  result = Captures::All().CheckWaitAll(found);
  if (result != CUDA_SUCCESS) return result;
  if (Contexts().Remove(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;  // another thread was faster
  if (simcuda::Current() == context) ThisThread().contexts.pop_back();
  simcuda::EndContext(found);
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

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  SIMCUDA_CALL(cuCtxGetDevice);
  Call call;
  const CUresult result = simcuda::EnterNamed(context, &call);
  if (result != CUDA_SUCCESS) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *device = call.context->device();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetFlags(unsigned int* flags) {
  SIMCUDA_CALL(cuCtxGetFlags);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = call.context->flags();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  SIMCUDA_CALL(cuCtxGetApiVersion);
  Call call;
  const CUresult result = simcuda::EnterNamed(context, &call);
  if (result != CUDA_SUCCESS) return result;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = simcuda::kApiVersion;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  SIMCUDA_CALL(cuCtxSynchronize);
  Call call;
  const CUresult result = EnterContext(&call);
  return result == CUDA_SUCCESS ? simcuda::Synchronize(call) : result;
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
  SIMCUDA_CALL(cuCtxSynchronize);
  Call call;
  const CUresult result = simcuda::EnterNamed(context, &call);
  return result == CUDA_SUCCESS ? simcuda::Synchronize(call) : result;
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

}  // extern "C"
