#include "daemon/observe/event_hub.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "daemon/core/reasons.h"

namespace gpumem::observe {
namespace {

manager::Event EventOf(std::uint64_t sequence) {
  manager::Event event;
  event.sequence = sequence;
  event.kind = manager::SegmentChangedEvent{"weights@1", core::SegmentState::kSealed, false};
  return event;
}

const EventHub::Filter kAll = [](const manager::Event&) { return true; };
const EventHub::Wake kNoWake = [] {};

std::vector<std::uint64_t> Sequences(EventHub::Subscription* subscription) {
  std::vector<std::uint64_t> all;
  while (const auto event = subscription->Pop()) all.push_back(event->sequence);
  return all;
}

TEST(EventHubTest, EverySubscriberGetsWhatItWantsInOrder) {
  EventHub hub({});
  const auto all = *hub.Subscribe(kAll, kNoWake);
  const auto even = *hub.Subscribe([](const manager::Event& event) { return event.sequence % 2 == 0; }, kNoWake);
  for (std::uint64_t i = 1; i <= 5; ++i) hub.Publish(EventOf(i));
  EXPECT_EQ(Sequences(all.get()), (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Sequences(even.get()), (std::vector<std::uint64_t>{2, 4}));
  EXPECT_EQ(all->dropped(), 0u);
}

TEST(EventHubTest, ASubscriberSeesOnlyWhatComesAfterItBegan) {
  EventHub hub({});
  hub.Publish(EventOf(1));
  const auto late = *hub.Subscribe(kAll, kNoWake);
  hub.Publish(EventOf(2));
  EXPECT_EQ(Sequences(late.get()), (std::vector<std::uint64_t>{2}));
}

TEST(EventHubTest, ASlowSubscriberSeesTheGapAndHoldsNobodyUp) {
  EventHub hub({.subscribers = 2, .events_each = 3});
  const auto slow = *hub.Subscribe(kAll, kNoWake);
  const auto quick = *hub.Subscribe(kAll, kNoWake);
  std::vector<std::uint64_t> seen;
  for (std::uint64_t i = 1; i <= 5; ++i) {
    hub.Publish(EventOf(i));
    for (const std::uint64_t sequence : Sequences(quick.get())) seen.push_back(sequence);
  }
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(Sequences(slow.get()), (std::vector<std::uint64_t>{1, 2, 3}));
  EXPECT_EQ(slow->dropped(), 2u);
  hub.Publish(EventOf(6));
  EXPECT_EQ(Sequences(slow.get()), (std::vector<std::uint64_t>{6})) << "4 and 5 are missing, visibly";
}

TEST(EventHubTest, AWakeComesWhenTheQueueWasEmpty) {
  EventHub hub({});
  int wakes = 0;
  const auto subscription = *hub.Subscribe(kAll, [&] { ++wakes; });
  hub.Publish(EventOf(1));
  hub.Publish(EventOf(2));
  EXPECT_EQ(wakes, 1);
  Sequences(subscription.get());
  hub.Publish(EventOf(3));
  EXPECT_EQ(wakes, 2);
}

TEST(EventHubTest, AWakeMayPopAndMayEndTheSubscription) {
  EventHub hub({});
  std::vector<std::uint64_t> seen;
  std::unique_ptr<EventHub::Subscription> subscription;
  subscription = *hub.Subscribe(kAll, [&] {
    seen = Sequences(subscription.get());
    subscription.reset();
  });
  hub.Publish(EventOf(1));
  hub.Publish(EventOf(2));
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1}));
}

TEST(EventHubTest, SubscribersAreLimited) {
  EventHub hub({.subscribers = 2, .events_each = 1});
  auto first = *hub.Subscribe(kAll, kNoWake);
  const auto second = *hub.Subscribe(kAll, kNoWake);
  EXPECT_EQ(core::ReasonOf(hub.Subscribe(kAll, kNoWake).status()), core::Reason::LIMIT);
  first.reset();
  EXPECT_TRUE(hub.Subscribe(kAll, kNoWake).ok());
}

TEST(EventHubTest, SubscribersComeAndGoWhileEventsArePublished) {
  EventHub hub({});
  std::atomic<bool> stop{false};
  std::thread publisher([&] {
    for (std::uint64_t i = 1; !stop.load(); ++i) {
      hub.Publish(EventOf(i));
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const auto subscription = *hub.Subscribe(kAll, kNoWake);
        std::uint64_t last = 0;
        for (int popped = 0; popped < 20;) {
          const auto event = subscription->Pop();
          if (!event) continue;
          EXPECT_GT(event->sequence, last);
          last = event->sequence;
          ++popped;
        }
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  stop.store(true);
  publisher.join();
}

}  // namespace
}  // namespace gpumem::observe
