#include "daemon/session/connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "daemon/core/reasons.h"
#include "tests/unit/session/session_test_util.h"

namespace gpumem::session {
namespace {

using core::Reason;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

class ConnectionsTest : public ::testing::Test {
 protected:
  ConnectionsTest() {
    options_.numbers = HighFdRange(700, 760);
    admit_ = [](const PeerIdentity&) { return absl::OkStatus(); };
  }

  void Start() {
    ListenerOptions listener;
    listener.path = path();
    listener.setting = "sockets.control";
    absl::StatusOr<ListeningSocket> socket = ListeningSocket::Bind(listener);
    ASSERT_TRUE(socket.ok()) << socket.status();
    connections_ = std::make_unique<ControlConnections>(
        &loop_, *std::move(socket), options_, [this](const PeerIdentity& peer) { return admit_(peer); },
        [this](int fd) {
          known_at_hand_over_ = connections_->Find(fd) != nullptr;
          handed_.emplace_back(fd);
        },
        &log_);
    ASSERT_TRUE(connections_->Start().ok());
  }
  std::string path() const { return dir_.Path("control.sock"); }

  // A connected client, and its connection handed over.
  UniqueFd ConnectOne() {
    const std::size_t before = handed_.size();
    UniqueFd client = Connect(path(), SOCK_STREAM);
    RunUntil(&loop_, [&] { return handed_.size() > before; });
    return client;
  }

  TempDir dir_;
  EventLoop loop_;
  RecordingLog log_;
  ControlConnections::Options options_;
  ControlConnections::Admit admit_;
  std::vector<UniqueFd> handed_;
  bool known_at_hand_over_ = false;
  std::unique_ptr<ControlConnections> connections_;
};

TEST_F(ConnectionsTest, AConnectionIsKnownByItsHighNumber) {
  Start();
  const UniqueFd client = ConnectOne();
  const int fd = handed_[0].get();
  EXPECT_GE(fd, 700);
  EXPECT_TRUE(known_at_hand_over_);
  const std::shared_ptr<const PeerIdentity> peer = connections_->Find(fd);
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(connections_->FindByPeerString("fd:" + std::to_string(fd)), peer);
  for (const char* text : {"", "fd:", "fd:x", "unix:", "fd:12x", "fd:-1", "fd:99999999999999999999"}) {
    EXPECT_EQ(connections_->FindByPeerString(text), nullptr) << text;
  }
  ASSERT_EQ(::send(client.get(), "hi", 2, 0), 2);
  char text[3] = {};
  EXPECT_EQ(::recv(fd, text, 2, 0), 2) << "the connection's bytes belong to whom it was handed";
}

TEST_F(ConnectionsTest, AnEntryEndsWithTheClient) {
  Start();
  UniqueFd client = ConnectOne();
  const int fd = handed_[0].get();
  client.reset();
  RunUntil(&loop_, [&] { return connections_->Find(fd) == nullptr; });
}

TEST_F(ConnectionsTest, AnEntryEndsWhenTheServerShutsTheConnectionDown) {
  Start();
  const UniqueFd client = ConnectOne();
  const int fd = handed_[0].get();
  ::shutdown(fd, SHUT_RDWR);  // as gRPC does before it closes
  handed_.clear();
  RunUntil(&loop_, [&] { return connections_->Find(fd) == nullptr; });
  EXPECT_TRUE(AtEnd(client.get()));
}

TEST_F(ConnectionsTest, NumbersAreNotUsedAgainSoon) {
  Start();
  std::vector<int> numbers;
  for (int i = 0; i < 5; ++i) {
    UniqueFd client = ConnectOne();
    numbers.push_back(handed_[0].get());
    client.reset();
    RunUntil(&loop_, [&] { return connections_->Find(numbers.back()) == nullptr; });
    handed_.clear();
  }
  for (std::size_t i = 1; i < numbers.size(); ++i) EXPECT_GT(numbers[i], numbers[i - 1]);
}

TEST(HighFdRangeTest, RisesAndWraps) {
  const Pipe pipe;
  HighFdRange range(800, 803);
  for (int round = 0; round < 3; ++round) {
    for (int expected = 800; expected < 803; ++expected) {
      const UniqueFd copy = range.Duplicate(pipe.read.get());
      EXPECT_EQ(copy.get(), expected);
      EXPECT_NE(::fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
    }
  }
}

TEST(HighFdRangeTest, AFullOrLoweredRangeStillGivesADescriptor) {
  const Pipe pipe;
  HighFdRange range(800, 802);
  std::vector<UniqueFd> copies;
  for (int i = 0; i < 4; ++i) copies.push_back(range.Duplicate(pipe.read.get()));
  for (const UniqueFd& copy : copies) EXPECT_GE(copy.get(), 800);
}

TEST_F(ConnectionsTest, WhoIsNotAdmittedIsClosed) {
  admit_ = [](const PeerIdentity&) { return core::Error(Reason::NOT_AN_OPERATOR, "not you"); };
  Start();
  const UniqueFd client = Connect(path(), SOCK_STREAM);
  RunUntil(&loop_, [&] { return AtEnd(client.get()); });
  EXPECT_TRUE(handed_.empty());
  EXPECT_THAT(log_.text(), HasSubstr("not you"));
}

TEST_F(ConnectionsTest, ASilentConnectionIsClosedAndAUsedOneStays) {
  options_.first_call_deadline = milliseconds(30);
  Start();
  const UniqueFd used = ConnectOne();
  connections_->MarkUsed(handed_[0].get());
  const UniqueFd silent = ConnectOne();
  RunUntil(&loop_, [&] { return AtEnd(silent.get()) && connections_->Find(handed_[1].get()) == nullptr; });
  EXPECT_FALSE(AtEnd(used.get()));
  EXPECT_NE(connections_->Find(handed_[0].get()), nullptr);
  EXPECT_THAT(log_.text(), HasSubstr("no call within 30 ms"));
}

TEST_F(ConnectionsTest, OneUidCannotTakeMoreThanItsShare) {
  options_.limits.for_each_uid = 2;
  Start();
  UniqueFd first = ConnectOne();
  const UniqueFd second = ConnectOne();
  const UniqueFd third = Connect(path(), SOCK_STREAM);
  RunUntil(&loop_, [&] { return AtEnd(third.get()); });
  EXPECT_THAT(log_.text(), HasSubstr("the limit for each uid is 2"));
  const int fd = handed_[0].get();
  first.reset();
  RunUntil(&loop_, [&] { return connections_->Find(fd) == nullptr; });
  const UniqueFd fourth = ConnectOne();
  EXPECT_FALSE(AtEnd(fourth.get()));
}

TEST(ConnectionCountsTest, EachLimitHoldsExactlyAndIsGivenBack) {
  ConnectionCounts counts(ConnectionLimits{2, 3});
  std::vector<ConnectionCounts::Slot> slots;
  slots.push_back(*counts.Take(1));
  slots.push_back(*counts.Take(1));
  EXPECT_EQ(core::ReasonOf(counts.Take(1).status()), Reason::LIMIT);
  slots.push_back(*counts.Take(2));
  EXPECT_THAT(std::string(counts.Take(3).status().message()), HasSubstr("the limit is 3"));
  slots.pop_back();
  EXPECT_TRUE(counts.Take(3).ok());
  slots.clear();
  EXPECT_TRUE(counts.Take(1).ok());
}

TEST_F(ConnectionsTest, CloseAllEndsEveryConnectionAndAcceptsNoMore) {
  Start();
  const UniqueFd client = ConnectOne();
  const int fd = handed_[0].get();
  connections_->CloseAll();
  EXPECT_TRUE(AtEnd(client.get()));
  RunUntil(&loop_, [&] { return connections_->Find(fd) == nullptr; });
  EXPECT_FALSE(Connect(path(), SOCK_STREAM).valid());
}

TEST_F(ConnectionsTest, ConnectionsAreFoundFromOtherThreadsWhileTheyComeAndGo) {
  Start();
  std::atomic<bool> stop{false};
  std::atomic<int> found{0};
  std::thread reader([&] {
    while (!stop.load()) {
      for (int fd = 700; fd < 760; ++fd) {
        if (const auto peer = connections_->Find(fd)) {
          connections_->MarkUsed(fd);
          if (peer->pid == ::getpid()) ++found;
        }
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // the lock is not fair
    }
  });
  for (int i = 0; i < 40 || found.load() == 0; ++i) {
    UniqueFd client = ConnectOne();
    client.reset();
    Settle(&loop_);
    handed_.clear();
  }
  stop.store(true);
  reader.join();
}

TEST_F(ConnectionsTest, OutOfDescriptorsIsSurvived) {
  Start();
  std::vector<UniqueFd> hogs;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  UniqueFd client(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit low = before;
  low.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  while (true) {
    UniqueFd hog(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!hog) break;
    hogs.push_back(std::move(hog));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path().c_str(), path().size());
  ASSERT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  RunUntil(&loop_, [&] { return AtEnd(client.get()); });  // closed, not left hanging
  EXPECT_THAT(log_.text(), HasSubstr("raise LimitNOFILE"));
  hogs.clear();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd next = ConnectOne();
  EXPECT_FALSE(AtEnd(next.get()));
}

TEST_F(ConnectionsTest, NothingLeaks) {
  const std::size_t before = OpenFdCount();
  Start();
  {
    const UniqueFd client = ConnectOne();
    const UniqueFd other = ConnectOne();
  }
  connections_.reset();
  handed_.clear();
  EXPECT_EQ(OpenFdCount(), before);
}

}  // namespace
}  // namespace gpumem::session
