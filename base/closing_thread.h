// base/closing_thread.h: a thread that closes descriptors for others. Std and libc only.
//
// The last close of an exported fd is a driver call and may block for long. It happens here, on a thread that nobody
// waits for and with no lock held.
#ifndef GPUMEM_BASE_CLOSING_THREAD_H_
#define GPUMEM_BASE_CLOSING_THREAD_H_

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace gpumem {

// Thread-safe.
class ClosingThread {
 public:
  // Throws std::system_error when the kernel has no thread left: for start-up, where that ends the process.
  ClosingThread();
  // nullptr in that case.
  static std::unique_ptr<ClosingThread> TryStart();
  // Closes everything that was handed over, then ends: this waits for the driver.
  ~ClosingThread();
  ClosingThread(const ClosingThread&) = delete;
  ClosingThread& operator=(const ClosingThread&) = delete;

  // Takes the fd over and returns at once. `done`, when given, runs on the closing thread after close(2) returned.
  void Close(UniqueFd fd, std::function<void()> done = nullptr) GPUMEM_EXCLUDES(mu_);

 private:
  struct Job {
    UniqueFd fd;
    std::function<void()> done;
  };
  void Run() GPUMEM_EXCLUDES(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<Job> jobs_ GPUMEM_GUARDED_BY(mu_);
  bool stop_ GPUMEM_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace gpumem

#endif  // GPUMEM_BASE_CLOSING_THREAD_H_
