// The handle channel against a peer that follows the protocol, and against peers that do not.
#include "client/handle_channel.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/unit/client/peer.h"
#include "tests/unit/client/temp_dir.h"

namespace gpumem::client {
namespace {

using client_test::FromClient;
using client_test::OpenDescriptors;
using client_test::Peer;
using testing::HasSubstr;
using wire::FrameType;
using namespace std::chrono_literals;  // NOLINT: durations in tests

Deadline Soon() { return DeadlineAfter(20s); }

struct Ends {
  GuardedFd client;
  Peer peer;
};

Ends Pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  return {GuardedFd::Adopt(ends[0]), Peer(UniqueFd(ends[1]))};
}

class HandleChannelTest : public testing::Test {
 protected:
  HandleChannelTest() : ends_(Pair()) {}

  // Greets first: the frames wait in the socket.
  void Open() {
    wire::WelcomeBody welcome;
    welcome.session_id = 77;
    ends_.peer.Send(FrameType::kWelcome, 0, welcome);
    ASSERT_TRUE(HandleChannel::OpenOn(std::move(ends_.client), "me", Soon(), &channel_).ok());
    ASSERT_TRUE(ends_.peer.Receive(&open_));
  }

  wire::HandlesBody Body(std::uint64_t lease_id, std::uint32_t first, std::uint32_t count) {
    wire::HandlesBody body;
    body.lease_id = lease_id;
    for (std::uint32_t i = 0; i < count; ++i) {
      body.entries[i].chunk_id = 100 + first + i;
      body.entries[i].bytes = 2 << 20;
      body.entries[i].index = first + i;
    }
    return body;
  }
  std::uint64_t SendHandles(std::uint64_t request_id, std::uint32_t first, std::uint32_t count) {
    const std::vector<int> fds(count, null_.get());
    return ends_.peer.Send(FrameType::kHandles, request_id, Body(5, first, count), fds);
  }
  wire::AcknowledgeBody ReceiveAcknowledge() {
    FromClient frame;
    EXPECT_TRUE(ends_.peer.Receive(&frame));
    EXPECT_EQ(frame.header.type, FrameType::kAcknowledge);
    return frame.As<wire::AcknowledgeBody>();
  }
  Status Await(std::uint64_t request_id, HandleSet* set) { return channel_->Await(request_id, Soon(), set); }

  UniqueFd null_{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  Ends ends_;
  FromClient open_;
  std::unique_ptr<HandleChannel> channel_;
};

TEST_F(HandleChannelTest, OpenSendsTheWitnessPipesReadEnd) {
  Open();
  EXPECT_EQ(channel_->welcome().session_id, 77u);
  EXPECT_EQ(open_.header.magic, wire::kFrameMagic);
  EXPECT_EQ(open_.header.sequence, 1u);
  EXPECT_STREQ(open_.As<wire::OpenBody>().client_name, "me");
  ASSERT_EQ(open_.fds.size(), 1u);
  for (int fd = 3; fd < 256; ++fd) {  // exec ends it, as it ends the driver's descriptors
    struct stat info {};
    struct stat pipe {};
    ASSERT_EQ(::fstat(open_.fds[0].get(), &pipe), 0);
    if (::fstat(fd, &info) != 0 || info.st_ino != pipe.st_ino || info.st_dev != pipe.st_dev) continue;
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  // The pipe ends when the last write end is closed: the client's own.
  pollfd witness{open_.fds[0].get(), POLLIN, 0};
  EXPECT_EQ(::poll(&witness, 1, 0), 0);
  channel_.reset();
  EXPECT_EQ(::poll(&witness, 1, 0), 1);
  EXPECT_TRUE(witness.revents & POLLHUP);
}

TEST_F(HandleChannelTest, ALongNameIsCutAndEnds) {
  ends_.peer.Send(FrameType::kWelcome, 0, wire::WelcomeBody{});
  ASSERT_TRUE(HandleChannel::OpenOn(std::move(ends_.client), std::string(500, 'n'), Soon(), &channel_).ok());
  ASSERT_TRUE(ends_.peer.Receive(&open_));
  const auto body = open_.As<wire::OpenBody>();
  EXPECT_EQ(::strnlen(body.client_name, sizeof(body.client_name)), sizeof(body.client_name) - 1);
}

TEST_F(HandleChannelTest, AReasonOfANewerDaemonIsSaid) {
  wire::RefusedBody refused;
  refused.reason = 9999;
  std::strcpy(refused.message, "something new");
  ends_.peer.Send(FrameType::kRefused, 0, refused);
  const Status status = HandleChannel::OpenOn(std::move(ends_.client), "me", Soon(), &channel_);
  EXPECT_EQ(status.reason, Reason::INTERNAL);
  EXPECT_THAT(status.message, testing::AllOf(HasSubstr("9999"), HasSubstr("something new")));
}

TEST_F(HandleChannelTest, ASecondWelcomeOrAFenceWithFdsEndsTheChannel) {
  Open();
  ends_.peer.Send(FrameType::kWelcome, 0, wire::WelcomeBody{});
  EXPECT_EQ(channel_->Poll().reason, Reason::PROTOCOL);
  channel_->Shutdown();
  EXPECT_EQ(channel_->Poll().reason, Reason::PROTOCOL) << "the first reason stays";
  ends_ = Pair();
  Open();
  const int fd = null_.get();
  ends_.peer.Send(FrameType::kFenced, 0, wire::FencedBody{}, std::span<const int>(&fd, 1));
  EXPECT_EQ(channel_->Poll().reason, Reason::PROTOCOL);
  EXPECT_FALSE(channel_->fenced().has_value());
}

TEST_F(HandleChannelTest, AKeptWitnessStaysOpen) {
  Open();
  channel_->KeepWitness();
  channel_.reset();
  pollfd witness{open_.fds[0].get(), POLLIN, 0};
  EXPECT_EQ(::poll(&witness, 1, 0), 0);
}

TEST_F(HandleChannelTest, RefusalHasReasonAndWords) {
  wire::RefusedBody refused;
  refused.reason = static_cast<std::uint32_t>(Reason::LIMIT);
  std::strcpy(refused.message, "64 sessions are open");
  ends_.peer.Send(FrameType::kRefused, 0, refused);
  const Status status = HandleChannel::OpenOn(std::move(ends_.client), "me", Soon(), &channel_);
  EXPECT_EQ(status.reason, Reason::LIMIT);
  EXPECT_EQ(status.message, "64 sessions are open");
}

TEST_F(HandleChannelTest, ASilentDaemonIsADeadline) {
  EXPECT_EQ(HandleChannel::OpenOn(std::move(ends_.client), "me", DeadlineAfter(20ms), &channel_).reason,
            Reason::DEADLINE);
}

TEST_F(HandleChannelTest, HandlesArriveWithTheirFds) {
  Open();
  channel_->Expect(9);
  const std::uint64_t sequence = SendHandles(9, 3, 2);
  HandleSet set;
  ASSERT_TRUE(Await(9, &set).ok());
  EXPECT_EQ(set.sequence, sequence);
  EXPECT_EQ(set.lease_id, 5u);
  ASSERT_EQ(set.entries.size(), 2u);
  EXPECT_EQ(set.entries[1].index, 4u);
  ASSERT_EQ(set.fds.size(), 2u);
  EXPECT_NE(::fcntl(set.fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_TRUE(channel_->Acknowledge(set.sequence, {true, false}, Soon()).ok());
  const auto acknowledge = ReceiveAcknowledge();
  EXPECT_EQ(acknowledge.handles_sequence, sequence);
  EXPECT_EQ(acknowledge.access, wire::MappedAccess::kNone);
  EXPECT_EQ(acknowledge.imported[0], 1);
}

TEST_F(HandleChannelTest, AFullFrame) {
  Open();
  channel_->Expect(9);
  SendHandles(9, 0, wire::kMaxFdsPerFrame);
  HandleSet set;
  ASSERT_TRUE(Await(9, &set).ok());
  EXPECT_EQ(set.fds.size(), wire::kMaxFdsPerFrame);
  ASSERT_TRUE(channel_->Acknowledge(set.sequence, std::vector<bool>(set.fds.size(), true), Soon()).ok());
  const auto acknowledge = ReceiveAcknowledge();
  EXPECT_EQ(acknowledge.imported[30], 0xff);
  EXPECT_EQ(acknowledge.imported[31], 0x1f);  // 253 = 31 * 8 + 5
}

TEST_F(HandleChannelTest, TwoThreadsGetTheirOwnFramesInAnyOrder) {
  Open();
  channel_->Expect(1);
  channel_->Expect(2);
  std::atomic<int> waiting{0};
  HandleSet sets[2];
  std::thread threads[2];
  for (int t = 0; t < 2; ++t) {
    threads[t] = std::thread([&, t] {
      ++waiting;
      EXPECT_TRUE(Await(static_cast<std::uint64_t>(t) + 1, &sets[t]).ok());
    });
  }
  while (waiting < 2) std::this_thread::sleep_for(1ms);
  SendHandles(2, 20, 1);
  threads[1].join();
  SendHandles(1, 10, 1);
  threads[0].join();
  EXPECT_EQ(sets[0].entries.at(0).index, 10u);
  EXPECT_EQ(sets[1].entries.at(0).index, 20u);
}

TEST_F(HandleChannelTest, ManyThreadsManyFetches) {
  Open();
  std::thread daemon([this] {
    FromClient frame;
    while (ends_.peer.Receive(&frame)) {
      if (frame.header.type != FrameType::kFetch) continue;
      SendHandles(frame.header.request_id, frame.As<wire::FetchBody>().first, 1);
    }
  });
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (std::uint32_t i = 0; i < 100; ++i) {
        const std::uint64_t id = 1 + t * 1000 + i;
        channel_->Expect(id);
        HandleSet set;
        ASSERT_TRUE(channel_->Fetch(id, 5, t * 1000 + i, 1, Soon()).ok());
        ASSERT_TRUE(Await(id, &set).ok());
        EXPECT_EQ(set.entries.at(0).index, t * 1000 + i);
        ASSERT_TRUE(channel_->Acknowledge(set.sequence, {true}, Soon()).ok());
        channel_->Forget(id, Soon());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  channel_->Shutdown();
  daemon.join();
}

TEST_F(HandleChannelTest, FetchRefused) {
  Open();
  channel_->Expect(4);
  ASSERT_TRUE(channel_->Fetch(4, 5, 0, 9, Soon()).ok());
  FromClient fetch;
  ASSERT_TRUE(ends_.peer.Receive(&fetch));
  EXPECT_EQ(fetch.header.request_id, 4u);
  EXPECT_EQ(fetch.As<wire::FetchBody>().count, 9u);
  wire::RefusedBody refused;
  refused.reason = static_cast<std::uint32_t>(Reason::HANDLE_LOST);
  ends_.peer.Send(FrameType::kFetchRefused, 4, refused);
  HandleSet set;
  EXPECT_EQ(Await(4, &set).reason, Reason::HANDLE_LOST);
  // The channel goes on.
  SendHandles(4, 0, 1);
  EXPECT_TRUE(Await(4, &set).ok());
}

TEST_F(HandleChannelTest, FramesThatNobodyWantsAreGivenBack) {
  Open();
  channel_->Expect(1);
  const std::size_t before = OpenDescriptors();
  const std::uint64_t unknown = SendHandles(8, 0, 3);
  SendHandles(1, 0, 1);
  HandleSet set;
  ASSERT_TRUE(Await(1, &set).ok());
  set = {};
  auto acknowledge = ReceiveAcknowledge();
  EXPECT_EQ(acknowledge.handles_sequence, unknown);
  EXPECT_EQ(acknowledge.imported[0], 0);
  // One that came before its call gave up.
  const std::uint64_t late = SendHandles(1, 1, 2);
  ASSERT_TRUE(channel_->Poll().ok());
  channel_->Forget(1, Soon());
  acknowledge = ReceiveAcknowledge();
  EXPECT_EQ(acknowledge.handles_sequence, late);
  EXPECT_EQ(acknowledge.imported[0], 0);
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HandleChannelTest, DeadlineOfAWait) {
  Open();
  channel_->Expect(1);
  HandleSet set;
  EXPECT_EQ(channel_->Await(1, DeadlineAfter(20ms), &set).reason, Reason::DEADLINE);
  SendHandles(1, 0, 1);
  EXPECT_TRUE(Await(1, &set).ok());
}

TEST_F(HandleChannelTest, NoRoomForDescriptorsFailsTheRequestAlone) {
  Open();
  channel_->Expect(1);
  const std::uint64_t sequence = SendHandles(1, 0, 40);
  const std::size_t before = OpenDescriptors();
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit small{static_cast<rlim_t>(before) + 5, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  HandleSet set;
  const Status status = Await(1, &set);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(status.reason, Reason::DESCRIPTORS);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(ReceiveAcknowledge().handles_sequence, sequence);
  SendHandles(1, 0, 40);
  EXPECT_TRUE(Await(1, &set).ok());
}

TEST_F(HandleChannelTest, AFenceIsRemembered) {
  Open();
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  channel_->WakeOnNews(event.get());
  EXPECT_FALSE(channel_->fenced().has_value());
  wire::FencedBody fenced;
  fenced.quarantine_reason = 2;
  ends_.peer.Send(FrameType::kFenced, 0, fenced);
  ASSERT_TRUE(channel_->Poll().ok());
  ASSERT_TRUE(channel_->fenced().has_value());
  EXPECT_EQ(channel_->fenced()->quarantine_reason, 2u);
  std::uint64_t count = 0;
  EXPECT_EQ(::read(event.get(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  channel_->WakeOnNews(event.get());  // whoever asks later hears of it too
  EXPECT_EQ(::read(event.get(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
}

TEST_F(HandleChannelTest, ADaemonThatGoesWakesEveryWaiter) {
  Open();
  std::atomic<int> waiting{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 3; ++t) {
    channel_->Expect(t);
    threads.emplace_back([&, t] {
      HandleSet set;
      ++waiting;
      EXPECT_EQ(Await(t, &set).reason, Reason::DISCONNECTED);
    });
  }
  while (waiting < 3) std::this_thread::sleep_for(1ms);
  ends_.peer.Hangup();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(channel_->ReportMapping(5, 1, wire::MappedAccess::kNone, Soon()).reason, Reason::DISCONNECTED);
  EXPECT_EQ(channel_->Poll().reason, Reason::DISCONNECTED);
}

TEST_F(HandleChannelTest, MappingFrame) {
  Open();
  ASSERT_TRUE(channel_->ReportMapping(5, 7, wire::MappedAccess::kReadOnly, Soon()).ok());
  FromClient frame;
  ASSERT_TRUE(ends_.peer.Receive(&frame));
  EXPECT_EQ(frame.header.type, FrameType::kMapping);
  EXPECT_EQ(frame.header.sequence, 2u);
  const auto body = frame.As<wire::MappingBody>();
  EXPECT_EQ(body.lease_id, 5u);
  EXPECT_EQ(body.count, 7u);
  EXPECT_EQ(body.access, wire::MappedAccess::kReadOnly);
}

TEST_F(HandleChannelTest, ADaemonThatReadsNothingIsADeadline) {
  Open();
  Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = channel_->ReportMapping(5, 1, wire::MappedAccess::kNone, DeadlineAfter(10ms));
  }
  EXPECT_EQ(status.reason, Reason::DEADLINE);
}

TEST(GuardedFdTest, AChildHasNoneAndClosesNobodyElses) {
  GuardedFd guarded = GuardedFd::Event();
  const int number = guarded.get();
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::fcntl(number, F_GETFD) >= 0) ::_exit(2);
    const int other = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (other != number && ::dup2(other, number) != number) ::_exit(3);
    guarded = GuardedFd();
    ::_exit(::fcntl(number, F_GETFD) >= 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
}

struct Spoiled {
  const char* name;
  void (*change)(wire::FrameHeader*);
  Reason reason;
};

class SpoiledFrameTest : public HandleChannelTest, public testing::WithParamInterface<Spoiled> {};

TEST_P(SpoiledFrameTest, EndsTheChannelAndLeavesNoDescriptor) {
  Open();
  channel_->Expect(1);
  const std::vector<int> fds(3, null_.get());
  const std::size_t before = OpenDescriptors();
  ends_.peer.Send(FrameType::kHandles, 1, Body(5, 0, 3), fds, GetParam().change);
  HandleSet set;
  EXPECT_EQ(Await(1, &set).reason, GetParam().reason);
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(Await(1, &set).reason, GetParam().reason);
}

INSTANTIATE_TEST_SUITE_P(
    All, SpoiledFrameTest,
    testing::Values(Spoiled{"magic", [](wire::FrameHeader* h) { h->magic = 1; }, Reason::PROTOCOL},
                    Spoiled{"version", [](wire::FrameHeader* h) { h->version = 2; }, Reason::VERSION_MISMATCH},
                    Spoiled{"type", [](wire::FrameHeader* h) { h->type = FrameType{99}; }, Reason::PROTOCOL},
                    Spoiled{"direction", [](wire::FrameHeader* h) { h->type = FrameType::kFetch; }, Reason::PROTOCOL},
                    Spoiled{"sequence", [](wire::FrameHeader* h) { h->sequence += 1; }, Reason::PROTOCOL},
                    Spoiled{"body", [](wire::FrameHeader* h) { h->body_bytes -= 8; }, Reason::PROTOCOL},
                    Spoiled{"more_fds", [](wire::FrameHeader* h) { h->fd_count = 4; }, Reason::PROTOCOL},
                    Spoiled{"fewer_fds", [](wire::FrameHeader* h) { h->fd_count = 2; }, Reason::PROTOCOL},
                    Spoiled{"no_fds", [](wire::FrameHeader* h) { h->fd_count = 0; }, Reason::PROTOCOL}),
    [](const auto& test_info) { return std::string(test_info.param.name); });

TEST_F(HandleChannelTest, ShortAndOversizedFrames) {
  for (const std::size_t size : {std::size_t{1}, sizeof(wire::FrameHeader) - 1, wire::kMaxFrameBytes + 8}) {
    Ends ends = Pair();
    const std::vector<std::byte> bytes(size);
    ASSERT_EQ(SendFrame(ends.peer.fd(), bytes, {}, true), 0);
    std::unique_ptr<HandleChannel> channel;
    EXPECT_EQ(HandleChannel::OpenOn(std::move(ends.client), "me", Soon(), &channel).reason, Reason::PROTOCOL);
  }
}

}  // namespace
}  // namespace gpumem::client
