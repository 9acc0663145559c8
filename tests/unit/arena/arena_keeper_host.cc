// tests/unit/arena/arena_keeper_host.cc: `arena` and `keeper` with the command lines that the front gives them.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "daemon/arena/arena_process.h"
#include "daemon/keeper/keeper_process.h"

namespace {

std::optional<std::string> ValueOf(std::string_view argument, std::string_view flag) {
  if (argument.substr(0, flag.size()) != flag) return std::nullopt;
  return std::string(argument.substr(flag.size()));
}

std::uint64_t NumberOf(const std::string& text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

int RunArena(int argc, char** argv) {
  gpumem::arena::ArenaFlags flags;
  bool probe = false;
  for (int i = 2; i < argc; ++i) {
    if (const auto device = ValueOf(argv[i], "--device=")) flags.device = *device;
    if (const auto driver = ValueOf(argv[i], "--driver=")) flags.driver = *driver;
    if (const auto libcuda = ValueOf(argv[i], "--libcuda=")) flags.libcuda = *libcuda;
    if (std::strcmp(argv[i], "--probe") == 0) probe = true;
  }
  return probe ? gpumem::arena::ProbeMain(flags) : gpumem::arena::ArenaMain(flags);
}

int RunKeeper(int argc, char** argv) {
  gpumem::keeper::KeeperFlags flags;
  for (int i = 2; i < argc; ++i) {
    if (const auto socket = ValueOf(argv[i], "--socket=")) flags.socket = *socket;
    if (const auto most = ValueOf(argv[i], "--max-handles=")) flags.max_handles = NumberOf(*most);
    if (std::strcmp(argv[i], "--exit-when-idle") == 0) {
      flags.exit_when_idle = true;
      flags.idle_grace = std::chrono::milliseconds(10);
    }
  }
  return gpumem::keeper::KeeperMain(flags);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "arena") return RunArena(argc, argv);
  if (command == "keeper") return RunKeeper(argc, argv);
  std::fprintf(stderr, "arena_keeper_host: arena or keeper\n");
  return 2;
}
