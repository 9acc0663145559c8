// tests/unit/keeper/keeper_fixture.h: a private directory, keepers as real processes, and fds that tell when they are
// closed.
#ifndef GPUMEM_TESTS_UNIT_KEEPER_KEEPER_FIXTURE_H_
#define GPUMEM_TESTS_UNIT_KEEPER_KEEPER_FIXTURE_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "daemon/arena/fd_closer.h"
#include "daemon/keeper/keeper_client.h"

namespace gpumem::keeper {

inline constexpr char kHost[] = TEST_BIN_DIR "/arena_keeper_host";

// A pipe as a handle: its write end is given away, and its read end sees the end when no copy of that is left.
class Handle {
 public:
  Handle() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) ::abort();
    read_.reset(ends[0]);
    write_.reset(ends[1]);
  }
  manager::HandleFd Take(manager::FdCloser* closer) { return manager::HandleFd(write_.release(), closer); }
  bool Gone() const {
    char byte;
    return ::read(read_.get(), &byte, 1) == 0;
  }
  // True when `fd` is a copy of this handle.
  bool Is(int fd) const {
    const char byte = 'x';
    char got = 0;
    return ::write(fd, &byte, 1) == 1 && ::read(read_.get(), &got, 1) == 1 && got == byte;
  }

 private:
  UniqueFd read_;
  UniqueFd write_;
};

class KeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/tmp/gpumem-keeper-XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    socket_ = dir_ + "/keeper.sock";
  }
  void TearDown() override {
    client_.reset();
    loop_.RunOnce(std::chrono::milliseconds(0));
    for (const ChildProcess& keeper : keepers_) {
      SendSignal(keeper.pidfd.get(), SIGKILL);
      WaitForEnd(keeper);
    }
    std::filesystem::remove_all(dir_);
  }

  // Starts a keeper; `stderr_path` collects its lines.
  const ChildProcess& StartKeeper(std::vector<std::string> more = {}) {
    SpawnOptions spawn;
    spawn.path = kHost;
    spawn.arguments = {"gpumemd", "keeper", "--socket=" + socket_};
    spawn.arguments.insert(spawn.arguments.end(), more.begin(), more.end());
    const UniqueFd log(::open((dir_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    spawn.stderr_fd = log.get();
    ChildProcess keeper;
    EXPECT_EQ(Spawn(spawn, &keeper), 0);
    keepers_.push_back(std::move(keeper));
    return keepers_.back();
  }
  // What the keepers said.
  std::string LogText() const {
    std::ifstream file(dir_ + "/log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // How it ended. Waits for it; a keeper whose end was waited for before says "".
  static std::string WaitForEnd(const ChildProcess& keeper) {
    pollfd poll{keeper.pidfd.get(), POLLIN, 0};
    while (::poll(&poll, 1, -1) < 1) {
    }
    std::string how;
    TryReap(keeper.pidfd.get(), &how);
    return how;
  }

  KeeperClient::Options ClientOptions() {
    KeeperClient::Options options;
    options.loop = &loop_;
    options.fd_closer = &closer_;
    options.socket_path = socket_;
    options.executable = kHost;
    options.keeper_log = dir_ + "/log";
    options.retry_first = std::chrono::milliseconds(2);
    options.retry_longest = std::chrono::milliseconds(20);
    options.on_ready = [this](const std::vector<manager::KeptEntry>& held) {
      journal_.push_back("ready");
      held_ = held;
    };
    options.on_lost = [this](const std::string&) { journal_.push_back("lost"); };
    return options;
  }
  void Connect(KeeperClient::Options options) {
    journal_.clear();
    client_ = std::make_unique<KeeperClient>(std::move(options));
    client_->Start();
    RunUntil([&] { return !journal_.empty(); });
  }
  void Connect() { Connect(ClientOptions()); }

  // The test's own timeout ends a wait that never ends.
  void RunUntil(const std::function<bool()>& condition) {
    while (!condition()) loop_.RunOnce(std::chrono::milliseconds(20));
  }

  static manager::KeptName Name(std::uint64_t id) {
    manager::KeptName name;
    name.ledger[0] = 0xab;
    name.id = id;
    return name;
  }
  static manager::KeptEntry Entry(std::uint64_t id) {
    DeviceUuid::Raw raw{};
    raw[15] = static_cast<std::uint8_t>(id % 2);
    return manager::KeptEntry{Name(id), DeviceUuid(DeviceUuid::Kind::kGpu, raw), manager::Bytes(id * 4096)};
  }
  absl::Status Put(std::uint64_t id, Handle* handle) {
    std::optional<absl::Status> result;
    client_->Put(Entry(id), handle->Take(&closer_), [&](const absl::Status& r) { result = r; });
    EXPECT_FALSE(result.has_value()) << "a completion came from inside the call";
    RunUntil([&] { return result.has_value(); });
    return *result;
  }
  absl::StatusOr<manager::HandleFd> Get(std::uint64_t id) {
    std::optional<absl::StatusOr<manager::HandleFd>> result;
    client_->Get(Name(id), [&](absl::StatusOr<manager::HandleFd> r) { result = std::move(r); });
    RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }
  absl::Status Del(std::uint64_t id) {
    std::optional<absl::Status> result;
    client_->Del(Name(id), [&](const absl::Status& r) { result = r; });
    RunUntil([&] { return result.has_value(); });
    return *result;
  }

  std::string dir_;
  std::string socket_;
  EventLoop loop_;
  arena::ThreadFdCloser closer_;
  std::vector<std::string> journal_;
  std::vector<manager::KeptEntry> held_;
  std::vector<ChildProcess> keepers_;
  std::unique_ptr<KeeperClient> client_;
};

}  // namespace gpumem::keeper

#endif  // GPUMEM_TESTS_UNIT_KEEPER_KEEPER_FIXTURE_H_
