// daemon/journal/volatile_journal.h: the journal port of a front whose books live in its memory only.
//
// It writes nothing and keeps nothing: a front that is killed forgets its books, and its successor finds what the
// keeper holds as handles that no book knows. What it does give is the port's contract: batches complete one by one, in
// order, on the strand, never inside the call. Strand only; calls nothing but the Timers port, which must outlive it.
#ifndef GPUMEM_DAEMON_JOURNAL_VOLATILE_JOURNAL_H_
#define GPUMEM_DAEMON_JOURNAL_VOLATILE_JOURNAL_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "daemon/core/types.h"
#include "daemon/manager/ports.h"

namespace gpumem::journal {

class VolatileJournal : public manager::Journal {
 public:
  explicit VolatileJournal(manager::Timers* timers) : timers_(*timers) {}

  // `moves` are counted and dropped. `done` gets OK.
  void Record(core::Transitions moves, std::function<void(absl::Status)> done) override;

  // Moves that went through, for metrics.
  std::uint64_t moves() const { return moves_; }

 private:
  manager::Timers& timers_;
  std::uint64_t moves_ = 0;
};

}  // namespace gpumem::journal

#endif  // GPUMEM_DAEMON_JOURNAL_VOLATILE_JOURNAL_H_
