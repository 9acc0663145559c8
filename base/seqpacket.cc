#include "base/seqpacket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace gpumem {
namespace {

// The kernel's limit of control data for the fds of one message.
constexpr std::size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMaxFdsPerMessage);

}  // namespace

int SendFrame(int socket, std::span<const std::byte> bytes, std::span<const int> fds, bool blocking) {
  if (fds.size() > kMaxFdsPerMessage) return EINVAL;
  alignas(cmsghdr) char control[kControlBytes];
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    std::memset(control, 0, CMSG_SPACE(fds.size_bytes()));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  const int flags = MSG_NOSIGNAL | (blocking ? 0 : MSG_DONTWAIT);
  while (::sendmsg(socket, &message, flags) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

int ReceiveFrame(int socket, std::span<std::byte> buffer, bool blocking, ReceivedFrame* frame) {
  frame->fds.clear();
  frame->size = 0;
  frame->truncated = false;
  alignas(cmsghdr) char control[kControlBytes];
  iovec iov{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const int flags = MSG_CMSG_CLOEXEC | (blocking ? 0 : MSG_DONTWAIT);
  ssize_t got;
  while ((got = ::recvmsg(socket, &message, flags)) < 0) {
    if (errno != EINTR) return errno;
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      frame->fds.emplace_back(fd);
    }
  }
  frame->size = static_cast<std::size_t>(got);
  frame->truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  return 0;
}

}  // namespace gpumem
