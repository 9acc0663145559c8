#include "client/demo/cleanup.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/process.h"
#include "base/unique_fd.h"

namespace gpumem::demo {
namespace {

// True when the process's environment at its exec had this entry. Only the processes of the same user can be read.
bool HasEntry(pid_t pid, const std::string& entry) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return (std::string(1, '\0') + all).find(std::string(1, '\0') + entry + std::string(1, '\0')) != std::string::npos;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = ::readdir(proc)) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && end == name.data() + name.size()) pids.push_back(pid);
  }
  ::closedir(proc);
  return pids;
}

}  // namespace

void KillMarked(const std::string& directory) {
  const std::string entry = std::string(kMark) + "=" + directory;
  // One that the kernel cannot end (a thread of it waits for a device) is given up after some rounds.
  bool found = true;
  for (int round = 0; found && round < 10; ++round) {
    found = false;
    for (const pid_t pid : AllProcesses()) {
      if (pid == ::getpid() || !HasEntry(pid, entry)) continue;
      // The pidfd first, then the look again: a pid that was reused in between is not killed.
      UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!pidfd || !HasEntry(pid, entry)) continue;
      found = true;
      SendSignal(pidfd.get(), SIGKILL);
      pollfd ended{pidfd.get(), POLLIN, 0};
      constexpr int kLongestWaitMs = 3000;
      while (::poll(&ended, 1, kLongestWaitMs) < 0 && errno == EINTR) {
      }
    }
  }
}

bool CleanUp(const std::string& directory) {
  KillMarked(directory);
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  return !error;
}

int RunJanitor(int fd, const std::string& directory) {
  // Whoever ends the demo by a signal to all of its processes must not end the one that cleans up after them.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
  char byte;
  for (;;) {
    const ssize_t n = ::read(fd, &byte, 1);
    if (n == 0 || (n < 0 && errno != EINTR)) break;
  }
  return CleanUp(directory) ? 0 : 1;
}

}  // namespace gpumem::demo
