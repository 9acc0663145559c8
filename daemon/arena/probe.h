// daemon/arena/probe.h: how the front learns which devices there are: it asks a short-lived process, because it loads
// no driver itself.
#ifndef GPUMEM_DAEMON_ARENA_PROBE_H_
#define GPUMEM_DAEMON_ARENA_PROBE_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device_uuid.h"

namespace gpumem::arena {

struct ProbeOptions {
  std::string executable = "/proc/self/exe";
  std::string driver = "auto";
  std::string libcuda;
  std::vector<std::pair<std::string, std::string>> environment;
  // cuInit takes seconds where the GPU must be woken first; a driver that hangs is reported after this.
  std::chrono::milliseconds timeout{60000};
};

struct ProbedDevice {
  DeviceUuid uuid;
  std::string name;
  std::string pci_bus_id;
  std::uint64_t total_bytes = 0;
  std::uint64_t granularity_bytes = 0;
  bool vmm_supported = false;
  bool posix_fd_supported = false;  // false: it cannot be managed
};

struct ProbeResult {
  bool simulated = false;
  int driver_version = 0;
  std::string driver_path;
  std::vector<ProbedDevice> devices;
};

// Runs `executable arena --probe` and reads its answer. Blocks: for start-up, before the loop runs. The error's message
// is the probe's own line.
absl::StatusOr<ProbeResult> ProbeDevices(const ProbeOptions& options);

// The answer's text alone; for tests.
absl::StatusOr<ProbeResult> ParseProbe(const std::string& json);

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_PROBE_H_
