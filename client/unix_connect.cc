#include "client/unix_connect.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpumem::client {
namespace {

Status NotRunning(const std::string& path, int error) {
  return Error(Reason::NOT_RUNNING, "no gpumemd answers at " + path + ": " + ErrnoText(error) +
                                        "; start gpumemd, or set GPUMEM_SOCKET_DIR to its socket directory");
}

}  // namespace

Status ConnectUnix(const std::string& path, int type, Deadline deadline, GuardedFd* socket) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return Error(Reason::INVALID_ARGUMENT, "the socket path " + path + " has " + std::to_string(path.size()) +
                                               " bytes; the limit is " + std::to_string(sizeof(address.sun_path) - 1) +
                                               "; use a shorter socket directory");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  GuardedFd made = GuardedFd::Socket(type);
  if (!made.valid()) return Error(Reason::DESCRIPTORS, "this process cannot open a socket: " + ErrnoText(errno));
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(
        std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero()));
    if (left.count() == 0) return Error(Reason::DEADLINE, "gpumemd at " + path + " accepts no connection in time");
    timeval limit{};
    limit.tv_sec = static_cast<time_t>(left.count() / 1000000);
    limit.tv_usec = static_cast<suseconds_t>(left.count() % 1000000);
    ::setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) break;
    if (errno == EINTR || errno == EAGAIN) continue;
    return NotRunning(path, errno);
  }
  *socket = std::move(made);
  return {};
}

}  // namespace gpumem::client
