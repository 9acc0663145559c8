#include "daemon/arena/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;
using Clock = std::chrono::steady_clock;

// More than any machine's devices need; a longer answer is not a probe's.
constexpr std::size_t kLongestAnswer = 1u << 20;

struct Stream {
  UniqueFd fd;
  std::string text;
};

// Reads what is there; closes the stream at its end.
void ReadSome(Stream* stream) {
  char buffer[4096];
  const ssize_t got = ::read(stream->fd.get(), buffer, sizeof(buffer));
  if (got > 0 && stream->text.size() < kLongestAnswer) {
    stream->text.append(buffer, static_cast<std::size_t>(got));
  } else if (got == 0 || (got < 0 && errno != EINTR)) {
    stream->fd.reset();
  }
}

// Reads both streams to their ends. False when the deadline passed first.
bool ReadBoth(Stream* out, Stream* err, Clock::time_point deadline) {
  while (out->fd || err->fd) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd polls[2] = {{out->fd.get(), POLLIN, 0}, {err->fd.get(), POLLIN, 0}};  // poll skips negative fds
    if (::poll(polls, 2, static_cast<int>(left.count())) <= 0) continue;
    if (polls[0].revents != 0) ReadSome(out);
    if (polls[1].revents != 0) ReadSome(err);
  }
  return true;
}

// False when the deadline passed first.
bool WaitForEnd(const ChildProcess& child, Clock::time_point deadline, std::string* how) {
  while (!TryReap(child.pidfd.get(), how)) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    pollfd poll{child.pidfd.get(), POLLIN, 0};
    ::poll(&poll, 1, static_cast<int>(left.count()));
  }
  return true;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

absl::StatusOr<ProbeResult> ParseProbe(const std::string& json) {
  const nlohmann::json all = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  ProbeResult result;
  // The accessors throw for a missing or wrongly typed member.
  try {
    const nlohmann::json& driver = all.at("driver");
    result.simulated = driver.at("kind").get<std::string>() == "sim";
    result.driver_version = driver.at("version").get<int>();
    result.driver_path = driver.at("path").get<std::string>();
    for (const nlohmann::json& one : all.at("devices")) {
      const std::string text = one.at("uuid").get<std::string>();
      const std::optional<DeviceUuid> uuid = DeviceUuid::Parse(text);
      if (!uuid) return core::Error(Reason::INTERNAL, absl::StrCat("the probe names a device '", text, "'"));
      ProbedDevice device;
      device.uuid = *uuid;
      device.name = one.at("name").get<std::string>();
      device.pci_bus_id = one.at("pci_bus_id").get<std::string>();
      device.total_bytes = one.at("total_bytes").get<std::uint64_t>();
      device.granularity_bytes = one.at("granularity_bytes").get<std::uint64_t>();
      device.vmm_supported = one.at("vmm_supported").get<bool>();
      device.posix_fd_supported = one.at("posix_fd_supported").get<bool>();
      result.devices.push_back(std::move(device));
    }
  } catch (const nlohmann::json::exception& error) {
    return core::Error(Reason::INTERNAL, absl::StrCat("the probe's answer cannot be read: ", error.what()));
  }
  return result;
}

absl::StatusOr<ProbeResult> ProbeDevices(const ProbeOptions& options) {
  int out_pipe[2];
  int err_pipe[2];
  if (::pipe2(out_pipe, O_CLOEXEC) != 0) {
    return core::Error(Reason::DESCRIPTORS, absl::StrCat("pipe: ", std::strerror(errno)));
  }
  Stream out{UniqueFd(out_pipe[0]), ""};
  UniqueFd out_end(out_pipe[1]);
  if (::pipe2(err_pipe, O_CLOEXEC) != 0) {
    return core::Error(Reason::DESCRIPTORS, absl::StrCat("pipe: ", std::strerror(errno)));
  }
  Stream err{UniqueFd(err_pipe[0]), ""};
  UniqueFd err_end(err_pipe[1]);

  SpawnOptions spawn;
  spawn.path = options.executable;
  spawn.arguments = {"gpumemd", "arena", "--probe", absl::StrCat("--driver=", options.driver)};
  if (!options.libcuda.empty()) spawn.arguments.push_back(absl::StrCat("--libcuda=", options.libcuda));
  spawn.set_environment = options.environment;
  spawn.unset_environment = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
  spawn.stdout_fd = out_end.get();
  spawn.stderr_fd = err_end.get();
  ChildProcess child;
  if (const int error = Spawn(spawn, &child); error != 0) {
    return core::Error(Reason::INTERNAL,
                       absl::StrCat("cannot start ", options.executable, " arena --probe: ", std::strerror(error)));
  }
  out_end.reset();
  err_end.reset();

  const Clock::time_point deadline = Clock::now() + options.timeout;
  std::string how;
  if (!ReadBoth(&out, &err, deadline) || !WaitForEnd(child, deadline, &how)) {
    SendSignal(child.pidfd.get(), SIGKILL);
    return core::Error(Reason::DRIVER_FAILED,
                       absl::StrCat("the driver did not say within ", options.timeout.count(),
                                    " ms which devices there are; it may hang: look at the kernel's log"));
  }
  if (how != "exit code 0") {
    const std::string line = FirstLine(err.text);
    return core::Error(Reason::NO_DRIVER, line.empty() ? absl::StrCat("arena --probe ended with ", how) : line);
  }
  return ParseProbe(out.text);
}

}  // namespace gpumem::arena
