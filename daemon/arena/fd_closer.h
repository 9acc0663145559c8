// daemon/arena/fd_closer.h: the front's closer of chunks' fds: a thread of its own behind manager::FdCloser.
#ifndef GPUMEM_DAEMON_ARENA_FD_CLOSER_H_
#define GPUMEM_DAEMON_ARENA_FD_CLOSER_H_

#include "base/closing_thread.h"
#include "daemon/manager/handle_fd.h"

namespace gpumem::arena {

// Thread-safe. Must outlive every HandleFd made with it; its destructor closes what is left and waits for that.
class ThreadFdCloser final : public manager::FdCloser {
 public:
  void Close(int fd) override { thread_.Close(UniqueFd(fd)); }

 private:
  ClosingThread thread_;
};

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_FD_CLOSER_H_
