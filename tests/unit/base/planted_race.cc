// A race on purpose: two threads write one number without a lock. The thread sanitizer's run must turn red for it, with
// the options that every other test has; tests/unit/base/CMakeLists.txt demands that.
#include <cstdio>
#include <thread>

#include "base/event_loop.h"

namespace {
int number = 0;
}

int main() {
  // Through a library of ours, so that what is ignored for its sake would be ignored here too.
  gpumem::EventLoop loop;
  std::thread other([&loop] {
    ++number;
    loop.Stop();
  });
  ++number;
  loop.Run();
  other.join();
  std::printf("%d\n", number);
  return 0;
}
