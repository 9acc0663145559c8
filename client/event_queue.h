// client/event_queue.h: what the daemon tells a client, behind one descriptor that an application polls. Calls http2.h
// and handle_channel.h.
//
// The descriptor is an epoll of the WatchEvents stream, the handle socket, and an eventfd that is readable while there
// are events that were read but not taken. Nothing here waits. Not thread-safe: the owner gives turns.
#ifndef GPUMEM_CLIENT_EVENT_QUEUE_H_
#define GPUMEM_CLIENT_EVENT_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>

#include "client/guarded_fd.h"
#include "client/handle_channel.h"
#include "client/http2.h"
#include "client/messages.h"
#include "client/status.h"

namespace gpumem::client {

// What gpumem_next_event gives: an Event of the daemon, or one of the library's own.
struct ClientEvent {
  enum class Kind { kOfDaemon, kDisconnected };
  Kind kind = Kind::kOfDaemon;
  Event event;
};

class EventQueue {
 public:
  // `stream` has the WatchEvents call begun on it.
  static Status Make(std::shared_ptr<HandleChannel> channel, std::uint64_t session_id,
                     std::unique_ptr<Http2Connection> stream, std::unique_ptr<EventQueue>* queue);
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  int fd() const { return epoll_.get(); }

  // True when the stream has ended for a reason that is not the daemon's end: it can be begun again.
  bool stream_ended() const { return stream_ == nullptr && !disconnected_; }
  Status Restart(std::unique_ptr<Http2Connection> stream);

  // The next event, when there is one now. An error once when the daemon refused or ended the stream.
  Status Next(ClientEvent* event, bool* got);

 private:
  EventQueue(std::shared_ptr<HandleChannel> channel, std::uint64_t session_id)
      : channel_(std::move(channel)), session_id_(session_id) {}
  Status Watch(int fd);
  void ReadStream();
  void ReadChannel();
  void Take(const Event& event);
  void Disconnected();
  void SetReadable();

  std::shared_ptr<HandleChannel> channel_;
  const std::uint64_t session_id_;
  GuardedFd epoll_;
  GuardedFd ready_;
  std::unique_ptr<Http2Connection> stream_;
  std::deque<ClientEvent> events_;
  Status refused_;  // why the daemon ended the stream; told once
  bool disconnected_ = false;
  bool fence_told_ = false;
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_EVENT_QUEUE_H_
