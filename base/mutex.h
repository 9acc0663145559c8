// base/mutex.h: std::mutex behind clang's thread-safety annotations.
//
// Debian's Abseil is not instrumented for the thread sanitizer, so each correct use of absl::Mutex looks like a race
// to it; std::mutex is intercepted. Every lock in this project is one of these, declares what it guards, and is never
// held across a driver call, a disk write, a socket send or a callback.
#ifndef GPUMEM_BASE_MUTEX_H_
#define GPUMEM_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define GPUMEM_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define GPUMEM_THREAD_ANNOTATION(x)
#endif

#define GPUMEM_CAPABILITY(x) GPUMEM_THREAD_ANNOTATION(capability(x))
#define GPUMEM_SCOPED_CAPABILITY GPUMEM_THREAD_ANNOTATION(scoped_lockable)
#define GPUMEM_GUARDED_BY(x) GPUMEM_THREAD_ANNOTATION(guarded_by(x))
#define GPUMEM_PT_GUARDED_BY(x) GPUMEM_THREAD_ANNOTATION(pt_guarded_by(x))
#define GPUMEM_ACQUIRED_AFTER(...) GPUMEM_THREAD_ANNOTATION(acquired_after(__VA_ARGS__))
#define GPUMEM_REQUIRES(...) GPUMEM_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define GPUMEM_EXCLUDES(...) GPUMEM_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define GPUMEM_ACQUIRE(...) GPUMEM_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define GPUMEM_RELEASE(...) GPUMEM_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define GPUMEM_NO_THREAD_SAFETY_ANALYSIS GPUMEM_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace gpumem {

class GPUMEM_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() GPUMEM_ACQUIRE() { mu_.lock(); }
  void Unlock() GPUMEM_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class GPUMEM_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mu) GPUMEM_ACQUIRE(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() GPUMEM_RELEASE() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// A condition variable on a Mutex. Wakes may be spurious: always wait in a loop on the guarded condition.
class CondVar {
 public:
  void Wait(Mutex* mu) GPUMEM_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False when `deadline` passed first.
  bool WaitUntil(Mutex* mu, std::chrono::steady_clock::time_point deadline) GPUMEM_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    // system_clock: pthread_cond_clockwait is not intercepted by the thread sanitizer of gcc 12.
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto until =
        std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
    const bool in_time = cv_.wait_until(lock, until) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace gpumem

#endif  // GPUMEM_BASE_MUTEX_H_
