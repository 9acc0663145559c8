// cuda/sim/config.h: the state directory of a simulated machine, and the devices that it lists.
//
// The state directory is the simulated hardware: every process that names it in SIMCUDA_DIR sees the same devices and
// the same physical memory. It must be on a file system that keeps holes and flock(2) (tmpfs is meant), and be
// writable by all processes of the simulation. Layout:
//   <dir>/config              text: "simcuda 1", then one line for each device
//   <dir>/<device uuid>/      the physical memory of one device (cuda/sim/store.h)
//   <dir>/dev/nvidia<n>       stands for the GPU's device node: whoever holds it open keeps the adapter up
//   <dir>/settings, control   what it was told to do wrong (cuda/sim/control.h)
// std and libc only, as all of cuda/sim.
#ifndef GPUMEM_CUDA_SIM_CONFIG_H_
#define GPUMEM_CUDA_SIM_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_uuid.h"

namespace simcuda {

inline constexpr char kDirVariable[] = "SIMCUDA_DIR";
inline constexpr std::uint64_t kDefaultGranularity = std::uint64_t{2} << 20;  // what real devices answer

struct DeviceConfig {
  gpumem::DeviceUuid uuid;
  std::optional<gpumem::DeviceUuid> gpu;  // of a MIG GPU instance: the GPU that it is a part of
  std::string name;                       // one line of printable text
  std::uint64_t capacity_bytes = 0;
  std::uint64_t granularity_bytes = kDefaultGranularity;  // a power of two, at least 64 KiB
};

struct Config {
  std::vector<DeviceConfig> devices;  // in machine order; a process's ordinals follow CUDA_VISIBLE_DEVICES
};

// `count` devices of `capacity_bytes` each, with fresh UUIDs and names "Simulated GPU".
Config MakeConfig(int count, std::uint64_t capacity_bytes);

// Divides each GPU into `count` MIG GPU instances of equal memory. The GPUs stay listed, for NVML; work runs on the
// instances only.
void DivideIntoMig(int count, Config* config);

// Makes the state directory (its parent must exist). Refuses a directory that already holds a simulation: its memory
// may be in use. False with one line in `*error`.
bool InitStateDir(const std::string& dir, const Config& config, std::string* error);

// Reads <dir>/config. False with one line in `*error` that names the file, the line and what was expected.
bool ReadConfig(const std::string& dir, Config* config, std::string* error);

// The devices that CUDA_VISIBLE_DEVICES selects, in its order: indices and UUIDs (a unique beginning is enough)
// separated by commas. Devices from the first entry that selects nothing on are not visible, as with the real driver.
// `variable` null: all. A process sees one MIG instance and then nothing else, and never a GPU that is divided.
std::vector<int> SelectVisible(const Config& config, const char* variable);

// "80GiB", "512MiB", "4096": bytes, with a binary suffix or none. nullopt for anything else, or when it overflows.
std::optional<std::uint64_t> ParseBytes(std::string_view text);
// "80.0 GiB" for people.
std::string FormatBytes(std::uint64_t bytes);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_CONFIG_H_
