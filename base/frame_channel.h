// base/frame_channel.h: a SOCK_SEQPACKET connection on an event loop, with a queue of frames to send. Std and Linux
// only.
//
// Never blocks the loop: what the socket does not take now waits in a queue and goes out, in order, when it can.
// Loop thread only.
#ifndef GPUMEM_BASE_FRAME_CHANNEL_H_
#define GPUMEM_BASE_FRAME_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/seqpacket.h"
#include "base/unique_fd.h"

namespace gpumem {

class FrameChannel : public std::enable_shared_from_this<FrameChannel> {
 public:
  struct Options {
    EventLoop* loop = nullptr;         // must outlive the channel
    std::size_t max_frame_bytes = 0;   // the largest frame that can come
    bool read_only_when_sent = false;  // back-pressure: read nothing while frames wait to be sent
    // One frame. The fds are the callee's; `truncated` as ReceivedFrame says. May call Close().
    std::function<void(std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated)> on_frame;
    // The peer is gone, or the socket failed: called once, after every frame that could still be read; not after
    // Close(). `how` is a few words for a log.
    std::function<void(const std::string& how)> on_end;
  };

  // Starts reading at once (the first callback comes from the loop, never from here). nullptr with errno set when the
  // loop cannot watch the socket.
  static std::shared_ptr<FrameChannel> Open(UniqueFd socket, Options options);
  ~FrameChannel();
  FrameChannel(const FrameChannel&) = delete;
  FrameChannel& operator=(const FrameChannel&) = delete;

  // Queues one frame, with at most one fd, which must stay open until the frame is sent or the channel is closed (the
  // channel neither owns nor closes it). A frame for a peer that is gone is dropped; on_end tells.
  void Send(std::vector<std::byte> bytes, int fd = -1);

  // Reads what is there now, then reports the end if there is one: for an owner that learned by other means that the
  // peer process has ended.
  void Drain();

  // Drops the socket and what is queued. No callback comes afterwards.
  void Close();

  bool open() const { return socket_.valid(); }
  std::size_t queued() const { return queue_.size(); }

 private:
  struct Frame {
    std::vector<std::byte> bytes;
    int fd;
  };
  enum class Read : std::uint8_t { kFrame, kNothing, kEnd };

  FrameChannel(UniqueFd socket, Options options);
  void OnEvents(std::uint32_t events);
  void ReadFrames(int most);
  Read ReadOne();
  void Flush();
  void WatchForNeeds();
  void End(const std::string& how);

  UniqueFd socket_;
  const Options options_;
  std::vector<std::byte> buffer_;
  std::deque<Frame> queue_;
  std::uint32_t watched_events_ = 0;
  bool peer_gone_ = false;  // sending failed; the end is reported when everything was read
  bool retrying_ = false;   // a timer will flush again
};

}  // namespace gpumem

#endif  // GPUMEM_BASE_FRAME_CHANNEL_H_
