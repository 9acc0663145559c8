// daemon/service/event_stream.cc: see event_stream.h.
#include "daemon/service/event_stream.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "base/mutex.h"
#include "daemon/core/reasons.h"
#include "daemon/service/convert.h"
#include "daemon/service/status_map.h"
#include "daemon/text.h"

namespace gpumem::service {
namespace {

class Stream;

// The queue between the strand and gRPC. At most one operation is in flight; whoever sets `busy_` starts it, outside
// the lock. The stream is finished only when nothing is in flight, and gRPC destroys the reactor only after that, so
// `stream_` is valid for whoever holds `busy_`.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  explicit Watcher(Stream* stream) : stream_(stream) {}

  void Offer(const manager::Event& event) GPUMEM_EXCLUDES(mu_);
  void End(grpc::Status status) GPUMEM_EXCLUDES(mu_);
  void OnOperationDone(bool ok) GPUMEM_EXCLUDES(mu_);
  void SendHeaders() GPUMEM_EXCLUDES(mu_);

 private:
  // Starts what is due: the next event, or the end. Called without the lock, after an operation or a new entry.
  void Advance() GPUMEM_EXCLUDES(mu_);

  Stream* const stream_;
  Mutex mu_;
  std::deque<v1::Event> queue_ GPUMEM_GUARDED_BY(mu_);
  std::optional<grpc::Status> end_ GPUMEM_GUARDED_BY(mu_);
  bool busy_ GPUMEM_GUARDED_BY(mu_) = false;
  bool finished_ GPUMEM_GUARDED_BY(mu_) = false;
};

class Stream final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  Stream(const Node& node, EventFilter filter) : loop_(node.loop), watcher_(std::make_shared<Watcher>(this)) {
    loop_->Post([&node, watcher = watcher_, subscription = subscription_, filter = std::move(filter)] {
      Subscribe(node, watcher, subscription, filter);
    });
  }

  // Runs by whoever holds the watcher's `busy_`.
  void Write(v1::Event event) {
    current_ = std::move(event);
    StartWrite(&current_);
  }

 private:
  struct Subscription {
    Node::Unsubscribe unsubscribe;
    bool over = false;
  };  // on the strand

  static void Subscribe(const Node& node, const std::shared_ptr<Watcher>& watcher,
                        const std::shared_ptr<Subscription>& subscription, const EventFilter& filter) {
    if (subscription->over) return;
    if (node.manager->draining()) {
      watcher->End(ToGrpc(core::Error(core::Reason::DRAINING, "the daemon is stopping; watch again once it is back")));
      return;
    }
    auto subscribed = node.subscribe([watcher, filter](const manager::Event& event) {
      if (filter(event)) watcher->Offer(event);
      if (std::holds_alternative<manager::DaemonStoppingEvent>(event.kind)) watcher->End(grpc::Status::OK);
    });
    if (!subscribed.ok()) {
      watcher->End(ToGrpc(subscribed.status()));
      return;
    }
    subscription->unsubscribe = *std::move(subscribed);
    watcher->SendHeaders();
  }

  void OnSendInitialMetadataDone(bool ok) override { watcher_->OnOperationDone(ok); }
  void OnWriteDone(bool ok) override { watcher_->OnOperationDone(ok); }
  void OnCancel() override {
    watcher_->End(ToGrpc(core::Error(core::Reason::CANCELLED, "the caller stopped watching")));
  }
  void OnDone() override {
    loop_->Post([subscription = subscription_] {
      subscription->over = true;
      if (subscription->unsubscribe) std::exchange(subscription->unsubscribe, nullptr)();
    });
    delete this;
  }

  EventLoop* const loop_;
  const std::shared_ptr<Watcher> watcher_;
  const std::shared_ptr<Subscription> subscription_ = std::make_shared<Subscription>();
  v1::Event current_;
};

void Watcher::Offer(const manager::Event& event) {
  {
    MutexLock lock(&mu_);
    if (end_) return;
    if (queue_.size() >= kMaxQueuedEvents) {
      end_ = ToGrpc(core::Error(core::Reason::LIMIT,
                                Cat("this watcher left ", kMaxQueuedEvents,
                                    " events unread and is dropped; watch again, and read the lists for what "
                                    "was missed"),
                                {{"limit", Cat(kMaxQueuedEvents)}}));
      queue_.clear();
    } else {
      ToProto(event, &queue_.emplace_back());
    }
  }
  Advance();
}

void Watcher::End(grpc::Status status) {
  {
    MutexLock lock(&mu_);
    if (!end_) end_ = std::move(status);
  }
  Advance();
}

void Watcher::OnOperationDone(bool ok) {
  {
    MutexLock lock(&mu_);
    busy_ = false;
    if (!ok) {
      queue_.clear();
      if (!end_) end_ = grpc::Status::CANCELLED;
    }
  }
  Advance();
}

void Watcher::SendHeaders() {
  {
    MutexLock lock(&mu_);
    if (busy_ || end_) return;
    busy_ = true;
  }
  stream_->StartSendInitialMetadata();
}

void Watcher::Advance() {
  std::optional<v1::Event> next;
  std::optional<grpc::Status> end;
  {
    MutexLock lock(&mu_);
    if (busy_ || finished_) return;
    if (!queue_.empty()) {
      next = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    } else if (end_) {
      end = *end_;
      finished_ = true;
    }
  }
  if (next) stream_->Write(*std::move(next));
  if (end) stream_->Finish(*end);
}

class Refusal final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }

 private:
  void OnDone() override { delete this; }
};

struct WorkerMaySee {
  core::SessionId session;
  bool operator()(const manager::SessionFencedEvent& e) const { return e.session == session; }
  bool operator()(const manager::SessionEndedEvent&) const { return true; }
  bool operator()(const manager::DeviceChangedEvent&) const { return true; }
  bool operator()(const manager::SegmentChangedEvent&) const { return true; }
  bool operator()(const manager::DaemonStoppingEvent&) const { return true; }
};

}  // namespace

grpc::ServerWriteReactor<v1::Event>* StreamEvents(const Node& node, EventFilter filter) {
  return new Stream(node, std::move(filter));
}

grpc::ServerWriteReactor<v1::Event>* RefuseStream(const absl::Status& status) { return new Refusal(ToGrpc(status)); }

EventFilter WorkerFilter(core::SessionId session) {
  return [session](const manager::Event& event) { return std::visit(WorkerMaySee{session}, event.kind); };
}

}  // namespace gpumem::service
