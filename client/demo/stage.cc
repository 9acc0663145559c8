#include "client/demo/stage.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "client/demo/cleanup.h"

namespace gpumem::demo {
namespace {

using Clock = std::chrono::steady_clock;

std::string Errno(int error) {
  char text[128];
  return strerror_r(error, text, sizeof text);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Waits for a process that is about to end, reaps it, and says how it ended. One that the kernel cannot end is left to
// init.
std::string WaitForEnd(int pidfd) {
  constexpr int kLongestWaitMs = 60'000;
  pollfd ended{pidfd, POLLIN, 0};
  while (::poll(&ended, 1, kLongestWaitMs) < 0 && errno == EINTR) {
  }
  std::string how;
  TryReap(pidfd, &how);
  return how;
}

}  // namespace

Stage::~Stage() {
  if (janitor_.pid < 0) return;
  janitor_pipe_.reset();
  // It was killed before it was done: its work is done here.
  if (WaitForEnd(janitor_.pidfd.get()) != "exit code 0") CleanUp(directory_);
  for (Child& child : children_) {
    if (!child.ended) WaitForEnd(child.process.pidfd.get());
  }
}

std::string Stage::Open(const std::string& parent, const std::string& self) {
  std::string pattern = parent + "/gpumem-demo-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) return "no directory can be made in " + parent + ": " + Errno(errno);
  directory_ = pattern;

  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) {
    ::rmdir(directory_.c_str());
    return "pipe2(2) failed: " + Errno(errno);
  }
  UniqueFd read_end(pipe[0]);
  janitor_pipe_.reset(pipe[1]);
  SpawnOptions options;
  options.path = self;
  options.arguments = {self, "janitor", directory_};
  options.fd3 = read_end.get();
  options.new_session = true;
  const int error = Spawn(options, &janitor_);
  if (error != 0) {
    ::rmdir(directory_.c_str());
    return self + " cannot be started: " + Errno(error);
  }
  environment_.emplace_back(kMark, directory_);

  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  return signals_ ? "" : "signalfd(2) failed: " + Errno(errno);
}

void Stage::SetEnvironment(std::string name, std::string value) {
  environment_.emplace_back(std::move(name), std::move(value));
}

Child* Stage::Start(const std::string& name, const std::string& path, std::vector<std::string> arguments, Reads reads) {
  Child child;
  child.name = name;
  child.log = directory_ + "/" + name + ".log";
  SpawnOptions options;
  options.path = path;
  options.arguments = {path};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  options.set_environment = environment_;
  options.new_session = true;  // a Ctrl-C is the demo's to handle

  UniqueFd log(::open(child.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) {
    error_ = child.log + ": cannot be opened: " + Errno(errno);
    return nullptr;
  }
  options.stdout_fd = options.stderr_fd = log.get();
  int pair[2] = {-1, -1};
  UniqueFd theirs;
  if (reads == Reads::kMessages) {
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0) child.messages.reset(pair[0]);
    theirs.reset(pair[1]);
    options.fd3 = theirs.get();
  } else if (reads == Reads::kOutput) {
    if (::pipe2(pair, O_CLOEXEC) == 0) child.output.reset(pair[0]);
    theirs.reset(pair[1]);
    options.stdout_fd = theirs.get();
    if (child.output) ::fcntl(child.output.get(), F_SETFL, O_NONBLOCK);
  }
  if (reads != Reads::kNeither && !theirs) {
    error_ = "no socket or pipe for " + name + ": " + Errno(errno);
    return nullptr;
  }
  const int error = Spawn(options, &child.process);
  if (error != 0) {
    error_ = path + " cannot be started: " + Errno(error);
    return nullptr;
  }
  children_.push_back(std::move(child));
  return &children_.back();
}

void Stage::HandleSignals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) interrupted_ = true;
}

void Stage::HandleMessages(Child* child) {
  Json message;
  for (;;) {
    switch (Receive(child->messages.get(), /*blocking=*/false, &message)) {
      case Received::kMessage:
        if (child->on_message) child->on_message(message);
        break;
      case Received::kNothing:
        return;
      case Received::kBroken:
        break;
      case Received::kEnd:
        child->messages.reset();
        return;
    }
  }
}

void Stage::HandleOutput(Child* child) {
  char block[16384];
  for (;;) {
    const ssize_t n = ::read(child->output.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      child->output.reset();
      break;
    }
    child->text.append(block, static_cast<std::size_t>(n));
  }
  if (!child->on_line) return;
  for (std::size_t end; (end = child->text.find('\n')) != std::string::npos;) {
    const std::string line = child->text.substr(0, end);
    child->text.erase(0, end + 1);
    child->on_line(line);
  }
}

bool Stage::Wait(std::chrono::milliseconds within, const std::function<bool()>& done) {
  const Clock::time_point deadline = Clock::now() + within;
  for (;;) {
    if (interrupted_) return false;
    if (done()) return true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;

    std::vector<pollfd> watched{{signals_.get(), POLLIN, 0}};
    std::vector<std::pair<Child*, int>> owners{{nullptr, 0}};
    for (Child& child : children_) {
      const auto watch = [&](const UniqueFd& fd, int kind) {
        if (!fd) return;
        watched.push_back({fd.get(), POLLIN, 0});
        owners.emplace_back(&child, kind);
      };
      watch(child.messages, 1);
      watch(child.output, 2);
      if (!child.ended) watch(child.process.pidfd, 3);
    }
    if (::poll(watched.data(), watched.size(), static_cast<int>(std::min<std::int64_t>(left, 1000))) <= 0) continue;
    if (watched[0].revents != 0) HandleSignals();
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      Child* const child = owners[i].first;
      if (owners[i].second == 1) HandleMessages(child);
      if (owners[i].second == 2) HandleOutput(child);
      if (owners[i].second == 3) child->ended = TryReap(child->process.pidfd.get(), &child->how);
    }
  }
}

Stage::Ran Stage::Run(const std::string& path, std::vector<std::string> arguments, std::chrono::milliseconds within) {
  const std::string name = path.substr(path.rfind('/') + 1);
  Ran ran;
  Child* child = Start(name + "-command", path, std::move(arguments), Reads::kOutput);
  if (child == nullptr) {
    ran.errors = error_;
    return ran;
  }
  const bool in_time = Wait(within, [child] { return child->ended && !child->output; });
  if (!in_time) SendSignal(child->process.pidfd.get(), SIGKILL);
  ran.good = in_time && child->exited_well();
  ran.output = std::move(child->text);
  ran.errors = in_time ? ReadFile(child->log) : name + " did not end in time";
  ::unlink(child->log.c_str());
  if (child->ended) children_.remove_if([child](const Child& other) { return &other == child; });
  return ran;
}

std::string Stage::LogTail(const Child& child) {
  constexpr std::size_t kMostBytes = 4096;
  std::string text = ReadFile(child.log);
  if (text.size() > kMostBytes) {
    text.erase(0, text.size() - kMostBytes);
    text.erase(0, text.find('\n') + 1);
  }
  return text;
}

}  // namespace gpumem::demo
