// cuda/sim/dead_writer.cc: see the header.
#include "cuda/sim/dead_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "cuda/sim/breaks.h"

namespace simcuda {
namespace {

ssize_t ReadByte(int fd) {
  char byte = 0;
  ssize_t count;
  do {
    count = ::read(fd, &byte, 1);
  } while (count < 0 && errno == EINTR);
  return count;
}

// In the engine: waits for the kernel's end or its process's, and then goes on in its place.
[[noreturn]] void Engine(int pipe, Duration time, const std::function<void()>& kernel) {
  ::prctl(PR_SET_NAME, "simcuda-engine");
  // Whatever the process held (its witness pipe, its sockets) is not the engine's to keep.
  if (pipe > 3 && !SIMCUDA_BREAK("engine-keeps-descriptors")) {
    ::syscall(SYS_close_range, 3u, static_cast<unsigned>(pipe) - 1, 0u);
  }
  ::syscall(SYS_close_range, static_cast<unsigned>(pipe) + 1, ~0u, 0u);
  if (ReadByte(pipe) != 0) ::_exit(0);  // it ended by itself
  // The alarm ends the engine, also inside a kernel that never returns.
  ::signal(SIGALRM, SIG_DFL);
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &alarm, nullptr);
  itimerval timer{};
  timer.it_value.tv_sec = static_cast<time_t>(time.count() / 1000000);
  timer.it_value.tv_usec = static_cast<suseconds_t>(time.count() % 1000000);
  ::setitimer(ITIMER_REAL, &timer, nullptr);
  while (true) {
    if (!SIMCUDA_BREAK("engine-writes-nothing")) kernel();
    ::usleep(100);
  }
}

}  // namespace

DeadWriter::DeadWriter(Vmm& vmm, Duration time, const std::function<void()>& kernel) {
  int ends[2];
  if (time == Duration::zero() || SIMCUDA_BREAK("engine-dies-along") || ::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t child = vmm.ForkUnlocked();
  if (child == 0) {
    ::close(ends[1]);
    // Once more, so that the engine is nobody's child.
    if (::fork() == 0) Engine(ends[0], time, kernel);
    ::_exit(0);
  }
  ::close(ends[0]);
  pipe_ = ends[1];
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

DeadWriter::~DeadWriter() {
  if (pipe_ < 0) return;
  const char byte = 0;
  (void)!::write(pipe_, &byte, 1);
  ::close(pipe_);
}

}  // namespace simcuda
