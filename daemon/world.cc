// daemon/world.cc: see world.h.
#include "daemon/world.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"

namespace gpumem {

absl::Time WallClock::Now() { return absl::Now(); }

void LoopTimers::After(absl::Duration delay, std::function<void()> fn) {
  loop_->After(absl::ToChronoNanoseconds(delay), std::move(fn));
}

std::array<std::uint8_t, 16> KernelRandom::Token() {
  std::array<std::uint8_t, 16> token{};
  // Up to 256 bytes are never short and never interrupted once the pool is ready (getrandom(2)).
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    std::fputs("gpumemd: getrandom(2) gave no random numbers; nothing can be named without them\n", stderr);
    std::abort();
  }
  return token;
}

std::uint64_t FirstId(absl::Time now) {
  constexpr std::int64_t kBegin2026 = 1767225600;  // 2026-01-01T00:00:00Z
  // A clock before that is wrong; ids then begin at the smallest number.
  const std::int64_t seconds = std::max<std::int64_t>(absl::ToUnixSeconds(now) - kBegin2026, 1);
  return static_cast<std::uint64_t>(seconds) << 20;
}

}  // namespace gpumem
