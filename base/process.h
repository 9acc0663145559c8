// base/process.h: starting, watching and ending processes of our own, by pidfd. Std and Linux only.
//
// A child is known by its pidfd from its first moment: a pid can be reused, a pidfd cannot.
#ifndef GPUMEM_BASE_PROCESS_H_
#define GPUMEM_BASE_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace gpumem {

struct SpawnOptions {
  std::string path;                    // executed as it is: no search in PATH
  std::vector<std::string> arguments;  // argv, with argv[0]
  // On top of this process's environment.
  std::vector<std::pair<std::string, std::string>> set_environment;
  std::vector<std::string> unset_environment;
  // Descriptors of this process, each above 2, that become the child's 1, 2 and 3. Negative: 1 and 2 are inherited and
  // 3 is absent. The child's 0 is /dev/null.
  int stdout_fd = -1;
  int stderr_fd = -1;
  int fd3 = -1;
  bool new_session = false;  // setsid(2): signals of our terminal and process group do not reach it
};

struct ChildProcess {
  pid_t pid = -1;
  UniqueFd pidfd;  // close-on-exec; readable when the process has ended (pidfd_open(2))
};

// Starts a program (posix_spawn(3)). Its signal mask is empty and its signal handlers are the defaults. Every other
// descriptor must be close-on-exec. Thread-safe. Returns 0 or an errno. The caller reaps it with TryReap.
int Spawn(const SpawnOptions& options, ChildProcess* child);

// True when the child has ended and was reaped now; `how` is then e.g. "exit code 1" or "killed by signal 9 (Killed)".
// Never blocks.
bool TryReap(int pidfd, std::string* how);

// Sends a signal through a pidfd. A process that is gone already is no error. Returns 0 or an errno.
int SendSignal(int pidfd, int signal);

// Raises this process's soft limit of open descriptors to its hard limit. Returns the limit that holds afterwards.
std::size_t RaiseDescriptorLimit();

// True when this process, or the whole machine, cannot open `count` more descriptors now.
bool DescriptorsExhausted(int count);

}  // namespace gpumem

#endif  // GPUMEM_BASE_PROCESS_H_
