// daemon/arena/driver_memory.h: one device's memory through the CUDA driver. The only part of the daemon, with
// arena_process, that includes cuda/.
#ifndef GPUMEM_DAEMON_ARENA_DRIVER_MEMORY_H_
#define GPUMEM_DAEMON_ARENA_DRIVER_MEMORY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/devices.h"
#include "cuda/driver.h"
#include "cuda/nvml.h"
#include "daemon/arena/arena_server.h"

namespace gpumem::arena {

// A loaded driver after cuInit, and what it sees.
struct OpenedDriver {
  std::unique_ptr<cuda::Driver> driver;
  std::vector<cuda::DeviceInfo> devices;
};

// Loads the driver and calls cuInit. `kind` is "auto", "cuda" or "sim": with the latter two, a library of the other
// kind is refused, so that nobody runs on a simulation by mistake. `libcuda`: a path, or empty for the usual search.
absl::StatusOr<OpenedDriver> OpenDriver(const std::string& kind, const std::string& libcuda);

// NVML beside the driver: the simulation's own library for a simulated driver, the system's for a real one. Null, with
// `why` set, where there is none.
std::unique_ptr<cuda::Nvml> OpenNvml(const cuda::Driver& driver, std::string* why);

// Single-threaded. `driver` and `nvml` (may be null) must outlive it. No context is ever created: cuMemCreate and the
// export need only cuInit.
class DriverMemory final : public DeviceMemory {
 public:
  DriverMemory(const cuda::Driver* driver, const cuda::Nvml* nvml, cuda::DeviceInfo device, std::string why_no_nvml)
      : driver_(driver), nvml_(nvml), device_(std::move(device)), why_no_nvml_(std::move(why_no_nvml)) {}

  // cuMemCreate, cuMemExportToShareableHandle, cuMemRelease: the fd is then the only reference.
  absl::StatusOr<UniqueFd> Create(std::uint64_t bytes) override;
  absl::StatusOr<MemoryReading> Memory() override;

 private:
  absl::Status Failed(const std::string& call, CUresult error, std::uint64_t bytes) const;

  const cuda::Driver* const driver_;
  const cuda::Nvml* const nvml_;
  const cuda::DeviceInfo device_;
  const std::string why_no_nvml_;
};

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_DRIVER_MEMORY_H_
