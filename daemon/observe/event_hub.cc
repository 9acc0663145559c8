#include "daemon/observe/event_hub.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/reasons.h"

namespace gpumem::observe {

EventHub::Subscription::~Subscription() { hub_->Unsubscribe(queue_.get()); }

std::optional<manager::Event> EventHub::Subscription::Pop() {
  MutexLock lock(&queue_->mu);
  if (queue_->events.empty()) return std::nullopt;
  manager::Event event = std::move(queue_->events.front());
  queue_->events.pop_front();
  return event;
}

std::uint64_t EventHub::Subscription::dropped() const {
  MutexLock lock(&queue_->mu);
  return queue_->dropped;
}

absl::StatusOr<std::unique_ptr<EventHub::Subscription>> EventHub::Subscribe(Filter filter, Wake wake) {
  auto queue = std::make_shared<Queue>(std::move(filter), std::move(wake));
  {
    MutexLock lock(&mu_);
    if (queues_.size() >= options_.subscribers) {
      return core::Error(core::Reason::LIMIT, absl::StrCat("too many watchers: ", queues_.size(),
                                                           " watch events, which is the limit; end one and ask again"));
    }
    queues_.push_back(queue);
  }
  return std::unique_ptr<Subscription>(new Subscription(this, std::move(queue)));
}

void EventHub::Unsubscribe(const Queue* queue) {
  std::shared_ptr<Queue> ended;  // destroyed outside the lock: its callbacks are not ours
  MutexLock lock(&mu_);
  const auto it = std::find_if(queues_.begin(), queues_.end(), [&](const auto& each) { return each.get() == queue; });
  if (it == queues_.end()) return;
  ended = std::move(*it);
  queues_.erase(it);
}

void EventHub::Publish(const manager::Event& event) {
  std::vector<std::shared_ptr<Queue>> queues;
  {
    MutexLock lock(&mu_);
    queues = queues_;
  }
  for (const std::shared_ptr<Queue>& queue : queues) {
    if (!queue->filter(event)) continue;
    bool wake = false;
    {
      MutexLock lock(&queue->mu);
      if (queue->events.size() >= options_.events_each) {
        ++queue->dropped;
        continue;
      }
      wake = queue->events.empty();
      queue->events.push_back(event);
    }
    if (wake) queue->wake();
  }
}

}  // namespace gpumem::observe
