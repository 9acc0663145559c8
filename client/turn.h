// client/turn.h: one user at a time of something whose use blocks. base/ only.
//
// A lock is never held across a socket or a driver call. A Turn is held instead: taking and giving it back are short,
// and whoever waits for it is bounded by a deadline of its own.
#ifndef GPUMEM_CLIENT_TURN_H_
#define GPUMEM_CLIENT_TURN_H_

#include "base/mutex.h"
#include "client/status.h"

namespace gpumem::client {

class Turn {
 public:
  // Waits as long as it takes.
  void Take() GPUMEM_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (taken_) changed_.Wait(&mu_);
    taken_ = true;
  }
  // False when the deadline passed first.
  bool TakeUntil(Deadline deadline) GPUMEM_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    while (taken_) {
      if (!changed_.WaitUntil(&mu_, deadline) && taken_) return false;
    }
    taken_ = true;
    return true;
  }
  void Give() GPUMEM_EXCLUDES(mu_) {
    MutexLock lock(&mu_);
    taken_ = false;
    changed_.NotifyOne();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool taken_ GPUMEM_GUARDED_BY(mu_) = false;
};

// Gives the turn back at the end of a scope.
class TurnHolder {
 public:
  explicit TurnHolder(Turn* turn) : turn_(turn) { turn_->Take(); }
  ~TurnHolder() { turn_->Give(); }
  TurnHolder(const TurnHolder&) = delete;
  TurnHolder& operator=(const TurnHolder&) = delete;

 private:
  Turn* const turn_;
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_TURN_H_
