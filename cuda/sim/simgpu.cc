// cuda/sim/simgpu.cc: makes simulated machines and shows what is physically in them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/sim/config.h"
#include "cuda/sim/store.h"

namespace {

using simcuda::FormatBytes;

int Fail(const std::string& error) {
  std::fprintf(stderr, "simgpu: %s\n", error.c_str());
  return 1;
}

int Init(const std::string& dir, int count, const std::string& memory) {
  const auto bytes = simcuda::ParseBytes(memory);
  if (!bytes) return Fail("--memory '" + memory + "' is no size; write for example 80GiB or 512MiB");
  const simcuda::Config config = simcuda::MakeConfig(count, *bytes);
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

void PrintTable(const std::vector<simcuda::DeviceTruth>& devices) {
  for (const simcuda::DeviceTruth& device : devices) {
    std::printf("%s  %s  %s of %s in %zu object%s\n", device.config.uuid.ToString().c_str(), device.config.name.c_str(),
                FormatBytes(device.physical_bytes).c_str(), FormatBytes(device.config.capacity_bytes).c_str(),
                device.objects.size(), device.objects.size() == 1 ? "" : "s");
    if (device.objects.empty()) continue;
    std::printf("  %-8s %12s  %-6s  %s\n", "OBJECT", "SIZE", "HANDLE", "EXPORTED FDS");
    for (const simcuda::ObjectTruth& object : device.objects) {
      std::printf("  %-8llu %12s  %-6s  %u\n", static_cast<unsigned long long>(object.id),
                  FormatBytes(object.bytes).c_str(), object.handle_held ? "yes" : "no", object.exported_fds);
    }
  }
}

int List(const std::string& dir, bool json) {
  if (dir.empty()) return Fail("give --dir DIR or set SIMCUDA_DIR: it names the simulated machine to look at");
  std::vector<simcuda::DeviceTruth> devices;
  std::string error;
  if (!simcuda::ReadTruth(dir, &devices, &error)) return Fail(error);
  json ? PrintJson(devices) : PrintTable(devices);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("simgpu: simulated GPUs for programs that use the CUDA driver API");
  app.require_subcommand(1);
  std::string dir;
  if (const char* const set = std::getenv(simcuda::kDirVariable)) dir = set;

  std::string init_dir;
  int count = 1;
  std::string memory = "80GiB";
  CLI::App* const init = app.add_subcommand("init", "Make a machine and print the line that selects it");
  init->add_option("--dir", init_dir, "The state directory to make; on tmpfs, for example in /dev/shm")->required();
  init->add_option("--gpus", count, "How many devices")->check(CLI::Range(1, 64))->capture_default_str();
  init->add_option("--memory", memory, "Memory of each device, e.g. 80GiB")->capture_default_str();

  bool json = false;
  CLI::App* const list = app.add_subcommand("ls", "Show the physical memory of each device, whoever holds it");
  list->add_option("--dir", dir, "The state directory; default: SIMCUDA_DIR");
  list->add_flag("--json", json, "Exact bytes, for programs");

  CLI11_PARSE(app, argc, argv);
  return init->parsed() ? Init(init_dir, count, memory) : List(dir, json);
}
