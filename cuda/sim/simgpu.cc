// cuda/sim/simgpu.cc: makes simulated machines and shows what is physically in them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cuda/sim/config.h"
#include "cuda/sim/simgpu_settings.h"
#include "cuda/sim/store.h"

namespace {

using simcuda::FormatBytes;

int Fail(const std::string& error) {
  std::fprintf(stderr, "simgpu: %s\n", error.c_str());
  return 1;
}

int Init(const std::string& dir, int count, const std::string& memory, int mig) {
  const auto bytes = simcuda::ParseBytes(memory);
  if (!bytes) return Fail("--memory '" + memory + "' is no size; write for example 80GiB or 512MiB");
  simcuda::Config config = simcuda::MakeConfig(count, *bytes);
  if (mig > 0) simcuda::DivideIntoMig(mig, &config);
  std::string error;
  if (!simcuda::InitStateDir(dir, config, &error)) return Fail(error);
  std::error_code ignored;
  const std::string absolute = std::filesystem::absolute(dir, ignored).string();
  std::printf("export %s=%s\n", simcuda::kDirVariable, absolute.c_str());
  for (const simcuda::DeviceConfig& device : config.devices) {
    std::printf("# %s  %s  %s\n", device.uuid.ToString().c_str(), device.name.c_str(),
                FormatBytes(device.capacity_bytes).c_str());
  }
  return 0;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  return out + "\"";
}

void PrintJson(const std::vector<simcuda::DeviceTruth>& devices) {
  std::string out = "{\"devices\":[";
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const simcuda::DeviceTruth& device = devices[i];
    out += std::string(i > 0 ? "," : "") + "{\"uuid\":\"" + device.config.uuid.ToString() +
           "\",\"name\":" + Quoted(device.config.name) +
           ",\"capacity_bytes\":" + std::to_string(device.config.capacity_bytes) +
           ",\"physical_bytes\":" + std::to_string(device.physical_bytes) + ",\"objects\":[";
    for (std::size_t j = 0; j < device.objects.size(); ++j) {
      const simcuda::ObjectTruth& object = device.objects[j];
      out += std::string(j > 0 ? "," : "") + "{\"id\":" + std::to_string(object.id) +
             ",\"bytes\":" + std::to_string(object.bytes) +
             ",\"handle_held\":" + (object.handle_held ? "true" : "false") +
             ",\"exported_fds\":" + std::to_string(object.exported_fds) + "}";
    }
    out += "]}";
  }
  std::printf("%s]}\n", out.c_str());
}

// Who refers to memory: by object, the processes that have it mapped or hold a descriptor of it. What /proc does not
// show to this user, and a descriptor in flight in a socket, has no line.
using Referrers = std::map<std::string, std::set<std::string>>;  // by "<uuid>/<object id in hex>"

Referrers FindReferrers(const std::string& dir) {
  Referrers found;
  std::error_code ignored;
  const std::string root = std::filesystem::canonical(dir, ignored).string() + "/";
  const auto note = [&](const std::string& path, const std::string& who) {
    if (path.rfind(root, 0) != 0) return;
    const std::string inside = path.substr(root.size());
    const std::size_t slash = inside.find('/', inside.find('/') + 1);
    if (slash != std::string::npos) found[inside.substr(0, slash)].insert(who);
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream comm(entry.path() / "comm");
    std::string name;
    std::getline(comm, name);
    std::ifstream maps(entry.path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      const std::size_t path = line.find('/');
      if (path != std::string::npos) note(line.substr(path), name + "(" + pid + ")");
    }
    std::error_code gone;
    for (const auto& fd : std::filesystem::directory_iterator(entry.path() / "fd", gone)) {
      note(std::filesystem::read_symlink(fd.path(), gone).string(), name + "(" + pid + ") fd");
    }
  }
  return found;
}

std::string Joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text.empty() ? "-" : text;
}

void PrintTable(const std::vector<simcuda::DeviceTruth>& devices, const Referrers& referrers) {
  for (const simcuda::DeviceTruth& device : devices) {
    const std::string uuid = device.config.uuid.ToString();
    std::printf("%s  %s  %s of %s in %zu object%s\n", uuid.c_str(), device.config.name.c_str(),
                FormatBytes(device.physical_bytes).c_str(), FormatBytes(device.config.capacity_bytes).c_str(),
                device.objects.size(), device.objects.size() == 1 ? "" : "s");
    if (device.objects.empty()) continue;
    std::printf("  %-8s %12s  %-6s  %-12s  %s\n", "OBJECT", "SIZE", "HANDLE", "EXPORTED FDS", "REFERRED TO BY");
    for (const simcuda::ObjectTruth& object : device.objects) {
      char name[17];
      std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(object.id));
      const auto who = referrers.find(uuid + "/" + name);
      std::printf("  %-8llu %12s  %-6s  %-12u  %s\n", static_cast<unsigned long long>(object.id),
                  FormatBytes(object.bytes).c_str(), object.handle_held ? "yes" : "no", object.exported_fds,
                  who != referrers.end() ? Joined(who->second).c_str() : "-");
    }
  }
}

int List(const std::string& dir, bool json) {
  if (dir.empty()) return Fail("give --dir DIR or set SIMCUDA_DIR: it names the simulated machine to look at");
  std::vector<simcuda::DeviceTruth> devices;
  std::string error;
  if (!simcuda::ReadTruth(dir, &devices, &error)) return Fail(error);
  json ? PrintJson(devices) : PrintTable(devices, FindReferrers(dir));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("simgpu: simulated GPUs for programs that use the CUDA driver API");
  app.require_subcommand(1);
  app.fallthrough();
  std::string dir;
  if (const char* const set = std::getenv(simcuda::kDirVariable)) dir = set;
  app.add_option("--dir", dir, "The state directory; default: SIMCUDA_DIR");

  int count = 1;
  int mig = 0;
  std::string memory = "80GiB";
  CLI::App* const init = app.add_subcommand("init", "Make a machine in --dir and print the line that selects it");
  init->add_option("--gpus", count, "How many devices")->check(CLI::Range(1, 64))->capture_default_str();
  init->add_option("--memory", memory, "Memory of each device, e.g. 80GiB")->capture_default_str();
  init->add_option("--mig", mig, "Divide each into so many MIG GPU instances")->check(CLI::Range(1, 7));

  bool json = false;
  CLI::App* const list = app.add_subcommand("ls", "Show the physical memory of each device, and who refers to it");
  list->add_flag("--json", json, "Exact bytes, for programs");

  int exit_code = 0;
  simcuda::AddSettingsCommands(&app, &dir, &exit_code);

  CLI11_PARSE(app, argc, argv);
  if (init->parsed()) {
    if (app.count("--dir") == 0)
      return Fail("init needs --dir DIR: the state directory to make, for example in /dev/shm");
    return Init(dir, count, memory, mig);
  }
  return list->parsed() ? List(dir, json) : exit_code;
}
