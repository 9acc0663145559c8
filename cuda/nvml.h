// cuda/nvml.h: NVIDIA's management library, loaded at run time. Optional: a machine without it is a normal one.
//
// NVML calls may block for long on a wedged driver: never call them on a thread that anything waits for.
#ifndef GPUMEM_CUDA_NVML_H_
#define GPUMEM_CUDA_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/device_uuid.h"
#include "cuda/nvml_decls.h"

namespace gpumem::cuda {

// One loaded and initialised NVML. Thread-safe. Every query asks NVML anew: nothing is cached.
class Nvml {
 public:
  struct Memory {
    std::uint64_t total_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::uint64_t free_bytes = 0;
  };
  struct Process {
    std::uint32_t pid = 0;  // as NVML sees it: in a container it may be another number, or missing
    std::optional<std::uint64_t> used_bytes;
  };

  // Loads `path`, or "libnvidia-ml.so.1" when it is null or empty, and calls nvmlInit_v2. Null, with one line in
  // `*error`, when the library, one of its entry points or the driver behind it is not there.
  static std::unique_ptr<Nvml> Load(const char* path, std::string* error);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Each returns NVML_SUCCESS and sets its output, or another code and leaves it as it was.
  nvmlReturn_t GetMemory(const DeviceUuid& uuid, Memory* out) const;
  // Processes that own channels on the device: those with a context. A process that only holds memory is not listed.
  nvmlReturn_t GetComputeProcesses(const DeviceUuid& uuid, std::vector<Process>* out) const;
  nvmlReturn_t GetPersistenceMode(const DeviceUuid& uuid, bool* enabled) const;
  nvmlReturn_t GetDriverVersion(std::string* out) const;

  // "GPU is lost (15)", in NVML's own words.
  std::string DescribeError(nvmlReturn_t code) const;

 private:
  Nvml() = default;
  nvmlReturn_t FindDevice(const DeviceUuid& uuid, nvmlDevice_t* device) const;

  nvmlReturn_t (*init_)() = nullptr;
  nvmlReturn_t (*shutdown_)() = nullptr;
  const char* (*error_string_)(nvmlReturn_t) = nullptr;
  nvmlReturn_t (*system_get_driver_version_)(char*, unsigned int) = nullptr;
  nvmlReturn_t (*device_get_handle_by_uuid_)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*device_get_memory_info_)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  nvmlReturn_t (*device_get_persistence_mode_)(nvmlDevice_t, nvmlEnableState_t*) = nullptr;
  nvmlReturn_t (*device_get_compute_running_processes_)(nvmlDevice_t, unsigned int*, nvmlProcessInfo_t*) = nullptr;
  bool initialised_ = false;
};

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_NVML_H_
