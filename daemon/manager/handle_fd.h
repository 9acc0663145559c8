// daemon/manager/handle_fd.h: one fd of an exported chunk on its way through the front.
//
// Closing an exported fd is a driver call when it is the last reference, and may block. So the front never closes one
// on a shared thread: a HandleFd gives its fd to an FdCloser, whose own thread closes it.
#ifndef GPUMEM_DAEMON_MANAGER_HANDLE_FD_H_
#define GPUMEM_DAEMON_MANAGER_HANDLE_FD_H_

#include <utility>

namespace gpumem::manager {

class FdCloser {
 public:
  virtual ~FdCloser() = default;
  // Takes the fd over; never blocks the caller. Thread-safe.
  virtual void Close(int fd) = 0;
};

// Move-only. `closer` must outlive it. A HandleFd of a test may carry any number and a closer that records it.
class HandleFd {
 public:
  HandleFd() = default;
  HandleFd(int fd, FdCloser* closer) : fd_(fd), closer_(closer) {}
  ~HandleFd() { Reset(); }
  HandleFd(HandleFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), closer_(other.closer_) {}
  HandleFd& operator=(HandleFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
      closer_ = other.closer_;
    }
    return *this;
  }
  HandleFd(const HandleFd&) = delete;
  HandleFd& operator=(const HandleFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  void Reset() {
    if (fd_ >= 0 && closer_ != nullptr) closer_->Close(std::exchange(fd_, -1));
  }
  int fd_ = -1;
  FdCloser* closer_ = nullptr;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_HANDLE_FD_H_
