// base/unique_fd.h: ownership of one file descriptor as a type.
//
// base/ is the leaf room: std and libc only, so that a worker's library, the driver boundary and the daemon can all
// use it without pulling Abseil, gRPC or CUDA into one another.
#ifndef GPUMEM_BASE_UNIQUE_FD_H_
#define GPUMEM_BASE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace gpumem {

// Owns at most one descriptor and closes it once. Move-only. Not thread-safe. Negative means "none".
//
// An fd that the driver exported must not be closed through this class on a shared thread: the last close of it is a
// driver call and may block (see daemon/manager/handle_fd.h).
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { reset(); }

  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }

  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

  // close(2) is not retried on EINTR: on Linux the descriptor is gone either way.
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace gpumem

#endif  // GPUMEM_BASE_UNIQUE_FD_H_
