// gpumemd: the daemon's one program. `gpumemd` is the front; `gpumemd arena` and `gpumemd keeper` are its other
// processes. Only `arena` ever loads a driver.
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "daemon/arena/arena_process.h"
#include "daemon/config.h"
#include "daemon/front.h"
#include "daemon/keeper/keeper_process.h"

namespace gpumem {
namespace {

constexpr int kUsageError = 2;

// Parses a subcommand's arguments. -1: go on; else the exit code.
int Parse(CLI::App* app, std::vector<std::string> arguments) {
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // the order that CLI11 takes
    app->parse(std::move(reversed));
    return -1;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app->help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; see %s --help\n", app->get_name().c_str(), error.what(), app->get_name().c_str());
    return kUsageError;
  }
}

int RunArena(const std::vector<std::string>& arguments) {
  CLI::App app(
      "The driver process of one device. gpumemd starts it, with its socket as descriptor 3; --probe is for "
      "people too: it prints the devices that the driver shows, as JSON.",
      "gpumemd arena");
  arena::ArenaFlags flags;
  bool probe = false;
  app.add_flag("--probe", probe, "List the devices and leave");
  app.add_option("--device", flags.device, "UUID of the device to serve")->excludes("--probe");
  app.add_option("--driver", flags.driver, "auto, cuda or sim: the kind that the library must be")
      ->check(CLI::IsMember({"auto", "cuda", "sim"}));
  app.add_option("--libcuda", flags.libcuda, "Path of the driver; else libcuda.so.1 by the loader's search");
  if (const int code = Parse(&app, arguments); code >= 0) return code;
  return probe ? arena::ProbeMain(flags) : arena::ArenaMain(flags);
}

int RunKeeper(const std::vector<std::string>& arguments) {
  CLI::App app("Holds durable memory while gpumemd restarts. SIGTERM ends it and drops everything that it holds.",
               "gpumemd keeper");
  keeper::KeeperFlags flags;
  app.add_option("--socket", flags.socket, "Path of its socket; not needed where systemd passes the socket");
  app.add_flag("--exit-when-idle", flags.exit_when_idle, "End when no front is connected and nothing is held");
  app.add_option("--max-handles", flags.max_handles, "Most handles to hold; else what RLIMIT_NOFILE allows");
  if (const int code = Parse(&app, arguments); code >= 0) return code;
  return keeper::KeeperMain(flags);
}

int RunDaemon(const std::vector<std::string>& arguments) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(arguments);
  if (!line.ok()) {
    std::fprintf(stderr, "gpumemd: %s\n", std::string(line.status().message()).c_str());
    return kUsageError;
  }
  switch (line->action) {
    case Action::kHelp:
      std::fputs(UsageText().c_str(), stdout);
      return 0;
    case Action::kVersion:
      std::printf("gpumemd %s\n", GPUMEM_VERSION);
      return 0;
    case Action::kCheckConfig:
      std::printf("%s: valid\n", line->config_file.empty() ? "the flags" : line->config_file.c_str());
      return 0;
    case Action::kPrintConfig:
      std::fputs(PrintConfig(line->config).c_str(), stdout);
      return 0;
    case Action::kRun:
      return RunFront(line->config);
  }
  return kUsageError;
}

}  // namespace
}  // namespace gpumem

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first != "arena" && first != "keeper") return gpumem::RunDaemon(arguments);
  arguments.erase(arguments.begin());
  return first == "arena" ? gpumem::RunArena(arguments) : gpumem::RunKeeper(arguments);
}
