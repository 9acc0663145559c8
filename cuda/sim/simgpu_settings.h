// cuda/sim/simgpu_settings.h: the commands of simgpu that tell a running machine what to do wrong.
#ifndef GPUMEM_CUDA_SIM_SIMGPU_SETTINGS_H_
#define GPUMEM_CUDA_SIM_SIMGPU_SETTINGS_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

namespace simcuda {

// Adds `rule`, `device`, `xid`, `latency`, `answer` and `settings` to the program. `dir` is read when a command runs.
// The command that was given leaves its exit code in `*exit_code`.
void AddSettingsCommands(CLI::App* app, const std::string* dir, int* exit_code);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_SIMGPU_SETTINGS_H_
