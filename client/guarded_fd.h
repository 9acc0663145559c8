// client/guarded_fd.h: descriptors that a forked child must not keep. Std and libc only.
//
// A child that kept the session's sockets would keep the parent's session open and could speak in its name. So every
// socket, epoll and event descriptor of the library is one of these: a pthread_atfork handler closes them all in the
// child. Making and closing one happens under a lock that fork waits for (nothing else is done under it), so that no
// child ever has a descriptor that the table does not know. The witness pipe's write end is not one of these: every
// forked child keeps it, that is what it is for.
#ifndef GPUMEM_CLIENT_GUARDED_FD_H_
#define GPUMEM_CLIENT_GUARDED_FD_H_

#include <cstdint>
#include <utility>

namespace gpumem::client {

// Owns at most one descriptor. Move-only. In a forked child the descriptor is closed already, and destroying the object
// closes nothing. Not thread-safe.
class GuardedFd {
 public:
  GuardedFd() = default;
  ~GuardedFd() { Reset(); }
  GuardedFd(GuardedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), id_(std::exchange(other.id_, 0)) {}
  GuardedFd& operator=(GuardedFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
      id_ = std::exchange(other.id_, 0);
    }
    return *this;
  }
  GuardedFd(const GuardedFd&) = delete;
  GuardedFd& operator=(const GuardedFd&) = delete;

  // Each makes one, close-on-exec; on failure the object is invalid and errno says why.
  static GuardedFd Socket(int type);  // AF_UNIX
  static GuardedFd Epoll();
  static GuardedFd Event();        // an eventfd, non-blocking
  static GuardedFd Adopt(int fd);  // takes over a descriptor that is already there (tests)

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  GuardedFd(int fd, std::uint64_t id) : fd_(fd), id_(id) {}
  template <typename Make>
  static GuardedFd MakeWith(Make make);

  int fd_ = -1;
  std::uint64_t id_ = 0;  // in the table; never reused
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_GUARDED_FD_H_
