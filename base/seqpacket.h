// base/seqpacket.h: one frame and its fds through a SOCK_SEQPACKET socket. Std and libc only.
//
// SOCK_SEQPACKET keeps message boundaries: one sendmsg is one frame with its fds, so nothing is ever half sent or
// paired with the wrong frame. Facts used (unix(7), cmsg(3), recvmsg(2)): at most SCM_MAX_FD = 253 fds a message; a
// receiver short of descriptors gets fewer of them and MSG_CTRUNC; a buffer too small gets MSG_TRUNC; in-flight fds
// over the sender's RLIMIT_NOFILE fail with ETOOMANYREFS.
#ifndef GPUMEM_BASE_SEQPACKET_H_
#define GPUMEM_BASE_SEQPACKET_H_

#include <cstddef>
#include <span>
#include <vector>

#include "base/unique_fd.h"

namespace gpumem {

inline constexpr std::size_t kMaxFdsPerMessage = 253;

// Sends `bytes` and copies of `fds` as one frame. Never raises SIGPIPE. Returns 0 or an errno: EAGAIN when `blocking`
// is false and the socket is full, EPIPE/ECONNRESET when the peer is gone, ETOOMANYREFS, EINVAL for more than 253 fds.
// EINTR is retried. The caller keeps its fds.
int SendFrame(int socket, std::span<const std::byte> bytes, std::span<const int> fds, bool blocking);

struct ReceivedFrame {
  std::vector<UniqueFd> fds;  // all that came, close-on-exec
  std::size_t size = 0;       // bytes of the frame that were stored in the buffer; 0 with error 0: end of stream
  bool truncated = false;     // the frame or its fds did not fit; the request that it is part of must fail
};

// Receives one frame into `buffer`. Returns 0 or an errno (EAGAIN when `blocking` is false and nothing is there). Every
// fd that came is owned by `frame`, also when the frame is truncated. EINTR is retried.
int ReceiveFrame(int socket, std::span<std::byte> buffer, bool blocking, ReceivedFrame* frame);

}  // namespace gpumem

#endif  // GPUMEM_BASE_SEQPACKET_H_
