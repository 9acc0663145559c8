// client/memctl/command_line.h: what the user asked for. Pure but for the environment ($GPUMEM_ADMIN_SOCKET). Calls
// CLI11, whose exceptions end here.
#ifndef GPUMEM_CLIENT_MEMCTL_COMMAND_LINE_H_
#define GPUMEM_CLIENT_MEMCTL_COMMAND_LINE_H_

#include <chrono>
#include <string>
#include <vector>

namespace gpumem::memctl {

enum class Command {
  kStatus,
  kDevices,
  kSessions,
  kHolders,
  kLeases,
  kSegments,
  kRemoveSegment,
  kQuarantine,
  kEvents,
  kCompletionBash,
};

struct CommandLine {
  Command command = Command::kStatus;
  std::string socket_path;
  std::chrono::milliseconds timeout{5000};
  bool json = false;
  std::string segment;  // rm: its name; segments: the prefix
};

// `exit` >= 0: nothing is left to do but to print `text` (to stderr when `exit` is not 0) and to leave.
struct Parsed {
  CommandLine line;
  int exit = -1;
  std::string text;
};
Parsed ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace gpumem::memctl

#endif  // GPUMEM_CLIENT_MEMCTL_COMMAND_LINE_H_
