// client/unix_connect.h: one connection to a socket of the daemon. Std and libc only.
#ifndef GPUMEM_CLIENT_UNIX_CONNECT_H_
#define GPUMEM_CLIENT_UNIX_CONNECT_H_

#include <string>

#include "client/guarded_fd.h"
#include "client/status.h"

namespace gpumem::client {

// Connects to `path` with a socket of `type` (SOCK_STREAM, SOCK_SEQPACKET), waiting until the deadline when the
// daemon's backlog is full (unix(7): the wait is bounded by SO_SNDTIMEO). Errors: INVALID_ARGUMENT for a path that is
// too long; NOT_RUNNING, with the path, when nobody listens there; DEADLINE.
Status ConnectUnix(const std::string& path, int type, Deadline deadline, GuardedFd* socket);

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_UNIX_CONNECT_H_
