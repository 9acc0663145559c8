// tests/e2e/kill_points.h: kill a process at every step that the kernel can see.
//
// A worker is run under ptrace(2). Between two marks that its script makes, every successful call of a chosen set of
// system calls is a kill point: "the third mmap has just returned". A first run counts them; then one run for each
// point kills the worker (SIGKILL) exactly there. A point that was listed and not reached fails the test.
//
// Killing after call n is killing before call n+1: what lies between changes nothing outside the process. Calls whose
// number depends on timing alone (poll, futex, reads of a byte stream) are not counted.
#ifndef GPUMEM_TESTS_E2E_KILL_POINTS_H_
#define GPUMEM_TESTS_E2E_KILL_POINTS_H_

#include <optional>
#include <string>
#include <vector>

#include "tests/e2e/process.h"

namespace gpumem::e2e {

// The worker's `mark begin` and `mark end` commands make getpgid(2) with these: it fails and does nothing.
inline constexpr long kMarkBegin = 0x6b707431;
inline constexpr long kMarkEnd = 0x6b707432;

struct KillPoint {
  std::string call;  // "mmap"
  int nth = 0;       // from 1
  friend bool operator==(const KillPoint&, const KillPoint&) = default;
};
std::string ToString(const KillPoint& point);

struct TracedRun {
  std::vector<KillPoint> points;  // between the marks, in order, up to the kill
  bool killed = false;            // at the wanted point
  std::optional<int> status;      // wait status when it ended by itself
};

// Runs `command` with `script` as its standard input, killing it at `kill_at` if given.
TracedRun RunTraced(Command command, const std::vector<std::string>& script, const std::optional<KillPoint>& kill_at);

}  // namespace gpumem::e2e

#endif  // GPUMEM_TESTS_E2E_KILL_POINTS_H_
