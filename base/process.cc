#include "base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace gpumem {
namespace {

bool Names(std::string_view entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' && entry.substr(0, name.size()) == name;
}

std::vector<std::string> EnvironmentOf(const SpawnOptions& options) {
  std::vector<std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool replaced = std::any_of(options.set_environment.begin(), options.set_environment.end(),
                                      [&](const auto& set) { return Names(text, set.first); });
    const bool removed = std::any_of(options.unset_environment.begin(), options.unset_environment.end(),
                                     [&](const std::string& name) { return Names(text, name); });
    if (!replaced && !removed) all.emplace_back(text);
  }
  for (const auto& [name, value] : options.set_environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The two attribute objects of posix_spawn, destroyed on every way out.
class SpawnAttributes {
 public:
  SpawnAttributes() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnAttributes() {
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
  }
  SpawnAttributes(const SpawnAttributes&) = delete;
  SpawnAttributes& operator=(const SpawnAttributes&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

int Prepare(const SpawnOptions& options, SpawnAttributes* spawn) {
  int error = ::posix_spawn_file_actions_addopen(&spawn->actions, 0, "/dev/null", O_RDONLY, 0);
  // dup2 of a number onto itself also clears close-on-exec here (posix_spawn_file_actions_adddup2 of glibc ≥ 2.29).
  const std::pair<int, int> dups[] = {{options.stdout_fd, 1}, {options.stderr_fd, 2}, {options.fd3, 3}};
  for (const auto& [from, to] : dups) {
    if (error == 0 && from >= 0) error = ::posix_spawn_file_actions_adddup2(&spawn->actions, from, to);
  }
  sigset_t none;
  sigset_t all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  if (options.new_session) flags = static_cast<short>(flags | POSIX_SPAWN_SETSID);
  if (error == 0) error = ::posix_spawnattr_setsigmask(&spawn->attributes, &none);
  if (error == 0) error = ::posix_spawnattr_setsigdefault(&spawn->attributes, &all);
  if (error == 0) error = ::posix_spawnattr_setflags(&spawn->attributes, flags);
  return error;
}

}  // namespace

int Spawn(const SpawnOptions& options, ChildProcess* child) {
  SpawnAttributes spawn;
  if (const int error = Prepare(options, &spawn); error != 0) return error;
  std::vector<std::string> arguments = options.arguments;
  std::vector<std::string> environment = EnvironmentOf(options);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, options.path.c_str(), &spawn.actions, &spawn.attributes,
                                  Pointers(arguments).data(), Pointers(environment).data());
  if (error != 0) return error;
  // The pid cannot be reused before this process reaps it. pidfds are close-on-exec (pidfd_open(2)).
  const long pidfd = ::syscall(SYS_pidfd_open, pid, 0);
  if (pidfd < 0) {
    const int pidfd_error = errno;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    return pidfd_error;
  }
  child->pid = pid;
  child->pidfd.reset(static_cast<int>(pidfd));
  return 0;
}

bool TryReap(int pidfd, std::string* how) {
  siginfo_t info{};
  int result;
  while ((result = ::waitid(P_PIDFD, static_cast<id_t>(pidfd), &info, WEXITED | WNOHANG)) != 0 && errno == EINTR) {
  }
  if (result != 0 || info.si_pid == 0) return false;
  if (info.si_code == CLD_EXITED) {
    *how = "exit code " + std::to_string(info.si_status);
  } else {
    const char* const name = ::sigdescr_np(info.si_status);
    *how = "killed by signal " + std::to_string(info.si_status) + " (" + (name != nullptr ? name : "?") + ")";
  }
  return true;
}

int SendSignal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 || errno == ESRCH) return 0;
  return errno;
}

std::size_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<std::size_t>(limit.rlim_cur);
}

bool DescriptorsExhausted(int count) {
  std::vector<UniqueFd> probes;
  for (int i = 0; i < count; ++i) {
    probes.emplace_back(::open("/", O_PATH | O_CLOEXEC));
    if (!probes.back()) return errno == EMFILE || errno == ENFILE;
  }
  return false;
}

}  // namespace gpumem
