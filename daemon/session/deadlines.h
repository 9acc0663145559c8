// daemon/session/deadlines.h: one deadline for each of many things, with one timer. May call base/.
//
// Every key gets the same delay, so keys expire in the order in which they were added. One timer of the loop is armed,
// for the oldest: connections that come and go fast leave no heap of timers behind.
#ifndef GPUMEM_DAEMON_SESSION_DEADLINES_H_
#define GPUMEM_DAEMON_SESSION_DEADLINES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/event_loop.h"

namespace gpumem::session {

// Loop thread only. May be destroyed before the loop: the armed timer then does nothing.
class Deadlines {
 public:
  // `expired` is called once for each key whose delay passed, after the key was removed; it may add and remove keys.
  Deadlines(EventLoop* loop, std::chrono::nanoseconds delay, std::function<void(std::uint64_t key)> expired);
  Deadlines(const Deadlines&) = delete;
  Deadlines& operator=(const Deadlines&) = delete;

  // `key` must be larger than every key added before.
  void Add(std::uint64_t key);
  void Remove(std::uint64_t key);  // nothing happens when it is not there

 private:
  using Clock = std::chrono::steady_clock;
  void Arm();
  void Expire();

  EventLoop* const loop_;
  const std::chrono::nanoseconds delay_;
  const std::function<void(std::uint64_t)> expired_;
  std::map<std::uint64_t, Clock::time_point> due_;
  bool armed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // the timer holds it weakly
};

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_DEADLINES_H_
