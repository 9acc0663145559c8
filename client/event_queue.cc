#include "client/event_queue.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace gpumem::client {
namespace {

// The daemon goes away, in one way or another; anything else is a refusal.
bool MeansGone(const Status& status) {
  switch (status.reason) {
    case Reason::OK:
    case Reason::DISCONNECTED:
    case Reason::CANCELLED:
    case Reason::DRAINING:
    case Reason::UNKNOWN_SESSION:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status EventQueue::Make(std::shared_ptr<HandleChannel> channel, std::uint64_t session_id,
                        std::unique_ptr<Http2Connection> stream, std::unique_ptr<EventQueue>* queue) {
  std::unique_ptr<EventQueue> made(new EventQueue(std::move(channel), session_id));
  made->epoll_ = GuardedFd::Epoll();
  if (made->epoll_.valid()) made->ready_ = GuardedFd::Event();
  if (!made->ready_.valid()) {
    return Error(Reason::DESCRIPTORS, "this process cannot open a descriptor for events: " + ErrnoText(errno));
  }
  if (Status status = made->Watch(made->ready_.get()); !status.ok()) return status;
  if (Status status = made->Watch(made->channel_->fd()); !status.ok()) return status;
  if (Status status = made->Restart(std::move(stream)); !status.ok()) return status;
  made->channel_->WakeOnNews(made->ready_.get());
  *queue = std::move(made);
  return {};
}

EventQueue::~EventQueue() { channel_->WakeOnNews(-1); }

Status EventQueue::Watch(int fd) {
  epoll_event entry{};
  entry.events = EPOLLIN;
  entry.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &entry) == 0) return {};
  return Error(Reason::DESCRIPTORS, "this process cannot watch another descriptor: " + ErrnoText(errno));
}

Status EventQueue::Restart(std::unique_ptr<Http2Connection> stream) {
  if (Status status = Watch(stream->fd()); !status.ok()) return status;
  stream_ = std::move(stream);
  // What came while the call was begun was read with it: its descriptor alone would not tell.
  ReadStream();
  SetReadable();
  return {};
}

// Level-triggered: readable as long as the count is not read, which happens when there is nothing to take.
void EventQueue::SetReadable() {
  std::uint64_t count = 1;
  if (events_.empty()) (void)!::read(ready_.get(), &count, sizeof(count));
  count = 1;
  // Another thread may have learned something between the last look and the read above.
  const bool news = (!fence_told_ && channel_->fenced().has_value()) || (!disconnected_ && channel_->dead());
  if (!events_.empty() || !refused_.ok() || news) (void)!::write(ready_.get(), &count, sizeof(count));
}

void EventQueue::Disconnected() {
  if (disconnected_) return;
  disconnected_ = true;
  // An ended socket would be readable for ever.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel_->fd(), nullptr);
  stream_.reset();
  ClientEvent gone;
  gone.kind = ClientEvent::Kind::kDisconnected;
  events_.push_back(std::move(gone));
}

void EventQueue::Take(const Event& event) {
  if (event.kind == Event::Kind::kUnknown) return;
  if (event.kind == Event::Kind::kSessionFenced) {
    if (event.session_id != session_id_ || fence_told_) return;
    fence_told_ = true;
  }
  events_.push_back({ClientEvent::Kind::kOfDaemon, event});
}

void EventQueue::ReadChannel() {
  const Status status = channel_->Poll();
  const auto fenced = channel_->fenced();
  if (fenced.has_value() && !fence_told_) {
    Event event;
    event.kind = Event::Kind::kSessionFenced;
    event.session_id = session_id_;
    event.state = fenced->quarantine_reason;
    event.detail.assign(fenced->message, strnlen(fenced->message, sizeof(fenced->message)));
    Take(event);
  }
  if (!status.ok()) Disconnected();
}

void EventQueue::ReadStream() {
  if (stream_ == nullptr) return;
  const Status ran = stream_->RunReady();
  std::string message;
  while (stream_->NextMessage(&message)) {
    Event event;
    if (Decode(message, &event)) Take(event);
  }
  if (ran.ok() && !stream_->ended()) return;
  Status outcome = ran.ok() ? stream_->Outcome() : ran;
  if (MeansGone(outcome)) return Disconnected();
  stream_.reset();
  refused_ = std::move(outcome);
}

Status EventQueue::Next(ClientEvent* event, bool* got) {
  if (events_.empty() && !disconnected_) {
    // The stream first: what it says of a fence is more than the frame does.
    ReadStream();
    if (!disconnected_) ReadChannel();
  }
  *got = !events_.empty();
  if (*got) {
    *event = std::move(events_.front());
    events_.pop_front();
  }
  Status refused = *got ? Status() : std::exchange(refused_, Status());
  SetReadable();
  return refused;
}

}  // namespace gpumem::client
