// cuda/sim/nvml.cc: the simulated libnvidia-ml.so.1, as exported. It looks at the machine that SIMCUDA_DIR names, and
// keeps nothing between two calls but event sets.
#include "cuda/nvml_decls.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/config.h"
#include "cuda/sim/control.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/store.h"

namespace {

using simcuda::DeviceStore;

constexpr char kDriverVersion[] = "580.00.simulated";

struct Machine {
  std::vector<std::unique_ptr<DeviceStore>> devices;
};

gpumem::Mutex g_mu;
int g_users GPUMEM_GUARDED_BY(g_mu) = 0;
Machine* g_machine GPUMEM_GUARDED_BY(g_mu) = nullptr;  // kept after the last shutdown: another thread may be in a call

// A device handle is its number plus one, in a pointer's clothes.
nvmlDevice_t HandleOf(std::size_t index) { return reinterpret_cast<nvmlDevice_t>(index + 1); }

Machine* Running() {
  const gpumem::MutexLock lock(&g_mu);
  return g_users > 0 ? g_machine : nullptr;
}

// One call of one entry point, on one device or none: passes the fault point.
class NvmlCall {
 public:
  NvmlCall(const char* entry, nvmlDevice_t handle) : NvmlCall(entry) {
    if (result_ != NVML_SUCCESS) return;
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    if (number == 0 || number > machine_->devices.size()) {
      result_ = NVML_ERROR_INVALID_ARGUMENT;
      return;
    }
    store_ = machine_->devices[number - 1].get();
    Pass(entry, &store_->config().uuid);
  }
  explicit NvmlCall(const char* entry, bool pass = false) : machine_(Running()) {
    if (machine_ == nullptr) result_ = NVML_ERROR_UNINITIALIZED;
    if (machine_ != nullptr && pass) Pass(entry, nullptr);
  }
  ~NvmlCall() {
    if (kill_after_) simcuda::KillThisProcess();
  }
  NvmlCall(const NvmlCall&) = delete;
  NvmlCall& operator=(const NvmlCall&) = delete;

  nvmlReturn_t result() const { return result_; }
  Machine& machine() const { return *machine_; }
  DeviceStore& store() const { return *store_; }
  simcuda::DeviceSettings settings() const { return simcuda::CurrentSettings()->DeviceOf(store_->config().uuid); }

 private:
  void Pass(const char* entry, const gpumem::DeviceUuid* device) {
    const simcuda::Verdict verdict = simcuda::PassFaultPoint(entry, device);
    kill_after_ = verdict.kill_after;
    if (verdict.kind == simcuda::Verdict::Kind::kGo) return;
    const bool lost = verdict.kind == simcuda::Verdict::Kind::kLost;
    if (lost && SIMCUDA_BREAK("nvml-knows-no-loss")) return;
    result_ = lost ? NVML_ERROR_GPU_IS_LOST : static_cast<nvmlReturn_t>(verdict.code);
  }

  Machine* const machine_;
  DeviceStore* store_ = nullptr;
  nvmlReturn_t result_ = NVML_SUCCESS;
  bool kill_after_ = false;
};

#define SIMNVML_CALL(entry)          \
  const NvmlCall call(#entry, true); \
  if (call.result() != NVML_SUCCESS) return call.result()
#define SIMNVML_CALL_ON(entry, device) \
  const NvmlCall call(#entry, device); \
  if (call.result() != NVML_SUCCESS) return call.result()

struct EventSet {
  gpumem::Mutex mu;
  std::vector<std::size_t> devices GPUMEM_GUARDED_BY(mu);  // registered, by their place in the machine
  std::uint64_t seen GPUMEM_GUARDED_BY(mu) = 0;            // the last Xid that was given out, or was before
};

bool IsGpu(const DeviceStore& store) { return !store.config().gpu; }

// The `index`-th that `wanted` says yes to, or null.
template <typename Wanted>
nvmlDevice_t Nth(const Machine& machine, unsigned int index, const Wanted& wanted) {
  for (std::size_t i = 0; i < machine.devices.size(); ++i) {
    if (wanted(*machine.devices[i]) && index-- == 0) return HandleOf(i);
  }
  return nullptr;
}
template <typename Wanted>
unsigned int Count(const Machine& machine, const Wanted& wanted) {
  unsigned int count = 0;
  while (Nth(machine, count, wanted) != nullptr) ++count;
  return count;
}

nvmlReturn_t CopyText(const std::string& text, char* to, unsigned int size) {
  if (to == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (text.size() + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

Machine* OpenMachine() {
  const char* const dir = std::getenv(simcuda::kDirVariable);
  simcuda::Config config;
  std::string error;
  if (dir == nullptr || !simcuda::ReadConfig(dir, &config, &error)) return nullptr;
  auto machine = std::make_unique<Machine>();
  for (const simcuda::DeviceConfig& device : config.devices) {
    machine->devices.push_back(DeviceStore::Open(dir, device, &error));
    if (machine->devices.back() == nullptr) return nullptr;
  }
  return machine.release();
}

}  // namespace

extern "C" {

nvmlReturn_t nvmlInit_v2() {
  const simcuda::Verdict verdict = simcuda::PassFaultPoint("nvmlInit_v2", nullptr);
  // With a lost device it goes on, as NVML does; there is nothing to poison in it.
  if (verdict.kind == simcuda::Verdict::Kind::kFail || verdict.kind == simcuda::Verdict::Kind::kPoison) {
    return static_cast<nvmlReturn_t>(verdict.code);
  }
  const gpumem::MutexLock lock(&g_mu);
  if (g_machine == nullptr) g_machine = OpenMachine();
  if (g_machine == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  ++g_users;
  if (verdict.kill_after) simcuda::KillThisProcess();
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown() {
  const gpumem::MutexLock lock(&g_mu);
  if (g_users == 0) return NVML_ERROR_UNINITIALIZED;
  --g_users;
  return NVML_SUCCESS;
}

const char* nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
    case NVML_SUCCESS:
      return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded (the simulation has no machine: set SIMCUDA_DIR)";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_UNKNOWN:
      return "Unknown Error";
  }
  return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned int size) {
  SIMNVML_CALL(nvmlSystemGetDriverVersion);
  return CopyText(kDriverVersion, text, size);
}

// Full GPUs; MIG instances have calls of their own.
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  SIMNVML_CALL(nvmlDeviceGetCount_v2);
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = Count(call.machine(), IsGpu);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  SIMNVML_CALL(nvmlDeviceGetHandleByIndex_v2);
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlDevice_t found = Nth(call.machine(), index, IsGpu);
  if (found == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *device = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  SIMNVML_CALL(nvmlDeviceGetHandleByUUID);
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const auto& devices = call.machine().devices;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (devices[i]->config().uuid.ToString() != uuid) continue;
    *device = HandleOf(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int size) {
  SIMNVML_CALL_ON(nvmlDeviceGetUUID, device);
  return CopyText(call.store().config().uuid.ToString(), text, size);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int size) {
  SIMNVML_CALL_ON(nvmlDeviceGetName, device);
  return CopyText(call.store().config().name, text, size);
}

// The N of /dev/nvidiaN; here <state directory>/dev/nvidiaN.
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minor) {
  SIMNVML_CALL_ON(nvmlDeviceGetMinorNumber, device);
  if (minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const gpumem::DeviceUuid gpu = call.store().config().gpu.value_or(call.store().config().uuid);
  unsigned int number = 0;
  for (const auto& store : call.machine().devices) {
    if (store->config().uuid == gpu) break;
    if (IsGpu(*store)) ++number;
  }
  *minor = number;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  SIMNVML_CALL_ON(nvmlDeviceGetMemoryInfo, device);
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (!call.settings().persistence) call.store().ShutDownIfUnopened();
  std::uint64_t used = 0;
  if (call.store().UsedBytes(&used) != DeviceStore::Outcome::kOk) return NVML_ERROR_UNKNOWN;
  memory->total = call.store().config().capacity_bytes;
  memory->used = used;
  memory->free = memory->total - used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  SIMNVML_CALL_ON(nvmlDeviceGetPersistenceMode, device);
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = call.settings().persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

// `*count` is the room on entry and the number of processes on return; a null `infos` asks for the number alone.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  SIMNVML_CALL_ON(nvmlDeviceGetComputeRunningProcesses_v3, device);
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::vector<std::uint32_t> pids;
  if (call.store().Processes(call.settings().process_list_lag, &pids) != DeviceStore::Outcome::kOk) {
    return NVML_ERROR_UNKNOWN;
  }
  const unsigned int room = infos != nullptr ? *count : 0;
  *count = static_cast<unsigned int>(pids.size());
  if (room < pids.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (std::size_t i = 0; i < pids.size(); ++i) infos[i] = nvmlProcessInfo_t{pids[i], ~0ull, ~0u, ~0u};
  return NVML_SUCCESS;
}

// There is no MPS server here.
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count, nvmlProcessInfo_t*) {
  SIMNVML_CALL_ON(nvmlDeviceGetMPSComputeRunningProcesses_v3, device);
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int* mode) {
  SIMNVML_CALL_ON(nvmlDeviceGetComputeMode, device);
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = 0;  // NVML_COMPUTEMODE_DEFAULT
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  SIMNVML_CALL_ON(nvmlDeviceGetMigMode, device);
  if (current == nullptr || pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const gpumem::DeviceUuid gpu = call.store().config().uuid;
  *current = Count(call.machine(), [&gpu](const DeviceStore& store) { return store.config().gpu == gpu; }) > 0 ? 1 : 0;
  *pending = *current;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
  SIMNVML_CALL_ON(nvmlDeviceGetMaxMigDeviceCount, device);
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const gpumem::DeviceUuid gpu = call.store().config().uuid;
  *count = Count(call.machine(), [&gpu](const DeviceStore& store) { return store.config().gpu == gpu; });
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t* instance) {
  SIMNVML_CALL_ON(nvmlDeviceGetMigDeviceHandleByIndex, device);
  if (instance == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const gpumem::DeviceUuid gpu = call.store().config().uuid;
  const nvmlDevice_t found =
      Nth(call.machine(), index, [&gpu](const DeviceStore& store) { return store.config().gpu == gpu; });
  if (found == nullptr) return NVML_ERROR_NOT_FOUND;
  *instance = found;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* is_mig) {
  SIMNVML_CALL_ON(nvmlDeviceIsMigDeviceHandle, device);
  if (is_mig == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *is_mig = IsGpu(call.store()) ? 0 : 1;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t* values) {
  SIMNVML_CALL_ON(nvmlDeviceGetFieldValues, device);
  if (count < 0 || (values == nullptr && count > 0)) return NVML_ERROR_INVALID_ARGUMENT;
  for (int i = 0; i < count; ++i) {
    const bool known = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    values[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    if (!known) continue;
    values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    values[i].value.uiVal = static_cast<unsigned int>(call.settings().recovery_action);
    if (SIMCUDA_BREAK("no-recovery-action")) values[i].value.uiVal = 0;
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long* types) {
  SIMNVML_CALL_ON(nvmlDeviceGetSupportedEventTypes, device);
  if (types == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *types = nvmlEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t* set) {
  SIMNVML_CALL(nvmlEventSetCreate);
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  auto made = std::make_unique<EventSet>();
  if (const simcuda::Control* const control = simcuda::Control::OfProcess()) {
    const gpumem::MutexLock lock(&made->mu);
    made->seen = control->LastXid();
  }
  *set = reinterpret_cast<nvmlEventSet_t>(made.release());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  SIMNVML_CALL(nvmlEventSetFree);
  delete reinterpret_cast<EventSet*>(set);
  return NVML_SUCCESS;
}

// A type that the device does not support refuses all of them.
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  SIMNVML_CALL_ON(nvmlDeviceRegisterEvents, device);
  if (set == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if ((types & ~nvmlEventTypeXidCriticalError) != 0) return NVML_ERROR_NOT_SUPPORTED;
  auto* const events = reinterpret_cast<EventSet*>(set);
  const gpumem::MutexLock lock(&events->mu);
  if (types != 0) events->devices.push_back(reinterpret_cast<std::uintptr_t>(device) - 1);
  return NVML_SUCCESS;
}

// A lost device among the registered ones ends the wait, as NVML does.
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t* data, unsigned int timeout_ms) {
  SIMNVML_CALL(nvmlEventSetWait_v2);
  if (set == nullptr || data == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const simcuda::Control* const control = simcuda::Control::OfProcess();
  if (control == nullptr) return NVML_ERROR_UNKNOWN;
  auto* const events = reinterpret_cast<EventSet*>(set);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  while (true) {
    const std::uint32_t generation = control->generation();
    const auto settings = simcuda::CurrentSettings();
    {
      const gpumem::MutexLock lock(&events->mu);
      for (const simcuda::XidEvent& event : control->XidsAfter(events->seen)) {
        events->seen = event.sequence;
        for (const std::size_t index : events->devices) {
          const bool other = call.machine().devices[index]->config().uuid != event.device;
          if (other && !SIMCUDA_BREAK("xid-of-any-device")) continue;
          *data = nvmlEventData_t{HandleOf(index), nvmlEventTypeXidCriticalError, event.code, ~0u, ~0u};
          return NVML_SUCCESS;
        }
      }
      for (const std::size_t index : events->devices) {
        const auto device = settings->DeviceOf(call.machine().devices[index]->config().uuid);
        if (device.state == simcuda::DeviceState::kLost) return NVML_ERROR_GPU_IS_LOST;
      }
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds::zero()) return NVML_ERROR_TIMEOUT;
    control->WaitForChange(generation, std::chrono::ceil<std::chrono::milliseconds>(left));
  }
}

}  // extern "C"
