// daemon/journal/volatile_journal.cc: completions in order, nothing kept.
#include "daemon/journal/volatile_journal.h"

#include <utility>

namespace gpumem::journal {

void VolatileJournal::Record(core::Transitions moves, std::function<void(absl::Status)> done) {
  moves_ += moves.size();
  // Timers of equal delay run in the order in which they were set, so completions keep the order of the batches.
  timers_.After(absl::ZeroDuration(), [done = std::move(done)] { done(absl::OkStatus()); });
}

}  // namespace gpumem::journal
