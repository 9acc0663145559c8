// daemon/config.cc: see config.h.
#include "daemon/config.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/checked.h"
#include "daemon/text.h"
#include "toml++/toml.h"

namespace gpumem {
namespace {

using core::Bytes;

std::string_view WithoutLeadingSpaces(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

absl::Status Invalid(std::string_view what) {
  return absl::InvalidArgumentError(absl::string_view(what.data(), what.size()));
}

std::string Joined(const std::vector<std::string_view>& words) {
  std::string text;
  for (const std::string_view word : words) text += Cat(text.empty() ? "" : ", ", word);
  return text;
}

// --- the table of settings ----------------------------------------------------------------------------------------

enum class Kind { kText, kSize, kDuration };

struct Setting {
  std::string_view key;    // in the file; a dot separates table and key
  std::string_view flag;   // with its dashes
  std::string_view value;  // how help calls the value
  std::string_view help;
  Kind kind;
  // Takes the value as text and says what is wrong with it.
  std::function<absl::Status(Config*, std::string_view)> set;
  // The value as text; empty when it is not set.
  std::function<std::string(const Config&)> get;
};

std::string Quoted(std::string_view text) { return Cat("'", text, "'"); }

Setting TextSetting(std::string_view key, std::string_view flag, std::string_view value, std::string_view help,
                    std::string Config::*field) {
  return {key,
          flag,
          value,
          help,
          Kind::kText,
          [field](Config* config, std::string_view text) {
            config->*field = std::string(text);
            return absl::OkStatus();
          },
          [field](const Config& config) { return config.*field; }};
}

Setting ChoiceSetting(std::string_view key, std::string_view flag, std::vector<std::string_view> choices,
                      std::string_view help, std::string Config::*field) {
  Setting setting = TextSetting(key, flag, "WORD", help, field);
  setting.set = [field, choices = std::move(choices)](Config* config, std::string_view text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      const std::string_view near = Nearest(text, choices);
      return Invalid(Cat(Quoted(text), " is none of ", Joined(choices),
                         near.empty() ? "" : Cat("; did you mean ", Quoted(near), "?")));
    }
    config->*field = std::string(text);
    return absl::OkStatus();
  };
  return setting;
}

Setting PathSetting(std::string_view key, std::string_view flag, std::string_view help, std::string Config::*field) {
  Setting setting = TextSetting(key, flag, "PATH", help, field);
  setting.set = [field](Config* config, std::string_view text) {
    if (text.empty() || text.front() != '/') {
      return Invalid(Cat(Quoted(text), " is not an absolute path"));
    }
    while (text.size() > 1 && text.back() == '/') text.remove_suffix(1);
    config->*field = std::string(text);
    return absl::OkStatus();
  };
  return setting;
}

Setting DurationSetting(std::string_view key, std::string_view flag, std::string_view help,
                        absl::Duration Config::*field) {
  return {key,
          flag,
          "TIME",
          help,
          Kind::kDuration,
          [field](Config* config, std::string_view text) {
            absl::Duration duration;
            if (!absl::ParseDuration(std::string(text), &duration) || duration < absl::ZeroDuration() ||
                duration > absl::Hours(1)) {
              return Invalid(Cat(Quoted(text), " is not a time from 0s to 1h, such as 500ms, 2s or 1m30s"));
            }
            config->*field = duration;
            return absl::OkStatus();
          },
          [field](const Config& config) { return absl::FormatDuration(config.*field); }};
}

// The shortest exact text: "512MiB", or plain bytes.
std::string SizeText(Bytes bytes) {
  std::uint64_t value = bytes.value();
  static constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (value != 0 && value % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return Cat(value, kUnits[unit]);
}

template <typename Field>
Setting SizeSetting(std::string_view key, std::string_view flag, std::string_view help, Field Config::*field) {
  return {key,
          flag,
          "SIZE",
          help,
          Kind::kSize,
          [field](Config* config, std::string_view text) {
            absl::StatusOr<Bytes> size = ParseSize(text);
            if (!size.ok()) return size.status();
            config->*field = *size;
            return absl::OkStatus();
          },
          [field](const Config& config) {
            const std::optional<Bytes> size(config.*field);
            return size ? SizeText(*size) : std::string();
          }};
}

const std::vector<Setting>& Settings() {
  static const auto* const settings = new std::vector<Setting>{
      ChoiceSetting("driver", "--driver", {"auto", "cuda", "sim"},
                    "the driver: cuda is libcuda.so.1; sim is the simulated one; auto is sim if a simulated node is "
                    "named (SIMCUDA_DIR in the environment, or sim.dir), else cuda",
                    &Config::driver),
      PathSetting("cuda.library", "--libcuda", "libcuda.so.1 to load with driver cuda, if the loader would not find it",
                  &Config::cuda_library),
      PathSetting("sim.dir", "--sim-dir", "the simulated node that `simgpu init` made; else SIMCUDA_DIR",
                  &Config::sim_dir),
      PathSetting("sim.library_dir", "--sim-library-dir",
                  "with driver sim: where its libcuda.so.1 is; else GPUMEM_SIM_LIBRARY_DIR, else beside this program",
                  &Config::sim_library_dir),
      PathSetting("socket_dir", "--socket-dir", "directory of the workers' sockets, control.sock and handles.sock",
                  &Config::socket_dir),
      PathSetting(
          "admin_dir", "--admin-dir",
          "directory of admin.sock, never to be given to workers; else the socket directory with -admin appended",
          &Config::admin_dir),
      TextSetting("socket_group", "--socket-group", "GROUP",
                  "group whose members may connect as workers; else everyone on the node may", &Config::socket_group),
      TextSetting("admin_group", "--admin-group", "GROUP",
                  "group whose members are operators, besides root and the daemon's uid", &Config::admin_group),
      ChoiceSetting(
          "keeper", "--keeper", {"spawn", "connect"},
          "spawn: start the keeper if none answers, and leave it when stopping; connect: one is run by someone "
          "else (its own systemd unit)",
          &Config::keeper),
      PathSetting("keeper_socket", "--keeper-socket", "the keeper's socket; else keeper.sock in admin_dir",
                  &Config::keeper_socket),
      ChoiceSetting("log.format", "--log-format", {"auto", "human", "json"},
                    "auto is journald under systemd, else human", &Config::log_format),
      ChoiceSetting("log.level", "--log-level", {"debug", "info", "warning", "error"}, "the least that is logged",
                    &Config::log_level),
      SizeSetting("tenant.limit", "--tenant-limit", "most bytes that all workers together may hold on each device",
                  &Config::tenant_limit),
      SizeSetting("device.limit", "--device-limit",
                  "most bytes of each device that the daemon manages, headroom included; else all of it",
                  &Config::device_limit),
      SizeSetting("device.headroom", "--device-headroom",
                  "bytes of each device that are never granted: room for CUDA contexts and libraries",
                  &Config::device_headroom),
      DurationSetting("start_grace", "--start-grace",
                      "say READY after this at the latest, even if an arena or the keeper is not up yet",
                      &Config::start_grace),
      DurationSetting("stop_grace", "--stop-grace", "how long calls in flight may take to finish on SIGTERM",
                      &Config::stop_grace),
  };
  return *settings;
}

const Setting* FindKey(std::string_view key) {
  for (const Setting& setting : Settings()) {
    if (setting.key == key) return &setting;
  }
  return nullptr;
}

// --- the file -------------------------------------------------------------------------------------------------------

// Walks one file's tree; errors name file:line.
class TomlReader {
 public:
  TomlReader(std::string_view name, Config* config) : name_(name), config_(config) {}

  absl::Status ReadTable(const toml::table& table, const std::string& prefix) {
    for (const auto& [key, node] : table) {
      const std::string path = prefix.empty() ? std::string(key.str()) : Cat(prefix, ".", key.str());
      if (absl::Status s = ReadNode(path, node); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status At(const toml::node& node, std::string_view what) const {
    return Invalid(Cat(name_, ":", node.source().begin.line, ": ", what));
  }

  absl::Status ReadNode(const std::string& path, const toml::node& node) {
    if (path == "devices") return ReadDevices(node);
    if (const Setting* setting = FindKey(path)) return ReadValue(*setting, node);
    if (const toml::table* table = node.as_table(); table != nullptr && IsTable(path)) return ReadTable(*table, path);
    if (IsTable(path)) return At(node, Cat(Quoted(path), " is a table: write [", path, "] and its keys below"));
    return UnknownKey(path, node);
  }

  static bool IsTable(std::string_view path) {
    return std::any_of(Settings().begin(), Settings().end(), [&](const Setting& setting) {
      return setting.key.size() > path.size() && setting.key.substr(0, path.size()) == path &&
             setting.key[path.size()] == '.';
    });
  }

  absl::Status UnknownKey(const std::string& path, const toml::node& node) const {
    std::vector<std::string_view> known = {"devices"};
    for (const Setting& setting : Settings()) {
      known.push_back(setting.key);
      // A mistake in a table's name is a mistake in the part before the dot.
      if (const auto dot = setting.key.find('.'); dot != std::string_view::npos) {
        known.push_back(setting.key.substr(0, dot));
      }
    }
    const std::string_view near = Nearest(path, known);
    return At(node, Cat("unknown key ", Quoted(path),
                        near.empty() ? "; `gpumemd --print-config` lists the valid ones"
                                     : Cat("; did you mean ", Quoted(near), "?")));
  }

  absl::Status ReadValue(const Setting& setting, const toml::node& node) {
    absl::StatusOr<std::string> text = ValueText(setting.key, setting.kind, node);
    if (!text.ok()) return text.status();
    if (absl::Status s = setting.set(config_, *text); !s.ok()) {
      return At(node, Cat(setting.key, ": ", s.message()));
    }
    return absl::OkStatus();
  }

  // The value as text, if it is of the type that this kind of setting takes.
  absl::StatusOr<std::string> ValueText(std::string_view key, Kind kind, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer(); number != nullptr && kind == Kind::kSize) {
      return Cat(number->get());
    }
    const std::string_view wanted = kind == Kind::kSize       ? "a size: a text such as \"64GiB\", or a number of bytes"
                                    : kind == Kind::kDuration ? "a time as a text, such as \"2s\""
                                                              : "a text in quotes";
    std::ostringstream type;
    type << node.type();
    return At(node, Cat(key, ": this is of type ", type.str(), "; it must be ", wanted));
  }

  absl::Status ReadDevices(const toml::node& node) {
    const toml::array* array = node.as_array();
    if (array == nullptr || !array->is_array_of_tables()) {
      return At(node, "devices: write one [[devices]] table for each device");
    }
    for (const toml::node& entry : *array) {
      if (absl::Status s = ReadDevice(*entry.as_table()); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status ReadDevice(const toml::table& table) {
    DeviceOverride device;
    bool named = false;
    for (const auto& [key, node] : table) {
      if (key == "uuid") {
        absl::StatusOr<std::string> text = ValueText("devices.uuid", Kind::kText, node);
        if (!text.ok()) return text.status();
        const std::optional<DeviceUuid> uuid = DeviceUuid::Parse(*text);
        if (!uuid) {
          return At(node, Cat("devices.uuid: ", Quoted(*text),
                              " is not a device's UUID: GPU- or MIG- and 8-4-4-4-12 hex digits "
                              "(nvidia-smi -L lists them)"));
        }
        device.device = *uuid;
        named = true;
      } else if (key == "limit" || key == "headroom") {
        const std::string path = Cat("devices.", key.str());
        absl::StatusOr<std::string> text = ValueText(path, Kind::kSize, node);
        if (!text.ok()) return text.status();
        absl::StatusOr<Bytes> size = ParseSize(*text);
        if (!size.ok()) return At(node, Cat(path, ": ", size.status().message()));
        (key == "limit" ? device.limit : device.headroom) = *size;
      } else {
        const std::string_view near = Nearest(key.str(), {"uuid", "limit", "headroom"});
        return At(node, Cat("unknown key ", Quoted(Cat("devices.", key.str())),
                            near.empty() ? "; valid are uuid, limit and headroom"
                                         : Cat("; did you mean ", Quoted(near), "?")));
      }
    }
    if (!named) return At(table, "this [[devices]] table has no uuid");
    for (const DeviceOverride& other : config_->devices) {
      if (other.device == device.device) {
        return At(table, Cat("there is a [[devices]] table for ", device.device.ToString(), " already"));
      }
    }
    config_->devices.push_back(device);
    return absl::OkStatus();
  }

  const std::string_view name_;
  Config* const config_;
};

// --- the command line -----------------------------------------------------------------------------------------------

// CLI11's view of the flags: what was given, as text. Applied after the file.
struct RawFlags {
  std::string config_file;
  std::vector<std::string> values;  // one for each of Settings()
  std::vector<CLI::Option*> options;
  bool check = false;
  bool print = false;
  bool help = false;
  bool version = false;
};

void DeclareFlags(CLI::App* app, RawFlags* raw) {
  app->set_help_flag();
  app->add_flag("--help,-h", raw->help);
  app->add_flag("--version", raw->version);
  app->add_flag("--check-config", raw->check);
  app->add_flag("--print-config", raw->print);
  app->add_option("--config", raw->config_file);
  raw->values.resize(Settings().size());
  for (std::size_t i = 0; i < Settings().size(); ++i) {
    raw->options.push_back(app->add_option(std::string(Settings()[i].flag), raw->values[i]));
  }
  app->allow_extras();
}

absl::Status CheckLeftOver(const std::vector<std::string>& left) {
  if (left.empty()) return absl::OkStatus();
  const std::string word = left.front().substr(0, left.front().find('='));
  std::vector<std::string_view> known = {"--help",   "--version", "--check-config", "--print-config",
                                         "--config", "arena",     "keeper"};
  for (const Setting& setting : Settings()) known.push_back(setting.flag);
  const std::string_view near = Nearest(word, known);
  return Invalid(
      Cat("unknown argument ", Quoted(word),
          near.empty() ? "; `gpumemd --help` lists the valid ones" : Cat("; did you mean ", Quoted(near), "?")));
}

absl::Status ReadFile(const std::string& path, Config* config) {
  std::ifstream in(path);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) {
    return Invalid(
        Cat("cannot read the config file ", path, "; give one that exists with --config, or leave --config out"));
  }
  return ApplyToml(text.str(), path, config);
}

// What single settings cannot show.
absl::Status CheckTogether(const Config& config) {
  const std::string admin = config.admin_directory() + "/";
  if (admin.substr(0, config.socket_dir.size() + 1) == config.socket_dir + "/") {
    return Invalid(Cat("admin_dir ", config.admin_directory(), " is the same as or inside socket_dir ",
                       config.socket_dir,
                       "; workers' containers get socket_dir, and must never get the admin socket. Choose "
                       "another admin_dir"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Bytes> ParseSize(std::string_view text) {
  const auto digits = static_cast<std::size_t>(
      std::find_if_not(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }) - text.begin());
  const std::string_view unit = WithoutLeadingSpaces(text.substr(digits));
  static constexpr std::pair<std::string_view, std::uint64_t> kUnits[] = {
      {"", 1},
      {"B", 1},
      {"KiB", 1ull << 10},
      {"MiB", 1ull << 20},
      {"GiB", 1ull << 30},
      {"TiB", 1ull << 40},
      {"KB", 1000},
      {"MB", 1000'000},
      {"GB", 1000'000'000},
      {"TB", 1000'000'000'000},
  };
  const auto* const found =
      std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& known) { return known.first == unit; });
  if (digits == 0 || found == std::end(kUnits)) {
    return Invalid(Cat(Quoted(text),
                       " is not a size: write whole bytes, or a whole number and one of B, KiB, MiB, GiB, TiB, "
                       "KB, MB, GB, TB, such as 64GiB"));
  }
  std::uint64_t number = 0;
  std::optional<std::uint64_t> bytes;
  if (std::from_chars(text.data(), text.data() + digits, number).ec == std::errc())
    bytes = CheckedMul(number, found->second);
  if (!bytes) return Invalid(Cat(Quoted(text), " is more than 64 bits of bytes can say"));
  return Bytes(*bytes);
}

std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j <= b.size(); ++j) {
        const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
      }
    }
    return row.back();
  };
  std::string_view best;
  // Further away than half of the word is another word, not a slip; two letters in the wrong order (2) always are one.
  std::size_t least = std::max<std::size_t>(word.size() / 2, 2) + 1;
  for (const std::string_view candidate : candidates) {
    if (const std::size_t d = distance(word, candidate); d < least) {
      least = d;
      best = candidate;
    }
  }
  return best;
}

absl::Status ApplyToml(std::string_view text, std::string_view name, Config* config) {
  // Settled on a copy, so that a file with a mistake changes nothing.
  Config changed = *config;
  try {
    const toml::table table = toml::parse(text, name);
    if (absl::Status s = TomlReader(name, &changed).ReadTable(table, ""); !s.ok()) return s;
  } catch (const toml::parse_error& error) {
    return Invalid(Cat(name, ":", error.source().begin.line, ": not valid TOML: ", error.description()));
  }
  *config = std::move(changed);
  return absl::OkStatus();
}

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CLI::App app;
  RawFlags raw;
  DeclareFlags(&app, &raw);
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // the order that CLI11 takes
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    return Invalid(Cat(error.what(), "; `gpumemd --help` shows how each flag is used"));
  }
  CommandLine line;
  if (raw.help || raw.version) {
    line.action = raw.help ? Action::kHelp : Action::kVersion;
    return line;
  }
  if (absl::Status s = CheckLeftOver(app.remaining()); !s.ok()) return s;

  line.config_file = raw.config_file;
  if (!raw.config_file.empty()) {
    if (absl::Status s = ReadFile(raw.config_file, &line.config); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < Settings().size(); ++i) {
    if (raw.options[i]->count() == 0) continue;
    const Setting& setting = Settings()[i];
    if (absl::Status s = setting.set(&line.config, raw.values[i]); !s.ok()) {
      return Invalid(Cat(setting.flag, ": ", s.message()));
    }
  }
  if (absl::Status s = CheckTogether(line.config); !s.ok()) return s;
  line.action = raw.print ? Action::kPrintConfig : raw.check ? Action::kCheckConfig : Action::kRun;
  return line;
}

std::string PrintConfig(const Config& config) {
  std::string text;
  std::string table;
  const auto print = [&](const Setting& setting) {
    const auto dot = setting.key.find('.');
    const std::string in_table(dot == std::string_view::npos ? "" : setting.key.substr(0, dot));
    if (in_table != table) text += Cat("[", in_table, "]\n");
    table = in_table;
    const std::string_view key = dot == std::string_view::npos ? setting.key : setting.key.substr(dot + 1);
    const std::string value = setting.get(config);
    text += Cat("# ", setting.help, "\n", value.empty() ? "# " : "", key, " = \"", value, "\"\n\n");
  };
  // TOML wants the keys without a table first.
  for (const Setting& setting : Settings()) {
    if (setting.key.find('.') == std::string_view::npos) print(setting);
  }
  for (const Setting& setting : Settings()) {
    if (setting.key.find('.') != std::string_view::npos) print(setting);
  }
  for (const DeviceOverride& device : config.devices) {
    text += Cat("[[devices]]\nuuid = \"", device.device.ToString(), "\"\n");
    if (device.limit) text += Cat("limit = \"", SizeText(*device.limit), "\"\n");
    if (device.headroom) text += Cat("headroom = \"", SizeText(*device.headroom), "\"\n");
    text += Cat("\n");
  }
  return text;
}

std::string UsageText() {
  std::string text =
      "gpumemd: owns the GPU memory of this node, so that it outlives the workers that use it.\n"
      "\n"
      "Usage:\n"
      "  gpumemd [flags]          run in the foreground until SIGTERM or SIGINT\n"
      "  gpumemd keeper [flags]   run the process that holds durable memory (gpumemd keeper --help)\n"
      "  gpumemd arena [flags]    one device's driver process; gpumemd starts these itself\n"
      "\n"
      "Flags, with the config file's key and the built-in value:\n"
      "  --config FILE            a TOML file; flags win over it\n"
      "  --check-config           read the file and the flags, say whether they are valid, and leave\n"
      "  --print-config           print what they amount to, as a config file, and leave\n"
      "  --version, --help\n";
  const Config builtin;
  for (const Setting& setting : Settings()) {
    const std::string value = setting.get(builtin);
    text += Cat("  ", setting.flag, " ", setting.value, "\n      ", setting.help, "\n      [key ", setting.key,
                value.empty() ? "" : Cat("; built-in ", value), "]\n");
  }
  text +=
      Cat("\nThe file may also have a [[devices]] table for a device: uuid, and limit and headroom for it "
          "alone.\n"
          "\nTry it without a GPU:\n"
          "  simgpu init --dir /dev/shm/node --gpus 2 --memory 80GiB\n"
          "  SIMCUDA_DIR=/dev/shm/node gpumemd --socket-dir /tmp/gpumemd\n");
  return text;
}

}  // namespace gpumem
