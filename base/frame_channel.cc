#include "base/frame_channel.h"

#include <sys/epoll.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace gpumem {
namespace {

// Frames read for one event, so that one busy peer does not starve the loop's other work.
constexpr int kFramesAtOnce = 16;

// The kernel's limit of in-flight fds (ETOOMANYREFS) gives no event when it eases, so the send is tried again.
constexpr std::chrono::milliseconds kInFlightRetry(10);

}  // namespace

std::shared_ptr<FrameChannel> FrameChannel::Open(UniqueFd socket, Options options) {
  std::shared_ptr<FrameChannel> channel(new FrameChannel(std::move(socket), std::move(options)));
  channel->watched_events_ = EPOLLIN;
  const std::weak_ptr<FrameChannel> weak = channel;
  const int error = channel->options_.loop->Watch(channel->socket_.get(), EPOLLIN, [weak](std::uint32_t events) {
    // Holding it here keeps the callbacks alive when one of them closes and drops the channel.
    if (const std::shared_ptr<FrameChannel> self = weak.lock()) self->OnEvents(events);
  });
  if (error == 0) return channel;
  channel->socket_.reset();
  errno = error;
  return nullptr;
}

FrameChannel::FrameChannel(UniqueFd socket, Options options)
    : socket_(std::move(socket)), options_(std::move(options)), buffer_(options_.max_frame_bytes) {}

FrameChannel::~FrameChannel() { Close(); }

void FrameChannel::Close() {
  if (!socket_) return;
  options_.loop->Unwatch(socket_.get());
  socket_.reset();
  queue_.clear();
}

void FrameChannel::Send(std::vector<std::byte> bytes, int fd) {
  if (!socket_ || peer_gone_) return;
  queue_.push_back(Frame{std::move(bytes), fd});
  if (queue_.size() == 1) Flush();
  WatchForNeeds();
}

void FrameChannel::Flush() {
  while (socket_ && !queue_.empty()) {
    const Frame& frame = queue_.front();
    const std::span<const int> fds(&frame.fd, frame.fd >= 0 ? 1 : 0);
    const int error = SendFrame(socket_.get(), frame.bytes, fds, /*blocking=*/false);
    if (error == 0) {
      queue_.pop_front();
    } else if (error == EAGAIN) {
      return;
    } else if (error == ETOOMANYREFS) {
      if (retrying_) return;
      retrying_ = true;
      options_.loop->After(kInFlightRetry, [weak = weak_from_this()] {
        const std::shared_ptr<FrameChannel> self = weak.lock();
        if (!self) return;
        self->retrying_ = false;
        self->Flush();
        self->WatchForNeeds();
      });
      return;
    } else {
      // The peer is gone. What it sent before can still be read, and reading reports the end.
      peer_gone_ = true;
      queue_.clear();
    }
  }
}

void FrameChannel::WatchForNeeds() {
  if (!socket_) return;
  const bool waiting = !queue_.empty();
  std::uint32_t events = 0;
  if (!waiting || !options_.read_only_when_sent) events |= EPOLLIN;
  // While the retry timer runs the socket is writable, and EPOLLOUT would spin.
  if (waiting && !retrying_) events |= EPOLLOUT;
  if (events == watched_events_) return;
  watched_events_ = events;
  options_.loop->Modify(socket_.get(), events);
}

void FrameChannel::OnEvents(std::uint32_t events) {
  if (events & EPOLLOUT) Flush();
  if (events & (EPOLLHUP | EPOLLERR)) {
    // Nobody will take what is queued, so nothing stands against reading.
    peer_gone_ = true;
    queue_.clear();
  }
  if (queue_.empty() || !options_.read_only_when_sent) ReadFrames(kFramesAtOnce);
  WatchForNeeds();
}

void FrameChannel::ReadFrames(int most) {
  for (int i = 0; i < most; ++i) {
    if (ReadOne() != Read::kFrame) return;
    if (options_.read_only_when_sent && !queue_.empty()) return;
  }
}

void FrameChannel::Drain() {
  const std::shared_ptr<FrameChannel> self = shared_from_this();
  peer_gone_ = true;
  queue_.clear();
  while (ReadOne() == Read::kFrame) {
  }
}

FrameChannel::Read FrameChannel::ReadOne() {
  if (!socket_) return Read::kEnd;
  ReceivedFrame frame;
  int error = ReceiveFrame(socket_.get(), buffer_, /*blocking=*/false, &frame);
  // A peer that closed with unread frames leaves ECONNRESET in front of what it had sent; reading it clears it.
  if (error == ECONNRESET) error = ReceiveFrame(socket_.get(), buffer_, /*blocking=*/false, &frame);
  if (error == EAGAIN) return Read::kNothing;
  if (error != 0) {
    End(std::string("the socket failed: ") + std::strerror(error));
    return Read::kEnd;
  }
  if (frame.size == 0 && frame.fds.empty()) {
    End("the peer closed the socket");
    return Read::kEnd;
  }
  options_.on_frame(std::span<const std::byte>(buffer_).first(frame.size), std::move(frame.fds), frame.truncated);
  return socket_ ? Read::kFrame : Read::kEnd;
}

void FrameChannel::End(const std::string& how) {
  Close();
  options_.on_end(how);
}

}  // namespace gpumem
