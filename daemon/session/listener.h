// daemon/session/listener.h: the daemon's listening Unix sockets: bound here, or inherited from systemd. May call
// base/, Abseil and libsystemd.
//
// Facts used (unix(7), flock(2)): a path in sockaddr_un has room for 107 bytes; bind(2) fails on an existing file, and
// whoever unlinks a live daemon's socket steals its path silently; the file gets the socket inode's mode (fchmod(2)
// before bind), less the umask.
#ifndef GPUMEM_DAEMON_SESSION_LISTENER_H_
#define GPUMEM_DAEMON_SESSION_LISTENER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gpumem::session {

struct ListenerOptions {
  std::string path;
  std::string setting;     // the configuration key that the path comes from: named in errors
  int type = SOCK_STREAM;  // or SOCK_SEQPACKET
  mode_t mode = 0660;      // of the socket file: connecting needs write permission
  std::optional<gid_t> group;
};

// A listening, non-blocking, close-on-exec socket. A socket that was bound here keeps its lock until it is destroyed,
// and removes its own file, and no other one, then. Move-only. Not thread-safe.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  ~ListeningSocket();
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  // Binds `options.path`. Two daemons never share or steal a path: the lock file `<path>.lock` is held as long as the
  // socket lives, and a socket file that answers a connect is left alone. A socket file that nobody listens on is
  // replaced. Anything else at the path is left alone. Errors (no Reason: they only stop a start) name the path, the
  // setting and the next step: INVALID_ARGUMENT for a path that is too long, ALREADY_EXISTS when another daemon is
  // there, FAILED_PRECONDITION for anything else.
  static absl::StatusOr<ListeningSocket> Bind(const ListenerOptions& options);

  // Takes over a listening Unix socket of that type that something else bound, and will remove.
  static absl::StatusOr<ListeningSocket> Adopt(UniqueFd socket, int type, std::string name);

  int fd() const { return socket_.get(); }
  const std::string& name() const { return name_; }  // the path, or the inherited socket's name

 private:
  void Close();

  UniqueFd socket_;
  UniqueFd lock_;
  std::string name_;
  bool owns_path_ = false;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// The sockets that systemd passed to this process (sd_listen_fds_with_names(3)), by FileDescriptorName=; empty when it
// passed none. The environment variables are cleared, so that no child takes them for its own. A name that is not in
// `known`, or that comes twice, is an error: a socket that nobody accepts from would hang its clients.
absl::StatusOr<std::map<std::string, UniqueFd>> TakeInheritedSockets(const std::vector<std::string>& known);

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_LISTENER_H_
