// daemon/service/event_stream.cc: see event_stream.h.
#include "daemon/service/event_stream.h"

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

// Between the hub's wake and gRPC. At most one operation is in flight: whoever sets `busy_` starts it, with no lock
// held. The stream is finished only when nothing is in flight, and gRPC destroys it only after that, so `stream_` is
// valid for whoever holds `busy_` or sets `finished_`.
class Watcher {
 public:
  explicit Watcher(Stream* stream) : stream_(stream) {}

  // Once, before anything else: takes the subscription and sends the headers.
  void Begin(std::unique_ptr<observe::EventHub::Subscription> subscription) GPUMEM_EXCLUDES(mu_);
  void OnWake() GPUMEM_EXCLUDES(mu_);
  void End(grpc::Status status) GPUMEM_EXCLUDES(mu_);
  void OnOperationDone(bool ok) GPUMEM_EXCLUDES(mu_);

 private:
  // Starts what is due: the end, or the next event.
  void Advance() GPUMEM_EXCLUDES(mu_);
  // With `busy_` held. False when there was nothing to start.
  bool StartNextEvent() GPUMEM_EXCLUDES(mu_);

  Stream* const stream_;
  std::unique_ptr<observe::EventHub::Subscription> subscription_;  // set by Begin, then constant

  Mutex mu_;
  std::optional<grpc::Status> end_ GPUMEM_GUARDED_BY(mu_);
  bool may_have_events_ GPUMEM_GUARDED_BY(mu_) = false;
  bool busy_ GPUMEM_GUARDED_BY(mu_) = true;  // until Begin's headers are sent
  bool finished_ GPUMEM_GUARDED_BY(mu_) = false;
};

class Stream final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  Stream(observe::EventHub* events, EventFilter filter) : watcher_(std::make_shared<Watcher>(this)) {
    auto subscription = events->Subscribe(std::move(filter), [weak = std::weak_ptr<Watcher>(watcher_)] {
      if (const std::shared_ptr<Watcher> watcher = weak.lock()) watcher->OnWake();
    });
    if (!subscription.ok()) {
      Finish(ToGrpc(subscription.status()));
      return;
    }
    watcher_->Begin(*std::move(subscription));
  }

  // By whoever holds the watcher's `busy_`.
  void Write(const manager::Event& event) {
    current_.Clear();
    ToProto(event, &current_);
    StartWrite(&current_);
  }

 private:
  void OnSendInitialMetadataDone(bool ok) override { watcher_->OnOperationDone(ok); }
  void OnWriteDone(bool ok) override { watcher_->OnOperationDone(ok); }
  void OnCancel() override {
    watcher_->End(ToGrpc(core::Error(core::Reason::CANCELLED, "the caller stopped watching")));
  }
  void OnDone() override { delete this; }

  const std::shared_ptr<Watcher> watcher_;
  v1::Event current_;
};

void Watcher::Begin(std::unique_ptr<observe::EventHub::Subscription> subscription) {
  subscription_ = std::move(subscription);
  stream_->StartSendInitialMetadata();
}

void Watcher::OnWake() {
  {
    MutexLock lock(&mu_);
    may_have_events_ = true;
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
    may_have_events_ = true;
    if (!ok && !end_) end_ = grpc::Status::CANCELLED;
  }
  Advance();
}

void Watcher::Advance() {
  while (true) {
    std::optional<grpc::Status> end;
    {
      MutexLock lock(&mu_);
      if (busy_ || finished_ || (!end_ && !may_have_events_)) return;
      if (end_) {
        end = *end_;
        finished_ = true;
      } else {
        busy_ = true;
        may_have_events_ = false;
      }
    }
    if (end) {
      stream_->Finish(*end);
      return;
    }
    if (StartNextEvent()) return;
    // An event that came since leaves its mark in `may_have_events_`, so none is forgotten.
    MutexLock lock(&mu_);
    busy_ = false;
  }
}

bool Watcher::StartNextEvent() {
  if (const std::uint64_t dropped = subscription_->dropped(); dropped > 0) {
    MutexLock lock(&mu_);
    if (!end_) {
      end_ =
          ToGrpc(core::Error(core::Reason::LIMIT, Cat("this watcher left its queue full and missed ", dropped,
                                                      " events; watch again, and read the lists for what was missed")));
    }
    return false;
  }
  const std::optional<manager::Event> event = subscription_->Pop();
  if (!event) return false;
  if (std::holds_alternative<manager::DaemonStoppingEvent>(event->kind)) {
    MutexLock lock(&mu_);
    if (!end_) end_ = grpc::Status::OK;
  }
  stream_->Write(*event);
  return true;
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

grpc::ServerWriteReactor<v1::Event>* StreamEvents(observe::EventHub* events, EventFilter filter) {
  return new Stream(events, std::move(filter));
}

grpc::ServerWriteReactor<v1::Event>* RefuseStream(const absl::Status& status) { return new Refusal(ToGrpc(status)); }

EventFilter WorkerFilter(core::SessionId session) {
  return [session](const manager::Event& event) { return std::visit(WorkerMaySee{session}, event.kind); };
}

}  // namespace gpumem::service
