// daemon/config.h: what gpumemd was told: one table of settings that feeds the TOML file, the flags and the help text.
//
// A flag wins over the file, the file over the built-in value. Reading changes nothing anywhere; the first mistake is
// an INVALID_ARGUMENT status that names the place (file:line or flag), what stood there and what may stand there; an
// unknown key or flag comes with the nearest valid one. Sizes: an integer is bytes, a text is a number with a unit:
// B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000). Not thread-safe; pure but for the read of
// the file. May call: core's types, Abseil, toml++, CLI11.
#ifndef GPUMEM_DAEMON_CONFIG_H_
#define GPUMEM_DAEMON_CONFIG_H_

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device_uuid.h"
#include "daemon/core/types.h"

namespace gpumem {

// What a [[devices]] table says of one device.
struct DeviceOverride {
  DeviceUuid device;
  std::optional<core::Bytes> limit;
  std::optional<core::Bytes> headroom;
};

struct Config {
  std::string driver = "auto";  // auto, cuda, sim
  std::string cuda_library;     // path of libcuda.so.1; empty: the system's loader finds it
  std::string sim_dir;          // directory of the simulated node; empty: $SIMCUDA_DIR
  std::string sim_library_dir;  // directory of the simulated libcuda.so.1; empty: see driver_choice.h
  std::string socket_dir = "/run/gpumemd";
  std::string admin_dir;                    // empty: socket_dir with "-admin" appended
  std::string socket_group;                 // only its members may open sessions; empty: everyone
  std::string admin_group;                  // members may use the admin socket; empty: root and the daemon's uid only
  std::string keeper = "spawn";             // spawn: as a child that outlives the daemon; connect: run by someone else
  std::string keeper_socket;                // empty: keeper.sock beside admin.sock
  std::string log_format = "auto";          // auto (journald under systemd, else human), human, json
  std::string log_level = "info";           // debug, info, warning, error
  std::optional<core::Bytes> tenant_limit;  // of the one tenant, on each device
  std::optional<core::Bytes> device_limit;  // most bytes to hand out on each device, headroom included
  core::Bytes device_headroom{512ull << 20};  // kept free on each device, for contexts and libraries
  std::vector<DeviceOverride> devices;
  absl::Duration start_grace = absl::Seconds(30);  // READY is told after this at the latest
  absl::Duration stop_grace = absl::Seconds(2);    // calls in flight may finish for this long

  std::string control_socket() const { return socket_dir + "/control.sock"; }
  std::string handle_socket() const { return socket_dir + "/handles.sock"; }
  std::string admin_directory() const { return admin_dir.empty() ? socket_dir + "-admin" : admin_dir; }
  std::string admin_socket() const { return admin_directory() + "/admin.sock"; }
  std::string keeper_socket_path() const {
    return keeper_socket.empty() ? admin_directory() + "/keeper.sock" : keeper_socket;
  }
};

enum class Action { kRun, kCheckConfig, kPrintConfig, kHelp, kVersion };

struct CommandLine {
  Action action = Action::kRun;
  Config config;
  std::string config_file;  // empty: none was given
};

// The whole of gpumemd's own command line (not those of its subcommands). kHelp and kVersion read no file.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

// `text` as a config file; `name` is what errors call it. Settings that it does not have keep the values of `*config`.
absl::Status ApplyToml(std::string_view text, std::string_view name, Config* config);

// A TOML file that says the same as `config`, each setting with its meaning.
std::string PrintConfig(const Config& config);

std::string UsageText();

// "80GiB", "512 MiB", "1048576". INVALID_ARGUMENT says what is wrong with it.
absl::StatusOr<core::Bytes> ParseSize(std::string_view text);

// The candidate with the smallest edit distance to `word`, when it is near enough to be meant; empty otherwise.
std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_CONFIG_H_
