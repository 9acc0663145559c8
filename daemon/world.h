// daemon/world.h: clock, timers and random numbers of the real world, behind the manager's ports.
#ifndef GPUMEM_DAEMON_WORLD_H_
#define GPUMEM_DAEMON_WORLD_H_

#include <array>
#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "base/event_loop.h"
#include "daemon/manager/ports.h"

namespace gpumem {

class WallClock final : public manager::Clock {
 public:
  absl::Time Now() override;
};

// On the loop's own timers. Loop thread only; `loop` must outlive it.
class LoopTimers final : public manager::Timers {
 public:
  explicit LoopTimers(EventLoop* loop) : loop_(loop) {}
  void After(absl::Duration delay, std::function<void()> fn) override;

 private:
  EventLoop* const loop_;
};

// getrandom(2). Thread-safe.
class KernelRandom final : public manager::Random {
 public:
  std::array<std::uint8_t, 16> Token() override;
};

// The first id of a daemon that starts at `now`: ids never repeat across its lives, as long as one gives out fewer than
// 2^20 ids for each second that it and the next start lie apart.
std::uint64_t FirstId(absl::Time now);

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_WORLD_H_
