#include "daemon/session/deadlines.h"

#include <algorithm>
#include <utility>

namespace gpumem::session {

Deadlines::Deadlines(EventLoop* loop, std::chrono::nanoseconds delay, std::function<void(std::uint64_t key)> expired)
    : loop_(loop), delay_(delay), expired_(std::move(expired)) {}

void Deadlines::Add(std::uint64_t key) {
  due_.emplace(key, Clock::now() + delay_);
  if (!armed_) Arm();
}

void Deadlines::Remove(std::uint64_t key) { due_.erase(key); }

void Deadlines::Arm() {
  armed_ = true;
  const std::chrono::nanoseconds left = due_.begin()->second - Clock::now();
  loop_->After(std::max(left, std::chrono::nanoseconds(0)), [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Expire();
  });
}

void Deadlines::Expire() {
  const std::weak_ptr<bool> alive = alive_;
  const Clock::time_point now = Clock::now();
  while (!due_.empty() && due_.begin()->second <= now) {
    const std::uint64_t key = due_.begin()->first;
    due_.erase(due_.begin());
    expired_(key);
    if (alive.expired()) return;
  }
  armed_ = false;
  if (!due_.empty()) Arm();
}

}  // namespace gpumem::session
