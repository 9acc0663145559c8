// base/reap_later.h: children of ours that have ended, or were told to, but cannot be reaped yet.
//
// A debugger that is attached to a child delays its reaping (ptrace(2)): pidfd and exit status are there, and
// waitid(2) says nothing until the debugger lets go. Nobody waits for that, and no zombie stays.
#ifndef GPUMEM_BASE_REAP_LATER_H_
#define GPUMEM_BASE_REAP_LATER_H_

#include <chrono>
#include <string>

#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace gpumem {

// Reaps a child that has ended: TryReap's words. One that cannot be reaped now has "ended", and ReapLater goes on with
// it. Takes the pidfd. Loop thread only.
std::string Reap(EventLoop* loop, UniqueFd pidfd);

// Tries TryReap every `interval` on the loop until the child behind `pidfd` is reaped. Takes the pidfd. Loop thread
// only; the loop's end ends the trying.
void ReapLater(EventLoop* loop, UniqueFd pidfd, std::chrono::milliseconds interval = std::chrono::seconds(1));

}  // namespace gpumem

#endif  // GPUMEM_BASE_REAP_LATER_H_
