// What becomes readable, what is told, and how often; the daemon's two voices are played byte by byte.
#include "client/event_queue.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpumem/v1/memory.pb.h"
#include "tests/unit/client/peer.h"

namespace gpumem::client {
namespace {

using client_test::Peer;
using namespace std::chrono_literals;  // NOLINT: durations in tests

constexpr std::uint64_t kSession = 77;

Deadline Soon() { return DeadlineAfter(20s); }

class EventQueueTest : public testing::Test {
 protected:
  EventQueueTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    peer_ = std::make_unique<Peer>(UniqueFd(ends[1]));
    wire::WelcomeBody welcome;
    welcome.session_id = kSession;
    peer_->Send(wire::FrameType::kWelcome, 0, welcome);
    std::unique_ptr<HandleChannel> channel;
    EXPECT_TRUE(HandleChannel::OpenOn(GuardedFd::Adopt(ends[0]), "me", Soon(), &channel).ok());
    channel_ = std::move(channel);
  }

  static std::string Frame(char type, char flags, std::uint32_t stream, const std::string& payload) {
    std::string frame;
    for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
    frame.push_back(type);
    frame.push_back(flags);
    for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
    return frame + payload;
  }
  static std::string Field(const std::string& name, const std::string& value) {
    return std::string(1, '\0') + static_cast<char>(name.size()) + name + static_cast<char>(value.size()) + value;
  }
  static std::string Headers(char flags, const std::string& more = "") {
    return Frame(4, 0, 0, "") +
           Frame(1, flags, 1, Field(":status", "200") + Field("content-type", "application/grpc") + more);
  }
  static std::string Message(const v1::Event& event) {
    const std::string body = event.SerializeAsString();
    return Frame(0, 0, 1, std::string(4, '\0') + static_cast<char>(body.size()) + body);
  }
  static v1::Event Fence(std::uint64_t session) {
    v1::Event event;
    event.set_sequence(5);
    event.mutable_session_fenced()->set_session_id(session);
    return event;
  }
  // Makes the queue on a stream that was opened after the daemon said `bytes`, as Transport::Open opens one.
  void Make(const std::string& bytes) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    daemon_.reset(ends[1]);
    ASSERT_EQ(::send(daemon_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::unique_ptr<Http2Connection> stream;
    ASSERT_TRUE(Http2Connection::Make(GuardedFd::Adopt(ends[0]), &stream).ok());
    ASSERT_TRUE(stream->Begin("/gpumem.v1.MemoryService/WatchEvents", "", std::nullopt).ok());
    ASSERT_TRUE(stream->RunReady().ok());
    ASSERT_TRUE(EventQueue::Make(channel_, kSession, std::move(stream), &queue_).ok());
  }
  bool Readable() const {
    pollfd entry{queue_->fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }

  std::unique_ptr<Peer> peer_;
  std::shared_ptr<HandleChannel> channel_;
  UniqueFd daemon_;
  std::unique_ptr<EventQueue> queue_;
  ClientEvent event_;
  bool got_ = false;
};

TEST_F(EventQueueTest, WhatCameWhileTheStreamWasOpenedIsReadable) {
  Make(Headers(0x4) + Message(Fence(kSession)));
  EXPECT_TRUE(Readable());
  ASSERT_TRUE(queue_->Next(&event_, &got_).ok());
  ASSERT_TRUE(got_);
  EXPECT_EQ(event_.event.sequence, 5u);
  ASSERT_TRUE(queue_->Next(&event_, &got_).ok());
  EXPECT_FALSE(got_);
  EXPECT_FALSE(Readable());
}

TEST_F(EventQueueTest, ARefusalThatCameWhileTheStreamWasOpenedIsReadableAndToldOnce) {
  Make(Headers(0x5, Field("grpc-status", "8") + Field("grpc-message", "full")));
  EXPECT_TRUE(Readable());
  EXPECT_EQ(queue_->Next(&event_, &got_).reason, Reason::LIMIT);
  EXPECT_FALSE(got_);
  EXPECT_TRUE(queue_->stream_ended());
  EXPECT_TRUE(queue_->Next(&event_, &got_).ok());
  EXPECT_FALSE(Readable());
}

TEST_F(EventQueueTest, AFenceThatBothSayIsToldOnce) {
  Make(Headers(0x4) + Message(Fence(kSession + 1)) + Message(Fence(kSession)));
  peer_->Send(wire::FrameType::kFenced, 0, wire::FencedBody{});
  int told = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(queue_->Next(&event_, &got_).ok());
    told += got_ ? 1 : 0;
  }
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(Readable());
}

TEST_F(EventQueueTest, AQueueThatIsGoneIsNotWoken) {
  Make(Headers(0x4));
  queue_.reset();
  // These have the numbers that the queue had.
  const UniqueFd first(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const UniqueFd second(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const UniqueFd third(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  peer_->Send(wire::FrameType::kFenced, 0, wire::FencedBody{});
  ASSERT_TRUE(channel_->Poll().ok());
  std::uint64_t count = 0;
  for (const UniqueFd* fd : {&first, &second, &third}) EXPECT_LT(::read(fd->get(), &count, sizeof(count)), 0);
}

}  // namespace
}  // namespace gpumem::client
