#include "daemon/session/listener.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/lock_file.h"

namespace gpumem::session {
namespace {

constexpr std::size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // 107; the last byte stays NUL
constexpr int kBacklog = 128;

absl::Status Failed(const ListenerOptions& options, absl::string_view what, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat(options.setting, " = ", options.path, ": ", what, ": ", std::strerror(error),
                   error == ENOENT ? "; create its directory or change the setting" : ""));
}

absl::Status AlreadyServed(const ListenerOptions& options, absl::string_view how) {
  return absl::AlreadyExistsError(absl::StrCat("another daemon listens on ", options.path, " (", how,
                                               "); stop it, or set ", options.setting, " to another path"));
}

// `path` must fit.
sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::Status CheckPath(const ListenerOptions& options) {
  if (options.path.empty()) return absl::InvalidArgumentError(absl::StrCat(options.setting, " is empty"));
  if (options.path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat(options.setting, " = ", options.path, " has ", options.path.size(),
                                                   " bytes; a socket's path may have at most ", kMaxPathBytes,
                                                   ": choose a shorter directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> TakeLock(const ListenerOptions& options) {
  const std::string path = options.path + ".lock";
  UniqueFd lock;
  const int error = TakeLockFile(path, &lock);
  if (error == 0) return lock;
  if (!lock) return Failed(options, absl::StrCat("cannot open ", path), error);
  if (error == EWOULDBLOCK) return AlreadyServed(options, absl::StrCat("it holds ", path));
  return Failed(options, absl::StrCat("cannot lock ", path), error);
}

// Makes room at the path: nothing there, or a socket that nobody listens on.
absl::Status RemoveStale(const ListenerOptions& options) {
  struct stat found {};
  if (::lstat(options.path.c_str(), &found) != 0) {
    return errno == ENOENT ? absl::OkStatus() : Failed(options, "cannot look at it", errno);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(options.setting, " = ", options.path,
                                                      " exists and is not a socket; remove it or change the setting"));
  }
  const UniqueFd probe(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return Failed(options, "cannot make a socket", errno);
  const sockaddr_un address = AddressOf(options.path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return AlreadyServed(options, "it answers");
  }
  // EAGAIN: a live listener's queue is full. EPROTOTYPE: a live socket of another type.
  if (errno == EAGAIN || errno == EPROTOTYPE) return AlreadyServed(options, std::strerror(errno));
  if (errno != ECONNREFUSED && errno != ENOENT) return Failed(options, "cannot ask who listens there", errno);
  if (::unlink(options.path.c_str()) != 0 && errno != ENOENT) return Failed(options, "cannot remove it", errno);
  return absl::OkStatus();
}

}  // namespace

ListeningSocket::~ListeningSocket() { Close(); }

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept { *this = std::move(other); }

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  if (this != &other) {
    Close();
    socket_ = std::move(other.socket_);
    lock_ = std::move(other.lock_);
    name_ = std::move(other.name_);
    owns_path_ = std::exchange(other.owns_path_, false);
    device_ = other.device_;
    inode_ = other.inode_;
  }
  return *this;
}

void ListeningSocket::Close() {
  // Under the lock still, and only the file that was bound here. The lock file stays: removing it would let two daemons
  // lock two files of one name.
  struct stat found {};
  if (owns_path_ && ::lstat(name_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_) {
    ::unlink(name_.c_str());
  }
  owns_path_ = false;
  socket_.reset();
  lock_.reset();
}

absl::StatusOr<ListeningSocket> ListeningSocket::Bind(const ListenerOptions& options) {
  if (const absl::Status status = CheckPath(options); !status.ok()) return status;
  absl::StatusOr<UniqueFd> lock = TakeLock(options);
  if (!lock.ok()) return lock.status();
  if (const absl::Status status = RemoveStale(options); !status.ok()) return status;

  ListeningSocket listener;
  listener.lock_ = *std::move(lock);
  listener.name_ = options.path;
  listener.socket_.reset(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_) return Failed(options, "cannot make a socket", errno);
  // Nobody but the owner may connect before the group and the mode are set.
  if (::fchmod(listener.socket_.get(), 0600) != 0) return Failed(options, "cannot restrict the socket", errno);
  const sockaddr_un address = AddressOf(options.path);
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Failed(options, "cannot bind", errno);
  }
  struct stat bound {};
  if (::lstat(options.path.c_str(), &bound) != 0) return Failed(options, "cannot look at the bound socket", errno);
  listener.owns_path_ = true;
  listener.device_ = bound.st_dev;
  listener.inode_ = bound.st_ino;
  if (options.group && ::lchown(options.path.c_str(), static_cast<uid_t>(-1), *options.group) != 0) {
    return Failed(options, absl::StrCat("cannot give it to group ", *options.group), errno);
  }
  if (::chmod(options.path.c_str(), options.mode) != 0) return Failed(options, "cannot set its mode", errno);
  if (::listen(listener.socket_.get(), kBacklog) != 0) return Failed(options, "cannot listen", errno);
  return listener;
}

absl::StatusOr<ListeningSocket> ListeningSocket::Adopt(UniqueFd socket, int type, std::string name) {
  if (sd_is_socket_unix(socket.get(), type, /*listening=*/1, nullptr, 0) <= 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the inherited descriptor \"", name, "\" is not a listening Unix socket of type ",
        type == SOCK_SEQPACKET ? "SOCK_SEQPACKET (ListenSequentialPacket=)" : "SOCK_STREAM (ListenStream=)"));
  }
  const int flags = ::fcntl(socket.get(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(socket.get(), F_SETFD, FD_CLOEXEC) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot set up the inherited socket \"", name, "\": ", std::strerror(errno)));
  }
  ListeningSocket listener;
  listener.socket_ = std::move(socket);
  listener.name_ = std::move(name);
  return listener;
}

absl::StatusOr<std::map<std::string, UniqueFd>> TakeInheritedSockets(const std::vector<std::string>& known) {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(/*unset_environment=*/1, &names);
  if (count < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the inherited sockets (LISTEN_FDS) are unusable: ", std::strerror(-count)));
  }
  std::map<std::string, UniqueFd> sockets;
  std::string unwanted;
  for (int i = 0; i < count; ++i) {
    UniqueFd fd(SD_LISTEN_FDS_START + i);
    const std::string name = names[i];
    std::free(names[i]);
    const bool wanted = std::find(known.begin(), known.end(), name) != known.end() && sockets.count(name) == 0;
    if (wanted) {
      sockets.emplace(name, std::move(fd));
    } else {
      absl::StrAppend(&unwanted, unwanted.empty() ? "" : ", ", name);
    }
  }
  std::free(names);
  if (!unwanted.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("unexpected inherited sockets: ", unwanted,
                                                      "; FileDescriptorName= must be one of control, handles "
                                                      "and admin, each once"));
  }
  return sockets;
}

}  // namespace gpumem::session
