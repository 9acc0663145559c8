#include "tests/e2e/kill_points.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <map>
#include <utility>

namespace gpumem::e2e {
namespace {

const std::map<long, const char*>& CountedCalls() {
  static const auto* const calls = new std::map<long, const char*>{
      {SYS_connect, "connect"}, {SYS_sendmsg, "sendmsg"},     {SYS_recvmsg, "recvmsg"}, {SYS_sendto, "sendto"},
      {SYS_openat, "openat"},   {SYS_ftruncate, "ftruncate"}, {SYS_flock, "flock"},     {SYS_mmap, "mmap"},
      {SYS_munmap, "munmap"},   {SYS_unlink, "unlink"},       {SYS_ioctl, "ioctl"},     {SYS_pipe2, "pipe2"},
  };
  return *calls;
}

// One stop of the tracee at a system call's entry or exit.
struct Stop {
  bool entry = false;
  long number = 0;
  long first_argument = 0;
  bool failed = false;
};

Stop ReadStop(pid_t pid) {
  __ptrace_syscall_info info{};
  ::ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info);
  Stop stop;
  stop.entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
  if (stop.entry) {
    stop.number = static_cast<long>(info.entry.nr);
    stop.first_argument = static_cast<long>(info.entry.args[0]);
  } else {
    stop.failed = info.exit.is_error != 0;
  }
  return stop;
}

}  // namespace

std::string ToString(const KillPoint& point) { return point.call + " #" + std::to_string(point.nth); }

TracedRun RunTraced(Command command, const std::vector<std::string>& script, const std::optional<KillPoint>& kill_at) {
  command.traced = true;
  TracedRun run;
  Process worker = Process::Spawn(command);
  for (const std::string& line : script) worker.WriteLine(line);
  worker.CloseInput();
  const pid_t pid = worker.pid();
  int status;
  // The stop at exec.
  if (::waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return run;
  ::ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  std::map<std::string, int> seen;
  bool counting = false;
  Stop current;
  int deliver = 0;
  for (;;) {
    if (::ptrace(PTRACE_SYSCALL, pid, 0, deliver) != 0) break;
    deliver = 0;
    if (::waitpid(pid, &status, 0) != pid) break;
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      run.status = status;
      break;
    }
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
      deliver = WSTOPSIG(status);
      continue;
    }
    const Stop stop = ReadStop(pid);
    if (stop.entry) {
      current = stop;
      if (stop.number == SYS_getpgid && stop.first_argument == kMarkBegin) counting = true;
      if (stop.number == SYS_getpgid && stop.first_argument == kMarkEnd) counting = false;
      continue;
    }
    const auto counted = CountedCalls().find(current.number);
    if (!counting || stop.failed || counted == CountedCalls().end()) continue;
    const KillPoint point{counted->second, ++seen[counted->second]};
    run.points.push_back(point);
    if (kill_at && *kill_at == point) {
      worker.Kill();
      run.killed = true;
      break;
    }
  }
  return run;
}

}  // namespace gpumem::e2e
