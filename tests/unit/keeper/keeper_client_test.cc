// The front's handle against real keepers: what is kept, what is proven, and what happens when either side dies.
#include "daemon/keeper/keeper_client.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/seqpacket.h"
#include "daemon/core/reasons.h"
#include "daemon/keeper/keeper_wire.h"
#include "daemon/keeper/socket_address.h"
#include "tests/unit/keeper/keeper_fixture.h"

namespace gpumem::keeper {
namespace {

using core::Reason;

class KeeperClientTest : public KeeperTest {};

// For a forked child, which starts no threads.
class InlineCloser final : public manager::FdCloser {
 public:
  void Close(int fd) override { ::close(fd); }
};

TEST_F(KeeperClientTest, PutGetDel) {
  StartKeeper();
  Connect();
  EXPECT_TRUE(held_.empty());
  Handle handle;
  ASSERT_TRUE(Put(1, &handle).ok());
  EXPECT_FALSE(handle.Gone());
  {
    const absl::StatusOr<manager::HandleFd> got = Get(1);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE(handle.Is(got->get()));
    EXPECT_NE(::fcntl(got->get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(core::ReasonOf(Get(2).status()), Reason::HANDLE_LOST);
  ASSERT_TRUE(Del(1).ok());
  EXPECT_EQ(core::ReasonOf(Get(1).status()), Reason::HANDLE_LOST);
  EXPECT_EQ(core::ReasonOf(Del(1)), Reason::HANDLE_LOST);
}

TEST_F(KeeperClientTest, DelIsAnsweredAfterTheClose) {
  StartKeeper();
  Connect();
  std::vector<Handle> handles(8);
  for (std::size_t i = 0; i < handles.size(); ++i) ASSERT_TRUE(Put(i + 1, &handles[i]).ok());
  // The front's own copies are closed by a thread, a moment after each answer.
  for (std::size_t i = 0; i < handles.size(); ++i) ASSERT_FALSE(handles[i].Gone());
  EXPECT_EQ(Get(1).status(), absl::OkStatus());
  // The closer works in order: once this marker is gone, so are the copies that were handed to it before.
  Handle marker;
  { const manager::HandleFd given = marker.Take(&closer_); }
  RunUntil([&] { return marker.Gone(); });
  for (std::size_t i = 0; i < handles.size(); ++i) {
    ASSERT_TRUE(Del(i + 1).ok());
    EXPECT_TRUE(handles[i].Gone()) << i;
  }
}

// A TCP connection that its peer does not read: with SO_LINGER its last close blocks until the peer is gone, as a
// driver's can.
TEST_F(KeeperClientTest, WhileACloseBlocksTheHandleCannotBeGotAndItsEndAnswersEveryDel) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  UniqueFd near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::connect(near.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    GTEST_SKIP() << "no loopback network here";
  }
  UniqueFd far(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const linger forever{1, 3600};
  ASSERT_EQ(::setsockopt(near.get(), SOL_SOCKET, SO_LINGER, &forever, sizeof(forever)), 0);
  const std::vector<char> block(1 << 16);
  while (::send(near.get(), block.data(), block.size(), MSG_DONTWAIT) > 0) {
  }
  StartKeeper();
  Connect();
  std::optional<absl::Status> put;
  client_->Put(Entry(1), manager::HandleFd(near.release(), &closer_), [&](const absl::Status& r) { put = r; });
  RunUntil([&] { return put.has_value(); });
  ASSERT_TRUE(put->ok()) << *put;
  Handle marker;  // once it is gone, so is the front's own copy
  { const manager::HandleFd given = marker.Take(&closer_); }
  RunUntil([&] { return marker.Gone(); });
  int answered = 0;
  for (int i = 0; i < 2; ++i) {
    client_->Del(Name(1), [&](const absl::Status& r) {
      EXPECT_TRUE(r.ok()) << r;
      ++answered;
    });
  }
  EXPECT_EQ(core::ReasonOf(Get(1).status()), Reason::HANDLE_LOST);
  Handle other;
  EXPECT_TRUE(Put(2, &other).ok()) << "nobody else waits for it";
  EXPECT_EQ(answered, 0);
  far.reset();
  RunUntil([&] { return answered == 2; });
}

TEST_F(KeeperClientTest, AListenerOfAnotherUserIsGivenNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  ASSERT_EQ(::chmod(dir_.c_str(), 0777), 0);
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    sockaddr_un address;
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char byte;
    if (::setresuid(65534, 65534, 65534) != 0 || !SocketAddress(socket_, &address)) ::_exit(2);
    if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) ::_exit(3);
    if (::listen(socket, 4) != 0) ::_exit(4);
    ::_exit(::recv(::accept(socket, nullptr, nullptr), &byte, 1, 0) == 0 ? 0 : 1);
  }
  client_ = std::make_unique<KeeperClient>(ClientOptions());
  client_->Start();
  int status = 0;
  RunUntil([&] { return ::waitpid(stranger, &status, WNOHANG) == stranger; });
  EXPECT_EQ(status, 0) << "it saw a connection that ended, and no byte";
  EXPECT_TRUE(journal_.empty());
}

TEST_F(KeeperClientTest, ANameIsUsedOnce) {
  StartKeeper();
  Connect();
  Handle first;
  Handle second;
  ASSERT_TRUE(Put(1, &first).ok());
  EXPECT_EQ(core::ReasonOf(Put(1, &second)), Reason::INVALID_ARGUMENT);
  const absl::StatusOr<manager::HandleFd> got = Get(1);
  ASSERT_TRUE(got.ok());
  EXPECT_TRUE(first.Is(got->get()));
  RunUntil([&] { return second.Gone(); });
}

TEST_F(KeeperClientTest, AnEntryThatNamesNothingIsRefused) {
  StartKeeper();
  Connect();
  Handle handle;
  EXPECT_EQ(core::ReasonOf(Put(0, &handle)), Reason::INVALID_ARGUMENT);
  std::optional<absl::Status> result;
  client_->Put(Entry(1), manager::HandleFd(), [&](const absl::Status& r) { result = r; });
  RunUntil([&] { return result.has_value(); });
  EXPECT_EQ(core::ReasonOf(*result), Reason::INVALID_ARGUMENT);
  EXPECT_EQ(journal_.back(), "ready");  // still connected
}

// A front that is killed: its successor finds everything, over several pages, and nothing was closed.
TEST_F(KeeperClientTest, EverythingIsThereAfterTheFrontIsKilled) {
  StartKeeper();
  const std::size_t count = 3 * kEntriesPerPage + 5;
  std::vector<Handle> handles(count);
  const pid_t front = ::fork();
  if (front == 0) {
    EventLoop loop;
    InlineCloser closer;
    std::size_t stored = 0;
    std::unique_ptr<KeeperClient> client;
    KeeperClient::Options options = ClientOptions();
    options.loop = &loop;
    options.fd_closer = &closer;
    options.on_ready = [&](const auto&) {
      for (std::size_t i = 0; i < count; ++i) {
        client->Put(Entry(i + 1), handles[i].Take(&closer), [&](const absl::Status& r) { stored += r.ok() ? 1 : 0; });
      }
    };
    options.on_lost = nullptr;
    client = std::make_unique<KeeperClient>(std::move(options));
    client->Start();
    while (stored < count) loop.RunOnce(std::chrono::milliseconds(20));
    ::kill(::getpid(), SIGKILL);
  }
  // Nothing but the keeper has the handles now.
  for (Handle& handle : handles) {
    const manager::HandleFd given = handle.Take(&closer_);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(front, &status, 0), front);
  ASSERT_TRUE(WIFSIGNALED(status));

  Connect();
  ASSERT_EQ(held_.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(held_[i].name, Name(i + 1));
    EXPECT_EQ(held_[i].device, Entry(i + 1).device);
    EXPECT_EQ(held_[i].bytes, Entry(i + 1).bytes);
    EXPECT_FALSE(handles[i].Gone());
  }
  const absl::StatusOr<manager::HandleFd> got = Get(count);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(handles[count - 1].Is(got->get()));
}

TEST_F(KeeperClientTest, ANewFrontTakesOverFromOneThatHangs) {
  StartKeeper();
  Connect();
  Handle handle;
  ASSERT_TRUE(Put(7, &handle).ok());
  EventLoop other_loop;
  std::vector<manager::KeptEntry> seen;
  bool ready = false;
  KeeperClient::Options options = ClientOptions();
  options.loop = &other_loop;
  options.on_ready = [&](const std::vector<manager::KeptEntry>& held) {
    seen = held;
    ready = true;
  };
  options.on_lost = nullptr;
  KeeperClient other(std::move(options));
  other.Start();
  while (!ready) other_loop.RunOnce(std::chrono::milliseconds(20));
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].name, Name(7));
  RunUntil([&] { return journal_.size() >= 2; });
  EXPECT_EQ(journal_[1], "lost");
}

TEST_F(KeeperClientTest, AKilledKeeperAnswersEverythingThenIsLostThenItsSuccessorIsReady) {
  const pid_t keeper = StartKeeper().pid;
  Connect();
  Handle kept;
  ASSERT_TRUE(Put(1, &kept).ok());
  ASSERT_EQ(::kill(keeper, SIGSTOP), 0);  // so that the calls are surely open
  std::vector<absl::Status> ends;
  Handle open;
  client_->Put(Entry(2), open.Take(&closer_), [&](const absl::Status& r) {
    journal_.push_back("answer");
    ends.push_back(r);
  });
  client_->Get(Name(1), [&](const auto& r) {
    journal_.push_back("answer");
    ends.push_back(r.status());
  });
  client_->Del(Name(1), [&](const absl::Status& r) {
    journal_.push_back("answer");
    ends.push_back(r);
  });
  ASSERT_EQ(::kill(keeper, SIGKILL), 0);
  RunUntil([&] { return journal_.size() == 5; });
  EXPECT_EQ(journal_, (std::vector<std::string>{"ready", "answer", "answer", "answer", "lost"}));
  for (const absl::Status& end : ends) EXPECT_EQ(core::ReasonOf(end), Reason::KEEPER_UNAVAILABLE) << end;
  EXPECT_EQ(core::ReasonOf(Del(1)), Reason::KEEPER_UNAVAILABLE);
  WaitForEnd(keepers_[0]);
  RunUntil([&] { return kept.Gone() && open.Gone(); });
  StartKeeper();
  RunUntil([&] { return journal_.back() == "ready"; });
  EXPECT_TRUE(held_.empty());
}

TEST_F(KeeperClientTest, AFullKeeperRefusesAndGoesOn) {
  StartKeeper({"--max-handles=2"});
  Connect();
  Handle handles[4];
  ASSERT_TRUE(Put(1, &handles[0]).ok());
  ASSERT_TRUE(Put(2, &handles[1]).ok());
  const absl::Status full = Put(3, &handles[2]);
  EXPECT_EQ(core::ReasonOf(full), Reason::DESCRIPTORS) << full;
  RunUntil([&] { return handles[2].Gone(); });  // it was not kept
  ASSERT_TRUE(Del(1).ok());
  EXPECT_TRUE(Put(4, &handles[3]).ok());
}

TEST_F(KeeperClientTest, AKeeperOutOfDescriptorsRefusesAndGoesOn) {
  const pid_t keeper = StartKeeper().pid;
  Connect();
  Handle handles[8];
  // Both devices are known before it gets tight: a sanitizer opens files when a thread starts.
  ASSERT_TRUE(Put(1, &handles[0]).ok());
  ASSERT_TRUE(Put(2, &handles[1]).ok());
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(keeper) + "/fd");
  const auto open = static_cast<rlim_t>(std::distance(begin(all), end(all)));
  const rlimit tight{open + 1, open + 1};
  ASSERT_EQ(::prlimit(keeper, RLIMIT_NOFILE, &tight, nullptr), 0);
  std::size_t id = 3;
  absl::Status put;
  while (id < 8 && (put = Put(id, &handles[id - 1])).ok()) ++id;
  EXPECT_EQ(core::ReasonOf(put), Reason::DESCRIPTORS) << put << "\n" << LogText();
  RunUntil([&] { return handles[id - 1].Gone(); });
  const absl::Status deleted = Del(1);
  ASSERT_TRUE(deleted.ok()) << deleted << "\n" << LogText();
  Handle next;
  EXPECT_TRUE(Put(100, &next).ok());
}

TEST_F(KeeperClientTest, StartsAKeeperThatOutlivesItAndEndsWhenIdle) {
  KeeperClient::Options options = ClientOptions();
  options.spawn = true;
  Connect(std::move(options));
  // That none was there yet is the plan, not a fault to warn about.
  EXPECT_EQ(LogText().find("cannot connect"), std::string::npos) << LogText();
  const pid_t keeper = *client_->keeper_pid();
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, keeper, 0)));
  ASSERT_TRUE(pidfd.valid());
  EXPECT_NE(::getsid(keeper), ::getsid(0));
  Handle handle;
  ASSERT_TRUE(Put(1, &handle).ok());

  client_.reset();  // it holds something, so it stays, however long
  pollfd poll{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&poll, 1, 300), 0) << "far longer than its grace without a front";
  options = ClientOptions();
  options.spawn = true;
  Connect(std::move(options));
  EXPECT_EQ(client_->keeper_pid(), keeper);
  ASSERT_EQ(held_.size(), 1u);
  ASSERT_TRUE(Del(1).ok());

  client_.reset();  // now it holds nothing
  while (::poll(&poll, 1, -1) < 1) {
  }
  std::string how;
  EXPECT_TRUE(TryReap(pidfd.get(), &how));
  EXPECT_EQ(how, "exit code 0");
  EXPECT_FALSE(std::filesystem::exists(socket_));
}

TEST_F(KeeperClientTest, AKeeperWhoseAnswerFitsNoQuestionIsLeft) {
  sockaddr_un address;
  ASSERT_TRUE(SocketAddress(socket_, &address));
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  client_ = std::make_unique<KeeperClient>(ClientOptions());
  client_->Start();
  UniqueFd keeper;
  RunUntil([&] {
    keeper.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return keeper.valid();
  });
  FixedHeader asked;
  const auto receive = [&] {
    std::vector<std::byte> bytes(kMaxKeeperFrameBytes);
    ReceivedFrame frame;
    RunUntil([&] { return ReceiveFrame(keeper.get(), bytes, /*blocking=*/false, &frame) == 0; });
    std::memcpy(&asked, bytes.data(), sizeof(asked));
  };
  receive();
  HelloIsBody hello;
  hello.version = kKeeperVersion;
  ASSERT_EQ(SendFrame(keeper.get(), Encode(KeeperFrame::kHelloIs, 0, 0, hello), {}, true), 0);
  receive();
  ASSERT_EQ(SendFrame(keeper.get(), Encode(KeeperFrame::kListed, 0, 0, ListedBody{}), {}, true), 0);
  RunUntil([&] { return !journal_.empty(); });
  std::optional<absl::Status> got;
  client_->Get(Name(1), [&](const auto& r) { got = r.status(); });
  receive();
  // Done answers a Put or a Del; a Get without its descriptor is no answer.
  ASSERT_EQ(SendFrame(keeper.get(), Encode(KeeperFrame::kDone, asked.request, 0, ResultBody{}), {}, true), 0);
  RunUntil([&] { return got.has_value() && journal_.size() == 2; });
  EXPECT_EQ(core::ReasonOf(*got), Reason::KEEPER_UNAVAILABLE) << *got;
  EXPECT_EQ(journal_.back(), "lost");
}

TEST_F(KeeperClientTest, ACallBeforeTheConnectionIsAnswered) {
  client_ = std::make_unique<KeeperClient>(ClientOptions());
  client_->Start();
  Handle handle;
  EXPECT_EQ(core::ReasonOf(Put(1, &handle)), Reason::KEEPER_UNAVAILABLE);
  RunUntil([&] { return handle.Gone(); });
  StartKeeper();
  RunUntil([&] { return !journal_.empty(); });
  EXPECT_EQ(journal_, std::vector<std::string>{"ready"});
}

}  // namespace
}  // namespace gpumem::keeper
