// daemon/driver_choice.h: which driver the arenas load, decided once from what the daemon was told.
//
// There is no fallback: a driver that was asked for and is not there is an error that says what to do. The front itself
// loads neither. Pure but for the file checks that it is given. May call: config.
#ifndef GPUMEM_DAEMON_DRIVER_CHOICE_H_
#define GPUMEM_DAEMON_DRIVER_CHOICE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config.h"

namespace gpumem {

struct DriverChoice {
  bool simulated = false;
  std::string libcuda;  // path; empty: libcuda.so.1 by the loader's usual search
  // On top of the arenas' environment: where the simulated node is.
  std::vector<std::pair<std::string, std::string>> environment;

  std::string word() const { return simulated ? "sim" : "cuda"; }
};

// What the choice depends on besides the config.
struct Surroundings {
  std::function<std::optional<std::string>(const std::string& name)> environment;
  std::function<bool(const std::string& path)> exists;
  std::string executable_dir;

  static Surroundings OfThisProcess();
};

// cuda, sim, or auto: sim when a simulated node was asked for (sim.dir, or SIMCUDA_DIR in the environment), else cuda.
// The simulated library is looked for in sim.library_dir, then $GPUMEM_SIM_LIBRARY_DIR, then where a build and an
// installation have it, relative to this program; the first that was named must have it.
absl::StatusOr<DriverChoice> ChooseDriver(const Config& config, const Surroundings& surroundings);

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_DRIVER_CHOICE_H_
