// cuda/sim/nvml.cc: the simulated libnvidia-ml.so.1, as exported. It looks at the machine that SIMCUDA_DIR names, and
// keeps nothing between two calls.
#include "cuda/nvml_decls.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/config.h"
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

nvmlReturn_t Find(nvmlDevice_t handle, DeviceStore** out) {
  Machine* const machine = Running();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number > machine->devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
  *out = machine->devices[number - 1].get();
  return NVML_SUCCESS;
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
  const gpumem::MutexLock lock(&g_mu);
  if (g_machine == nullptr) g_machine = OpenMachine();
  if (g_machine == nullptr) return NVML_ERROR_DRIVER_NOT_LOADED;
  ++g_users;
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
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_UNKNOWN:
      return "Unknown Error";
  }
  return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned int size) {
  if (Running() == nullptr) return NVML_ERROR_UNINITIALIZED;
  return CopyText(kDriverVersion, text, size);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  const Machine* const machine = Running();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned int>(machine->devices.size());
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  const Machine* const machine = Running();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (device == nullptr || index >= machine->devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = HandleOf(index);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  const Machine* const machine = Running();
  if (machine == nullptr) return NVML_ERROR_UNINITIALIZED;
  if (uuid == nullptr || device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (std::size_t i = 0; i < machine->devices.size(); ++i) {
    if (machine->devices[i]->config().uuid.ToString() != uuid) continue;
    *device = HandleOf(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int size) {
  DeviceStore* store = nullptr;
  const nvmlReturn_t result = Find(device, &store);
  return result == NVML_SUCCESS ? CopyText(store->config().uuid.ToString(), text, size) : result;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int size) {
  DeviceStore* store = nullptr;
  const nvmlReturn_t result = Find(device, &store);
  return result == NVML_SUCCESS ? CopyText(store->config().name, text, size) : result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  DeviceStore* store = nullptr;
  const nvmlReturn_t result = Find(device, &store);
  if (result != NVML_SUCCESS) return result;
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::uint64_t used = 0;
  if (store->UsedBytes(&used) != DeviceStore::Outcome::kOk) return NVML_ERROR_UNKNOWN;
  memory->total = store->config().capacity_bytes;
  memory->used = used;
  memory->free = memory->total - used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  DeviceStore* store = nullptr;
  const nvmlReturn_t result = Find(device, &store);
  if (result != NVML_SUCCESS) return result;
  if (mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = NVML_FEATURE_ENABLED;  // simulated memory never depends on who has the device open
  return NVML_SUCCESS;
}

// `*count` is the room on entry and the number of processes on return; a null `infos` asks for the number alone.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  DeviceStore* store = nullptr;
  const nvmlReturn_t result = Find(device, &store);
  if (result != NVML_SUCCESS) return result;
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  std::vector<std::uint32_t> pids;
  if (store->Processes(&pids) != DeviceStore::Outcome::kOk) return NVML_ERROR_UNKNOWN;
  const unsigned int room = infos != nullptr ? *count : 0;
  *count = static_cast<unsigned int>(pids.size());
  if (room < pids.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (std::size_t i = 0; i < pids.size(); ++i) infos[i] = nvmlProcessInfo_t{pids[i], ~0ull, ~0u, ~0u};
  return NVML_SUCCESS;
}

}  // extern "C"
