// tests/unit/session/session_test_util.h: what the session room's tests share: a private directory, child processes
// that never outlive a test, a loop driven by hand, and the fakes of the manager's ports.
#ifndef GPUMEM_TESTS_UNIT_SESSION_SESSION_TEST_UTIL_H_
#define GPUMEM_TESTS_UNIT_SESSION_SESSION_TEST_UTIL_H_

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "daemon/manager/handle_fd.h"
#include "daemon/manager/ports.h"

namespace gpumem::session {

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/gpumem-session-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A forked process that runs `body` and ends with its result. Killed and reaped at the end of the test. The test must
// have no other threads while it forks.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(body());
  }
  ~Child() {
    if (pid_ <= 0) return;
    Kill();
    Reap();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }
  void Kill() const { ::kill(pid_, SIGKILL); }
  int Reap() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// Runs the loop until `done`, failing the test when that takes absurdly long.
inline void RunUntil(EventLoop* loop, const std::function<bool()>& done) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), give_up) << "the awaited event did not come";
    loop->RunOnce(std::chrono::milliseconds(20));
  }
}

// Lets everything happen that is ready to happen.
inline void Settle(EventLoop* loop) {
  for (int i = 0; i < 5; ++i) loop->RunOnce(std::chrono::milliseconds(2));
}

inline UniqueFd Connect(const std::string& path, int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fd.reset();
  return fd;
}

// True when the other end is closed and nothing is left to read.
inline bool AtEnd(int fd) {
  char byte;
  return ::recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

inline std::size_t OpenFdCount() {
  std::size_t count = 0;
  DIR* const dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
  Pipe() {
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) std::abort();
    read.reset(fds[0]);
    write.reset(fds[1]);
  }
};

class RecordingLog : public manager::Log {
 public:
  void Write(Level, std::string_view message) override {
    MutexLock lock(&mu_);
    text_.append(message).append("\n");
  }
  std::string text() const {
    MutexLock lock(&mu_);
    return text_;
  }

 private:
  mutable Mutex mu_;
  std::string text_ GPUMEM_GUARDED_BY(mu_);
};

class CountingCloser : public manager::FdCloser {
 public:
  void Close(int fd) override {
    ++closed;
    ::close(fd);
  }
  int closed = 0;
};

class FixedRandom : public manager::Random {
 public:
  std::array<std::uint8_t, 16> Token() override { return {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}; }
};

}  // namespace gpumem::session

#endif  // GPUMEM_TESTS_UNIT_SESSION_SESSION_TEST_UTIL_H_
