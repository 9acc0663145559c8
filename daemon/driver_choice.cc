// daemon/driver_choice.cc: see driver_choice.h.
#include "daemon/driver_choice.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "daemon/text.h"

namespace gpumem {
namespace {

constexpr char kLibrary[] = "/libcuda.so.1";

std::string Joined(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += Cat(text.empty() ? "" : ", ", path);
  return text;
}

absl::StatusOr<std::string> SimulatedLibrary(const Config& config, const Surroundings& surroundings) {
  std::vector<std::string> directories;
  if (!config.sim_library_dir.empty()) {
    directories = {config.sim_library_dir};
  } else if (const auto named = surroundings.environment("GPUMEM_SIM_LIBRARY_DIR")) {
    directories = {*named};
  } else {
    const std::string& here = surroundings.executable_dir;
    directories = {here + "/../lib/gpumem-sim", here + "/../" GPUMEM_LIBDIR "/gpumem-sim", here + "/../lib/gpumem/sim"};
  }
  for (const std::string& directory : directories) {
    if (surroundings.exists(directory + kLibrary)) return directory + kLibrary;
  }
  return absl::NotFoundError(Cat("driver sim: there is no libcuda.so.1 in ", Joined(directories),
                                 ". Build or install the simulated driver, or name its directory with "
                                 "--sim-library-dir or GPUMEM_SIM_LIBRARY_DIR"));
}

absl::StatusOr<DriverChoice> Simulated(const Config& config, const Surroundings& surroundings) {
  std::string node = config.sim_dir;
  if (node.empty()) node = surroundings.environment("SIMCUDA_DIR").value_or("");
  if (node.empty()) {
    return absl::FailedPreconditionError(
        "driver sim: no simulated node is named. Make one with `simgpu init --dir /dev/shm/node --gpus 2 --memory "
        "80GiB`, then set SIMCUDA_DIR=/dev/shm/node for gpumemd and for its workers, or give gpumemd --sim-dir");
  }
  if (!surroundings.exists(node)) {
    return absl::NotFoundError(Cat("driver sim: the simulated node ", node,
                                   " does not exist. Make it with `simgpu init --dir ", node,
                                   " --gpus 2 --memory 80GiB`"));
  }
  absl::StatusOr<std::string> library = SimulatedLibrary(config, surroundings);
  if (!library.ok()) return library.status();
  return DriverChoice{true, *std::move(library), {{"SIMCUDA_DIR", node}}};
}

}  // namespace

Surroundings Surroundings::OfThisProcess() {
  Surroundings surroundings;
  surroundings.environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  surroundings.exists = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  std::error_code error;
  surroundings.executable_dir = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  return surroundings;
}

absl::StatusOr<DriverChoice> ChooseDriver(const Config& config, const Surroundings& surroundings) {
  const bool asked_for_sim = !config.sim_dir.empty() || surroundings.environment("SIMCUDA_DIR").has_value();
  if (config.driver == "sim" || (config.driver == "auto" && asked_for_sim)) return Simulated(config, surroundings);
  if (!config.cuda_library.empty() && !surroundings.exists(config.cuda_library)) {
    return absl::NotFoundError(Cat("driver cuda: cuda.library names ", config.cuda_library,
                                   ", which does not exist. Correct it, or leave it out to use the loader's search"));
  }
  return DriverChoice{false, config.cuda_library, {}};
}

}  // namespace gpumem
