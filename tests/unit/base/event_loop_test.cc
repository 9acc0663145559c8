#include "base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace gpumem {
namespace {

using std::chrono::milliseconds;

TEST(EventLoopTest, PostedFunctionsRunInOrderOnTheLoopThread) {
  EventLoop loop;
  std::vector<int> order;
  std::thread::id ran_on;
  std::thread runner([&] {
    ran_on = std::this_thread::get_id();
    loop.Run();
  });
  std::thread::id seen;
  for (int i = 0; i < 100; ++i) {
    loop.Post([&, i] {
      order.push_back(i);
      seen = std::this_thread::get_id();
    });
  }
  loop.Stop();
  runner.join();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(seen, ran_on);
}

TEST(EventLoopTest, TimersRunInOrderOfTheirTime) {
  EventLoop loop;
  std::string order;
  loop.After(milliseconds(20), [&] {
    order += 'b';
    loop.Stop();
  });
  loop.After(milliseconds(1), [&] { order += 'a'; });
  loop.Run();
  EXPECT_EQ(order, "ab");
}

TEST(EventLoopTest, NoHandlerRunsForAnFdThatAnEarlierHandlerUnwatched) {
  EventLoop loop;
  int pair_a[2];
  int pair_b[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_a), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_b), 0);
  int calls = 0;
  // Whichever runs first unwatches both, although events for both were collected in one epoll_wait.
  const auto handler = [&](std::uint32_t) {
    ++calls;
    loop.Unwatch(pair_a[0]);
    loop.Unwatch(pair_b[0]);
  };
  ASSERT_EQ(loop.Watch(pair_a[0], EPOLLIN, handler), 0);
  ASSERT_EQ(loop.Watch(pair_b[0], EPOLLIN, handler), 0);
  ASSERT_EQ(::write(pair_a[1], "x", 1), 1);
  ASSERT_EQ(::write(pair_b[1], "x", 1), 1);
  loop.RunOnce(milliseconds(1000));
  loop.RunOnce(milliseconds(0));
  EXPECT_EQ(calls, 1);
  for (const int fd : {pair_a[0], pair_a[1], pair_b[0], pair_b[1]}) ::close(fd);
}

TEST(EventLoopTest, AReusedFdNumberDoesNotGetTheOldFdsEvents) {
  EventLoop loop;
  int old_pair[2];
  int trigger[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, trigger), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, old_pair), 0);
  int fresh_calls = 0;
  int fresh[2] = {-1, -1};
  bool swapped = false;
  const auto swap = [&](std::uint32_t) {
    if (swapped) return;
    swapped = true;
    loop.Unwatch(old_pair[0]);
    ::close(old_pair[0]);
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fresh), 0);
    ASSERT_EQ(fresh[0], old_pair[0]);
    ASSERT_EQ(loop.Watch(fresh[0], EPOLLIN, [&](std::uint32_t) { ++fresh_calls; }), 0);
  };
  ASSERT_EQ(loop.Watch(trigger[0], EPOLLIN, swap), 0);
  ASSERT_EQ(loop.Watch(old_pair[0], EPOLLIN, swap), 0);
  ASSERT_EQ(::write(trigger[1], "x", 1), 1);
  ASSERT_EQ(::write(old_pair[1], "x", 1), 1);
  loop.RunOnce(milliseconds(1000));
  EXPECT_TRUE(swapped);
  EXPECT_EQ(fresh_calls, 0);
  for (const int fd : {trigger[0], trigger[1], old_pair[1], fresh[0], fresh[1]}) ::close(fd);
}

}  // namespace
}  // namespace gpumem
