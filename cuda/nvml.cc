// cuda/nvml.cc: see the header.
#include "cuda/nvml.h"

#include <dlfcn.h>

#include <utility>

namespace gpumem::cuda {
namespace {

constexpr char kDefaultLibrary[] = "libnvidia-ml.so.1";

template <typename Fn>
bool Find(void* library, const char* name, Fn** out, std::string* missing) {
  *out = reinterpret_cast<Fn*>(dlsym(library, name));
  if (*out == nullptr && missing->empty()) *missing = name;
  return *out != nullptr;
}

}  // namespace

std::unique_ptr<Nvml> Nvml::Load(const char* path, std::string* error) {
  const char* const name = path != nullptr && path[0] != 0 ? path : kDefaultLibrary;
  dlerror();
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    *error = std::string("cannot load NVML '") + name + "': " + (why != nullptr ? why : "unknown reason");
    return nullptr;
  }
  std::unique_ptr<Nvml> nvml(new Nvml);
  std::string missing;
  Find(library, "nvmlInit_v2", &nvml->init_, &missing);
  Find(library, "nvmlShutdown", &nvml->shutdown_, &missing);
  Find(library, "nvmlErrorString", &nvml->error_string_, &missing);
  Find(library, "nvmlSystemGetDriverVersion", &nvml->system_get_driver_version_, &missing);
  Find(library, "nvmlDeviceGetHandleByUUID", &nvml->device_get_handle_by_uuid_, &missing);
  Find(library, "nvmlDeviceGetMemoryInfo", &nvml->device_get_memory_info_, &missing);
  Find(library, "nvmlDeviceGetPersistenceMode", &nvml->device_get_persistence_mode_, &missing);
  Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->device_get_compute_running_processes_, &missing);
  if (!missing.empty()) {
    *error = std::string("NVML '") + name + "' has no entry point " + missing + "; update the NVIDIA driver";
    return nullptr;
  }
  if (const nvmlReturn_t result = nvml->init_(); result != NVML_SUCCESS) {
    *error = std::string("NVML '") + name + "' does not start: " + nvml->DescribeError(result);
    return nullptr;
  }
  nvml->initialised_ = true;
  return nvml;
}

Nvml::~Nvml() {
  if (initialised_) shutdown_();
}

std::string Nvml::DescribeError(nvmlReturn_t code) const {
  const char* const text = error_string_(code);
  return std::string(text != nullptr ? text : "unknown NVML error") + " (" + std::to_string(static_cast<int>(code)) +
         ")";
}

nvmlReturn_t Nvml::FindDevice(const DeviceUuid& uuid, nvmlDevice_t* device) const {
  return device_get_handle_by_uuid_(uuid.ToString().c_str(), device);
}

nvmlReturn_t Nvml::GetMemory(const DeviceUuid& uuid, Memory* out) const {
  nvmlDevice_t device = nullptr;
  if (const nvmlReturn_t result = FindDevice(uuid, &device); result != NVML_SUCCESS) return result;
  nvmlMemory_t memory{};
  const nvmlReturn_t result = device_get_memory_info_(device, &memory);
  if (result == NVML_SUCCESS) *out = Memory{memory.total, memory.used, memory.free};
  return result;
}

nvmlReturn_t Nvml::GetComputeProcesses(const DeviceUuid& uuid, std::vector<Process>* out) const {
  nvmlDevice_t device = nullptr;
  if (const nvmlReturn_t result = FindDevice(uuid, &device); result != NVML_SUCCESS) return result;
  // The list may grow between two calls: ask with room to spare, and again while it says that the room is too small.
  std::vector<nvmlProcessInfo_t> raw(32);
  nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
  unsigned int count = 0;
  for (int attempt = 0; attempt < 8 && result == NVML_ERROR_INSUFFICIENT_SIZE; ++attempt) {
    if (attempt > 0) raw.resize(static_cast<std::size_t>(count) + 32);
    count = static_cast<unsigned int>(raw.size());
    result = device_get_compute_running_processes_(device, &count, raw.data());
  }
  if (result != NVML_SUCCESS) return result;
  std::vector<Process> processes;
  for (unsigned int i = 0; i < count; ++i) {
    Process process;
    process.pid = raw[i].pid;
    if (raw[i].usedGpuMemory != ~0ull) process.used_bytes = raw[i].usedGpuMemory;
    processes.push_back(process);
  }
  *out = std::move(processes);
  return NVML_SUCCESS;
}

nvmlReturn_t Nvml::GetPersistenceMode(const DeviceUuid& uuid, bool* enabled) const {
  nvmlDevice_t device = nullptr;
  if (const nvmlReturn_t result = FindDevice(uuid, &device); result != NVML_SUCCESS) return result;
  nvmlEnableState_t mode = NVML_FEATURE_DISABLED;
  const nvmlReturn_t result = device_get_persistence_mode_(device, &mode);
  if (result == NVML_SUCCESS) *enabled = mode == NVML_FEATURE_ENABLED;
  return result;
}

nvmlReturn_t Nvml::GetDriverVersion(std::string* out) const {
  char text[96] = {};
  const nvmlReturn_t result = system_get_driver_version_(text, sizeof text - 1);
  if (result == NVML_SUCCESS) *out = text;
  return result;
}

}  // namespace gpumem::cuda
