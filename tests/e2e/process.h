// tests/e2e/process.h: child processes of a test: spawned, talked to line by line, killed, and never left behind.
#ifndef GPUMEM_TESTS_E2E_PROCESS_H_
#define GPUMEM_TESTS_E2E_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace gpumem::e2e {

// Generous: a test waits for a fact, never for a time. This only bounds a test that hangs.
inline constexpr std::chrono::seconds kPatience{60};

struct Command {
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;  // added to the test's own
  bool traced = false;                     // PTRACE_TRACEME before exec: see kill_points.h
};

// One child with pipes on stdin and stdout, and stderr in a file that a failing test prints. Killed (SIGKILL) and
// reaped by the destructor if it still runs.
class Process {
 public:
  static Process Spawn(const Command& command);
  Process() = default;
  Process(Process&&) noexcept;
  Process& operator=(Process&&) noexcept;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  bool running();

  // Writes one line. False when the child no longer reads.
  bool WriteLine(const std::string& line);
  // The next line of stdout without its newline; nullopt at its end or after kPatience.
  std::optional<std::string> ReadLine();
  // Whether there is something to read on stdout, waiting at most `wait` for it.
  bool HasOutput(std::chrono::milliseconds wait);
  // Everything left on stdout.
  std::string ReadAll();
  void CloseInput() { in_.reset(); }

  void Signal(int signal);
  // Waits for the end; the wait status as of waitpid(2). Aborts the test's patience with nullopt.
  std::optional<int> Wait();
  // SIGKILL and reap.
  void Kill();
  std::string errors() const;  // stderr so far

 private:
  pid_t pid_ = -1;
  std::optional<int> status_;
  UniqueFd in_;
  UniqueFd out_;
  std::string pending_;
  std::string error_path_;
};

struct Finished {
  int exit_code = -1;  // 128 + signal when killed
  std::string out;
  std::string err;
};
// Runs a command to its end.
Finished RunCommand(const Command& command);

}  // namespace gpumem::e2e

#endif  // GPUMEM_TESTS_E2E_PROCESS_H_
