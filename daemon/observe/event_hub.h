// daemon/observe/event_hub.h: events of the manager, fanned out to whoever watches. May call base/, core/ and
// manager/ports.h.
//
// Publishing never waits for a watcher: each has a queue of bounded length, and a full one drops what is new, so a slow
// watcher sees the sequence numbers jump (and dropped() says by how many of its own events).
#ifndef GPUMEM_DAEMON_OBSERVE_EVENT_HUB_H_
#define GPUMEM_DAEMON_OBSERVE_EVENT_HUB_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/manager/ports.h"

namespace gpumem::observe {

// Thread-safe. Must outlive its subscriptions.
class EventHub : public manager::EventSink {
 public:
  struct Options {
    std::size_t subscribers = 256;
    std::size_t events_each = 256;  // waiting, for each subscriber
  };
  // Whether the subscriber wants the event. Called by the publishing thread.
  using Filter = std::function<bool(const manager::Event& event)>;
  // Called by the publishing thread, with no lock held, when an event comes into an empty queue: so whoever pops until
  // nothing is left, and then waits for the next wake, misses none. It must not block. One that began before the
  // subscription ended may still be running after: capture what it needs weakly.
  using Wake = std::function<void()>;

 private:
  struct Queue;

 public:
  // Destroying it ends the subscription. Thread-safe.
  class Subscription {
   public:
    ~Subscription();
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;

    // The oldest event that waits.
    std::optional<manager::Event> Pop();
    // Events that this subscriber lost since it began.
    std::uint64_t dropped() const;

   private:
    friend class EventHub;
    Subscription(EventHub* hub, std::shared_ptr<Queue> queue) : hub_(hub), queue_(std::move(queue)) {}
    EventHub* const hub_;
    const std::shared_ptr<Queue> queue_;
  };

  explicit EventHub(const Options& options) : options_(options) {}

  // Events published from now on. LIMIT when there are too many subscribers.
  absl::StatusOr<std::unique_ptr<Subscription>> Subscribe(Filter filter, Wake wake) GPUMEM_EXCLUDES(mu_);

  // From one thread at a time, so that each subscriber gets the events in order.
  void Publish(const manager::Event& event) override GPUMEM_EXCLUDES(mu_);

 private:
  struct Queue {
    Queue(Filter filter_in, Wake wake_in) : filter(std::move(filter_in)), wake(std::move(wake_in)) {}
    const Filter filter;
    const Wake wake;
    Mutex mu;
    std::deque<manager::Event> events GPUMEM_GUARDED_BY(mu);
    std::uint64_t dropped GPUMEM_GUARDED_BY(mu) = 0;
  };

  void Unsubscribe(const Queue* queue) GPUMEM_EXCLUDES(mu_);

  const Options options_;
  Mutex mu_;
  std::vector<std::shared_ptr<Queue>> queues_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem::observe

#endif  // GPUMEM_DAEMON_OBSERVE_EVENT_HUB_H_
