// cuda/sim/close_shim.cc: libsimcuda-close.so, for LD_PRELOAD into a process that has no CUDA: its closes of exported
// descriptors pass the fault point "close".
//
// On hardware the last close of an exported descriptor is a driver call and may block for long, in a process that never
// loaded the driver. A close of a file on tmpfs does not, so a test that needs it preloads this. Whether a close is the
// last one cannot be seen from inside a process: a rule means every close of an exported descriptor, by its number.
#include <dlfcn.h>
#include <unistd.h>

#include <optional>
#include <string_view>

#include "base/device_uuid.h"
#include "cuda/sim/faults.h"

namespace {

// The device whose export `fd` is: its file is <state directory>/<device uuid>/<16 hex>/fd-<16 hex>.
std::optional<gpumem::DeviceUuid> ExportedFrom(int fd) {
  char link[64];
  char target[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, target, sizeof target);
  constexpr std::size_t kUuid = 40;
  constexpr std::size_t kRest = 1 + 16 + 1 + 3 + 16;
  if (length < static_cast<ssize_t>(kUuid + kRest)) return std::nullopt;
  const std::string_view path(target, static_cast<std::size_t>(length));
  const std::string_view rest = path.substr(path.size() - kRest);
  if (rest[0] != '/' || rest.substr(17, 4) != "/fd-") return std::nullopt;
  return gpumem::DeviceUuid::Parse(path.substr(path.size() - kRest - kUuid, kUuid));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int close(int fd) {
  static const auto real = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "close"));
  thread_local bool inside = false;  // opening the machine and reading its settings close files
  bool kill_after = false;
  if (!inside) {
    inside = true;
    const auto device = simcuda::NothingIsSet() ? std::nullopt : ExportedFrom(fd);
    if (device) kill_after = simcuda::PassFaultPoint("close", &*device).kill_after;
    inside = false;
  }
  const int result = real(fd);
  if (kill_after) simcuda::KillThisProcess();
  return result;
}
