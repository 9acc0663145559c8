// base/reap_later.h: no zombie stays, also of a child that a debugger holds on to.
#include "base/reap_later.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/process.h"

namespace gpumem {
namespace {

using std::chrono::milliseconds;

UniqueFd PidfdOf(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

// A child that this process has not reaped.
bool IsChild(pid_t pid) {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

void RunUntilReaped(EventLoop* loop, pid_t pid) {
  for (int i = 0; i < 10000 && IsChild(pid); ++i) loop->RunOnce(milliseconds(1));
}

TEST(ReapLater, ReapsAChildThatEndsLater) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EventLoop loop;
  ReapLater(&loop, PidfdOf(child), milliseconds(1));
  for (int i = 0; i < 20; ++i) loop.RunOnce(milliseconds(1));
  ASSERT_TRUE(IsChild(child));
  ::kill(child, SIGKILL);
  RunUntilReaped(&loop, child);
  EXPECT_FALSE(IsChild(child));
}

TEST(ReapLater, ReapsAChildWhoseDebuggerLetsGoLater) {
  int traced[2];
  int let_go[2];
  ASSERT_EQ(::pipe(traced), 0);
  ASSERT_EQ(::pipe(let_go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    ::pause();
    ::_exit(0);
  }
  const pid_t debugger = ::fork();
  if (debugger == 0) {
    char byte = 0;
    ::close(let_go[1]);
    // The child may not have allowed it yet.
    while (::ptrace(PTRACE_SEIZE, child, nullptr, nullptr) != 0 && errno == EPERM) ::usleep(1000);
    (void)!::write(traced[1], &byte, 1);
    (void)!::read(let_go[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(traced[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  EventLoop loop;
  UniqueFd pidfd = PidfdOf(child);
  std::string how;
  EXPECT_FALSE(TryReap(pidfd.get(), &how)) << "the debugger holds it: " << how;
  ReapLater(&loop, std::move(pidfd), milliseconds(1));
  for (int i = 0; i < 20; ++i) loop.RunOnce(milliseconds(1));
  EXPECT_TRUE(IsChild(child));
  ::close(let_go[1]);
  ::waitpid(debugger, nullptr, 0);
  RunUntilReaped(&loop, child);
  EXPECT_FALSE(IsChild(child));
  for (const int fd : {traced[0], traced[1], let_go[0]}) ::close(fd);
}

}  // namespace
}  // namespace gpumem
