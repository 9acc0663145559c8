#include "daemon/keeper/keeper_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/event_loop.h"
#include "base/lock_file.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "daemon/keeper/keeper_server.h"
#include "daemon/keeper/socket_address.h"

namespace gpumem::keeper {
namespace {

// Descriptors that are not handles: the loop, the listener, connections, the standard three, the log's socket.
constexpr std::uint64_t kReservedDescriptors = 64;
constexpr int kBacklog = 16;

void Say(const std::string& message) { std::fprintf(stderr, "keeper: %s\n", message.c_str()); }

absl::Status Failed(const std::string& what, int error) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
}

struct Listener {
  UniqueFd socket;
  UniqueFd lock;     // held for as long as the path is ours
  std::string path;  // to remove at the end; empty for systemd's socket
};

absl::StatusOr<Listener> Inherited() {
  Listener listener;
  const int count = ::sd_listen_fds(/*unset_environment=*/1);
  if (count < 0) return Failed("sd_listen_fds", -count);
  if (count == 0) return listener;
  if (count > 1 || ::sd_is_socket_unix(SD_LISTEN_FDS_START, SOCK_SEQPACKET, 1, nullptr, 0) <= 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("systemd passed ", count, " sockets; exactly one, with ListenSequentialPacket=, is expected"));
  }
  listener.socket.reset(SD_LISTEN_FDS_START);
  // systemd passes it blocking; a connection that was given up meanwhile must not stop the loop.
  ::fcntl(listener.socket.get(), F_SETFL, O_NONBLOCK);
  return listener;
}

absl::StatusOr<UniqueFd> TakeLock(const std::string& socket_path) {
  const std::string path = socket_path + ".lock";
  UniqueFd lock;
  const int error = TakeLockFile(path, &lock);
  if (error == 0) return lock;
  if (!lock) return Failed(absl::StrCat("cannot open ", path), error);
  if (error != EWOULDBLOCK) return Failed(absl::StrCat("cannot lock ", path), error);
  return absl::FailedPreconditionError(absl::StrCat("another keeper serves ", socket_path, " (", path,
                                                    " is locked); stop it first, or use another path"));
}

// Something may serve the path without our lock, e.g. a keeper under systemd's socket.
absl::Status RefuseIfServed(const std::string& path, const sockaddr_un& address) {
  const UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return Failed("socket", errno);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      (errno == ENOENT || errno == ECONNREFUSED)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("something else serves or owns ", path, "; stop it first, or use another path"));
}

absl::StatusOr<Listener> Bind(const std::string& path) {
  sockaddr_un address;
  if (!SocketAddress(path, &address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the socket path '", path, "' has ", path.size(), " bytes; 1 to ", kMaxSocketPathBytes, " fit"));
  }
  Listener listener;
  absl::StatusOr<UniqueFd> lock = TakeLock(path);
  if (!lock.ok()) return lock.status();
  listener.lock = *std::move(lock);
  if (const absl::Status free = RefuseIfServed(path, address); !free.ok()) return free;
  ::unlink(path.c_str());
  listener.socket.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket) return Failed("socket", errno);
  const mode_t before = ::umask(0177);  // the socket is born with mode 0600; no thread runs yet
  const int bound = ::bind(listener.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(before);
  if (bound != 0) return Failed(absl::StrCat("cannot bind ", path), error);
  listener.path = path;
  if (::listen(listener.socket.get(), kBacklog) != 0) return Failed(absl::StrCat("cannot listen on ", path), errno);
  return listener;
}

UniqueFd StopSignals() {
  sigset_t stops;
  ::sigemptyset(&stops);
  ::sigaddset(&stops, SIGTERM);
  ::sigaddset(&stops, SIGINT);
  ::sigprocmask(SIG_BLOCK, &stops, nullptr);
  ::signal(SIGHUP, SIG_IGN);
  return UniqueFd(::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK));
}

}  // namespace

int KeeperMain(const KeeperFlags& flags) {
  ::prctl(PR_SET_NAME, "gpumemd-keeper");
  absl::StatusOr<Listener> listener = Inherited();
  if (listener.ok() && !listener->socket) listener = Bind(flags.socket);
  if (!listener.ok()) {
    Say(std::string(listener.status().message()));
    return 1;
  }
  const UniqueFd signals = StopSignals();
  const std::size_t limit = RaiseDescriptorLimit();

  EventLoop loop;
  loop.Watch(signals.get(), EPOLLIN, [&](std::uint32_t) { loop.Stop(); });
  KeeperServer::Options options;
  options.loop = &loop;
  options.max_entries = flags.max_handles != 0         ? flags.max_handles
                        : limit > kReservedDescriptors ? limit - kReservedDescriptors
                                                       : 0;
  if (flags.exit_when_idle) options.on_idle = [&] { loop.Stop(); };
  options.idle_grace = flags.idle_grace;
  options.log = Say;
  KeeperServer server(std::move(listener->socket), std::move(options));
  ::sd_notify(0, "READY=1");
  loop.Run();
  ::sd_notify(0, "STOPPING=1");

  if (!listener->path.empty()) ::unlink(listener->path.c_str());
  if (server.entries() > 0) {
    Say(absl::StrCat("stopped; drops ", server.entries(), " handles of ", server.bytes(), " bytes"));
  }
  return 0;
}

}  // namespace gpumem::keeper
