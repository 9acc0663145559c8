// cuda/sim/config.cc: see the header.
#include "cuda/sim/config.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/checked.h"
#include "base/unique_fd.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/numbers.h"

namespace simcuda {
namespace {

constexpr char kHeader[] = "simcuda 1";
constexpr std::uint64_t kMinGranularity = std::uint64_t{64} << 10;

bool IsPowerOfTwo(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

// Why the device is not possible, or an empty string.
std::string CheckDevice(const DeviceConfig& device) {
  if (!IsPowerOfTwo(device.granularity_bytes) || device.granularity_bytes < kMinGranularity) {
    return "granularity " + std::to_string(device.granularity_bytes) + " is not a power of two of at least 64 KiB";
  }
  if (device.capacity_bytes == 0 || device.capacity_bytes % device.granularity_bytes != 0) {
    return "capacity " + std::to_string(device.capacity_bytes) + " is not a multiple of the granularity, " +
           std::to_string(device.granularity_bytes);
  }
  return "";
}

// "device <uuid> <capacity> <granularity> <name>" or "mig <uuid> <uuid of its GPU> <capacity> <granularity> <name>"
bool ParseDevice(const std::string& line, DeviceConfig* device, std::string* why) {
  std::istringstream words(line);
  std::string keyword, uuid, gpu, capacity, granularity;
  words >> keyword >> uuid;
  const bool is_mig = keyword == "mig";
  if (is_mig) words >> gpu;
  words >> capacity >> granularity;
  std::getline(words >> std::ws, device->name);
  const auto parsed_uuid = gpumem::DeviceUuid::Parse(uuid);
  const auto parsed_gpu = gpumem::DeviceUuid::Parse(gpu);
  const auto parsed_capacity = ParseNumber<std::uint64_t>(capacity);
  const auto parsed_granularity = ParseNumber<std::uint64_t>(granularity);
  if ((keyword != "device" && !is_mig) || !parsed_uuid || (is_mig && !parsed_gpu) || !parsed_capacity ||
      !parsed_granularity || device->name.empty()) {
    *why = "expected 'device UUID CAPACITY_BYTES GRANULARITY_BYTES NAME' or 'mig UUID GPU_UUID …'";
    return false;
  }
  device->uuid = *parsed_uuid;
  if (is_mig) device->gpu = *parsed_gpu;
  device->capacity_bytes = *parsed_capacity;
  device->granularity_bytes = *parsed_granularity;
  *why = CheckDevice(*device);
  return why->empty();
}

std::string FormatDevice(const DeviceConfig& device) {
  return (device.gpu ? "mig " : "device ") + device.uuid.ToString() + (device.gpu ? " " + device.gpu->ToString() : "") +
         " " + std::to_string(device.capacity_bytes) + " " + std::to_string(device.granularity_bytes) + " " +
         device.name + "\n";
}

bool IsDivided(const Config& config, const DeviceConfig& device) {
  return std::any_of(config.devices.begin(), config.devices.end(),
                     [&device](const DeviceConfig& other) { return other.gpu == device.uuid; });
}

gpumem::DeviceUuid NewUuid(gpumem::DeviceUuid::Kind kind) {
  gpumem::DeviceUuid::Raw raw{};
  static std::atomic<std::uint8_t> fallback{0};
  // 16 bytes are never short and never interrupted (getrandom(2)).
  if (::getrandom(raw.data(), raw.size(), 0) != static_cast<ssize_t>(raw.size())) raw[15] = ++fallback;
  return gpumem::DeviceUuid(kind, raw);
}

// The device that one entry of CUDA_VISIBLE_DEVICES names, or -1.
int FindEntry(const Config& config, std::string_view entry) {
  const int count = static_cast<int>(config.devices.size());
  if (const auto index = ParseNumber<int>(entry)) return *index < count ? *index : -1;
  if (entry.size() < 5) return -1;  // "GPU-" alone selects nothing
  if (SIMCUDA_BREAK("visible-uuid-unknown")) return -1;
  int found = -1;
  for (int i = 0; i < count; ++i) {
    if (config.devices[static_cast<std::size_t>(i)].uuid.ToString().substr(0, entry.size()) != entry) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

std::string ErrnoText() { return std::strerror(errno); }

bool WriteFile(const std::string& path, const std::string& text) {
  const gpumem::UniqueFd fd(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644));
  return fd.valid() && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Each GPU's node under the name that programs look for; an instance has its GPU's.
bool MakeNodes(const std::string& dir, const Config& config) {
  if (::mkdir((dir + "/dev").c_str(), 0755) != 0) return false;
  int minor = 0;
  for (const DeviceConfig& device : config.devices) {
    const std::string own = device.uuid.ToString() + "/node";
    if (device.gpu) {
      if (::symlink(("../" + device.gpu->ToString() + "/node").c_str(), (dir + "/" + own).c_str()) != 0) return false;
      continue;
    }
    const std::string name = dir + "/dev/nvidia" + std::to_string(minor++);
    if (::mkfifo((dir + "/" + own).c_str(), 0666) != 0) return false;
    if (::symlink(("../" + own).c_str(), name.c_str()) != 0) return false;
  }
  return true;
}

}  // namespace

Config MakeConfig(int count, std::uint64_t capacity_bytes) {
  Config config;
  for (int i = 0; i < count; ++i) {
    DeviceConfig device;
    device.uuid = NewUuid(gpumem::DeviceUuid::Kind::kGpu);
    device.name = "Simulated GPU";
    device.capacity_bytes = capacity_bytes;
    config.devices.push_back(device);
  }
  return config;
}

void DivideIntoMig(int count, Config* config) {
  Config divided;
  for (const DeviceConfig& gpu : config->devices) {
    divided.devices.push_back(gpu);
    const std::uint64_t units = gpu.capacity_bytes / gpu.granularity_bytes / static_cast<std::uint64_t>(count);
    for (int i = 0; i < count; ++i) {
      DeviceConfig instance = gpu;
      instance.uuid = NewUuid(gpumem::DeviceUuid::Kind::kMig);
      instance.gpu = gpu.uuid;
      instance.name = gpu.name + " MIG 1g";  // as the driver names instances
      instance.capacity_bytes = units * gpu.granularity_bytes;
      divided.devices.push_back(std::move(instance));
    }
  }
  *config = std::move(divided);
}

bool InitStateDir(const std::string& dir, const Config& config, std::string* error) {
  if (config.devices.empty()) {
    *error = "a simulated machine needs at least one device";
    return false;
  }
  std::string text = std::string(kHeader) + "\n";
  for (const DeviceConfig& device : config.devices) {
    if (const std::string why = CheckDevice(device); !why.empty()) {
      *error = "device " + device.uuid.ToString() + ": " + why;
      return false;
    }
    text += FormatDevice(device);
  }
  const std::string path = dir + "/config";
  if (::mkdir(dir.c_str(), 0755) != 0 && errno != EEXIST) {
    *error = "cannot make the state directory '" + dir + "': " + ErrnoText();
    return false;
  }
  if (::access(path.c_str(), F_OK) == 0) {
    *error = "'" + dir + "' already holds a simulated machine; use it as it is, or remove the directory first";
    return false;
  }
  for (const DeviceConfig& device : config.devices) {
    if (::mkdir((dir + "/" + device.uuid.ToString()).c_str(), 0755) != 0) {
      *error = "cannot make '" + dir + "/" + device.uuid.ToString() + "': " + ErrnoText();
      return false;
    }
  }
  if (!MakeNodes(dir, config)) {
    *error = "cannot make the device nodes in '" + dir + "': " + ErrnoText();
    return false;
  }
  // Renamed into place, so that nobody reads half of it.
  const std::string temporary = path + ".new";
  if (!WriteFile(temporary, text) || ::rename(temporary.c_str(), path.c_str()) != 0) {
    *error = "cannot write '" + path + "': " + ErrnoText();
    return false;
  }
  return true;
}

bool ReadConfig(const std::string& dir, Config* config, std::string* error) {
  const std::string path = dir + "/config";
  std::ifstream file(path);
  if (!file) {
    *error = "cannot read '" + path + "': " + ErrnoText() + "; make a simulated machine with: simgpu init --dir " + dir;
    return false;
  }
  std::string line;
  if (!std::getline(file, line) || line != kHeader) {
    *error = "'" + path + "' line 1: expected '" + kHeader + "'";
    return false;
  }
  Config read;
  for (int number = 2; std::getline(file, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    DeviceConfig device;
    std::string why;
    if (!ParseDevice(line, &device, &why)) {
      *error = "'" + path + "' line " + std::to_string(number) + ": " + why;
      return false;
    }
    read.devices.push_back(device);
  }
  if (read.devices.empty()) {
    *error = "'" + path + "' lists no device";
    return false;
  }
  *config = std::move(read);
  return true;
}

std::vector<int> SelectVisible(const Config& config, const char* variable) {
  const auto is_mig = [&config](int index) { return config.devices[static_cast<std::size_t>(index)].gpu.has_value(); };
  std::vector<int> selected;
  if (variable == nullptr || SIMCUDA_BREAK("visible-ignored")) {
    for (std::size_t i = 0; i < config.devices.size(); ++i) {
      if (!IsDivided(config, config.devices[i])) selected.push_back(static_cast<int>(i));
    }
  } else {
    std::string_view rest = variable;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      const int index = FindEntry(config, rest.substr(0, comma));
      if (index < 0 && SIMCUDA_BREAK("visible-skips-unknown")) {
        rest.remove_prefix(std::min(comma + 1, rest.size()));
        continue;
      }
      if (index < 0 || IsDivided(config, config.devices[static_cast<std::size_t>(index)])) break;
      if (std::find(selected.begin(), selected.end(), index) != selected.end()) return {};  // the real driver's answer
      selected.push_back(index);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  if (SIMCUDA_BREAK("visible-sorted")) std::sort(selected.begin(), selected.end());
  const auto mig = std::find_if(selected.begin(), selected.end(), is_mig);
  if (mig != selected.end() && !SIMCUDA_BREAK("mig-sees-all")) return {*mig};
  return selected;
}

std::optional<std::uint64_t> ParseBytes(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const auto number = ParseNumber<std::uint64_t>(text.substr(0, digits));
  if (!number) return std::nullopt;
  const std::string_view suffix = text.substr(digits);
  static constexpr struct {
    std::string_view name;
    int shift;
  } kUnits[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  for (const auto& unit : kUnits) {
    if (suffix == unit.name) return gpumem::CheckedMul(*number, std::uint64_t{1} << unit.shift);
  }
  return std::nullopt;
}

std::string FormatBytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace simcuda
