#include "daemon/arena/arena_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "daemon/arena/arena_server.h"
#include "daemon/arena/driver_memory.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;

void Say(const std::string& device, const std::string& message) {
  std::fprintf(stderr, "arena %s: %s\n", device.c_str(), message.c_str());
}

// The socket from the front, or nothing when this is not a child of one.
UniqueFd TakeSocket() {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(kArenaSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET) return {};
  ::fcntl(kArenaSocketFd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(kArenaSocketFd);
}

absl::StatusOr<cuda::DeviceInfo> FindUsable(const OpenedDriver& opened, const DeviceUuid& uuid) {
  const std::optional<cuda::DeviceInfo> device = cuda::FindDevice(opened.devices, uuid);
  if (!device) {
    return core::Error(Reason::UNKNOWN_DEVICE,
                       absl::StrCat("the driver shows no device ", uuid.ToString(), " among ", opened.devices.size(),
                                    "; `gpumemd arena --probe` lists what it shows"));
  }
  if (!device->vmm_supported || !device->posix_fd_supported) {
    return core::Error(Reason::DRIVER_FAILED,
                       absl::StrCat("device ", uuid.ToString(), " (", device->name, ") cannot be managed: ",
                                    device->vmm_supported ? "its memory cannot be exported as file descriptors"
                                                          : "it has no virtual memory management"));
  }
  return *device;
}

HelloBody HelloOf(const cuda::Driver& driver, const cuda::DeviceInfo& device, const DeviceUuid& asked,
                  bool memory_readings) {
  HelloBody hello;
  hello.driver = driver.is_simulated() ? WireDriver::kSim : WireDriver::kCuda;
  hello.driver_version = driver.version();
  std::copy(asked.raw().begin(), asked.raw().end(), hello.device_raw);
  hello.device_kind = static_cast<std::uint32_t>(asked.kind());
  hello.memory_readings = memory_readings ? 1 : 0;
  hello.total_bytes = device.total_bytes;
  hello.granularity = device.granularity_bytes;
  SetText(hello.name, device.name);
  return hello;
}

}  // namespace

int ArenaMain(const ArenaFlags& flags) {
  ::prctl(PR_SET_NAME, "gpumemd-arena");
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  const std::optional<DeviceUuid> uuid = DeviceUuid::Parse(flags.device);
  if (!uuid) {
    Say(flags.device, "--device is not a UUID of the form GPU-8-4-4-4-12 or MIG-8-4-4-4-12");
    return 1;
  }
  UniqueFd socket = TakeSocket();
  if (!socket) {
    Say(flags.device, "descriptor 3 is not the front's socket: an arena is started by `gpumemd`, not by hand");
    return 1;
  }
  RaiseDescriptorLimit();

  // What fails before the server runs is told to the front by a server without memory.
  const auto refuse = [&](const absl::Status& why) {
    Say(flags.device, std::string(why.message()));
    ArenaServer(std::move(socket), nullptr).SendFailed(why);
    return 1;
  };
  const absl::StatusOr<OpenedDriver> opened = OpenDriver(flags.driver, flags.libcuda);
  if (!opened.ok()) return refuse(opened.status());
  const absl::StatusOr<cuda::DeviceInfo> device = FindUsable(*opened, *uuid);
  if (!device.ok()) return refuse(device.status());
  std::string why_no_nvml;
  const std::unique_ptr<cuda::Nvml> nvml = OpenNvml(*opened->driver, &why_no_nvml);
  if (!nvml) Say(flags.device, absl::StrCat("no memory readings: ", why_no_nvml));

  DriverMemory memory(opened->driver.get(), nvml.get(), *device, why_no_nvml);
  ArenaServer server(std::move(socket), &memory);
  const absl::Status served = server.Serve(HelloOf(*opened->driver, *device, *uuid, nvml != nullptr));
  if (served.ok()) return 0;
  Say(flags.device, std::string(served.message()));
  server.SendFailed(served);
  return 1;
}

int ProbeMain(const ArenaFlags& flags) {
  const absl::StatusOr<OpenedDriver> opened = OpenDriver(flags.driver, flags.libcuda);
  if (!opened.ok()) {
    std::fprintf(stderr, "arena probe: %s\n", std::string(opened.status().message()).c_str());
    return 1;
  }
  nlohmann::json devices = nlohmann::json::array();
  for (const cuda::DeviceInfo& device : opened->devices) {
    devices.push_back({{"uuid", device.uuid.ToString()},
                       {"name", device.name},
                       {"pci_bus_id", device.pci_bus_id},
                       {"total_bytes", device.total_bytes},
                       {"granularity_bytes", device.granularity_bytes},
                       {"vmm_supported", device.vmm_supported},
                       {"posix_fd_supported", device.posix_fd_supported}});
  }
  const cuda::Driver& driver = *opened->driver;
  const nlohmann::json all = {
      {"driver",
       {{"kind", driver.is_simulated() ? "sim" : "cuda"}, {"version", driver.version()}, {"path", driver.path()}}},
      {"devices", std::move(devices)}};
  std::printf("%s\n", all.dump().c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace gpumem::arena
