#include "tests/e2e/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

namespace gpumem::e2e {
namespace {

using std::chrono::steady_clock;

int LeftMs(steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
  return left.count() < 0 ? 0 : static_cast<int>(left.count());
}

std::vector<std::string> Environment(const Command& command) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (command.env.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : command.env) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Process Process::Spawn(const Command& command) {
  Process child;
  int in[2];
  int out[2];
  if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
  char path[] = "/tmp/gpumem-e2e-stderr-XXXXXX";
  const int err = ::mkostemp(path, O_CLOEXEC);
  if (err < 0) std::abort();
  child.error_path_ = path;
  std::vector<std::string> argv = command.argv;
  std::vector<std::string> env = Environment(command);
  const std::vector<char*> argv_pointers = Pointers(argv);
  const std::vector<char*> env_pointers = Pointers(env);
  child.pid_ = ::fork();
  if (child.pid_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err, STDERR_FILENO);
    if (command.traced) ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::execve(argv_pointers[0], argv_pointers.data(), env_pointers.data());
    ::dprintf(STDERR_FILENO, "cannot run %s: %s\n", argv_pointers[0], std::strerror(errno));
    ::_exit(127);
  }
  ::close(in[0]);
  ::close(out[1]);
  ::close(err);
  child.in_.reset(in[1]);
  child.out_.reset(out[0]);
  return child;
}

Process::Process(Process&& other) noexcept { *this = std::move(other); }

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    Kill();
    if (!error_path_.empty()) ::unlink(error_path_.c_str());
    pid_ = std::exchange(other.pid_, -1);
    status_ = std::exchange(other.status_, std::nullopt);
    in_ = std::move(other.in_);
    out_ = std::move(other.out_);
    pending_ = std::move(other.pending_);
    error_path_ = std::exchange(other.error_path_, {});
  }
  return *this;
}

Process::~Process() {
  Kill();
  if (!error_path_.empty()) ::unlink(error_path_.c_str());
}

bool Process::running() {
  if (pid_ < 0 || status_) return false;
  int status;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return !status_;
}

bool Process::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  const ssize_t wrote = ::write(in_.get(), text.data(), text.size());
  ::sigaction(SIGPIPE, &before, nullptr);
  return wrote == static_cast<ssize_t>(text.size());
}

std::optional<std::string> Process::ReadLine() {
  const auto deadline = steady_clock::now() + kPatience;
  for (;;) {
    const std::size_t end = pending_.find('\n');
    if (end != std::string::npos) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      return line;
    }
    pollfd poll_fd{out_.get(), POLLIN, 0};
    const int ready = ::poll(&poll_fd, 1, LeftMs(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return std::nullopt;
    char buffer[4096];
    const ssize_t got = ::read(out_.get(), buffer, sizeof(buffer));
    if (got <= 0) return std::nullopt;
    pending_.append(buffer, static_cast<std::size_t>(got));
  }
}

bool Process::HasOutput(std::chrono::milliseconds wait) {
  pollfd poll_fd{out_.get(), POLLIN, 0};
  return !pending_.empty() || ::poll(&poll_fd, 1, static_cast<int>(wait.count())) > 0;
}

std::string Process::ReadAll() {
  std::string all;
  while (const auto line = ReadLine()) all += *line + "\n";
  all += std::exchange(pending_, {});
  return all;
}

void Process::Signal(int signal) {
  if (running()) ::kill(pid_, signal);
}

std::optional<int> Process::Wait() {
  const auto deadline = steady_clock::now() + kPatience;
  while (running()) {
    if (steady_clock::now() > deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return status_;
}

void Process::Kill() {
  if (pid_ < 0 || status_) return;
  ::kill(pid_, SIGKILL);
  int status;
  if (::waitpid(pid_, &status, 0) == pid_) status_ = status;
}

std::string Process::errors() const {
  std::ifstream file(error_path_);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

Finished RunCommand(const Command& command) {
  Process process = Process::Spawn(command);
  process.CloseInput();
  Finished finished;
  finished.out = process.ReadAll();
  const std::optional<int> status = process.Wait();
  if (!status) {
    process.Kill();
    finished.err = "(did not end) ";
  } else {
    finished.exit_code = WIFEXITED(*status) ? WEXITSTATUS(*status) : 128 + WTERMSIG(*status);
  }
  finished.err += process.errors();
  return finished;
}

}  // namespace gpumem::e2e
