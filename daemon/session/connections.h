// daemon/session/connections.h: the connections of control.sock and admin.sock, and who is behind each. May call base/,
// core/ and manager/ports.h (Log).
//
// gRPC has no peer credentials, but names a connection that was handed to it by its fd number: ServerContext::peer() is
// "fd:123". So each accepted connection goes to gRPC under a number from a high, rising range, and this table says who
// that is. A number is not used again until the range is used up, so a late handler finds its own peer or nobody.
// The daemon keeps a second descriptor of each connection: it hangs up both when the client goes and when gRPC shuts
// the connection down, and that ends the entry.
#ifndef GPUMEM_DAEMON_SESSION_CONNECTIONS_H_
#define GPUMEM_DAEMON_SESSION_CONNECTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "daemon/manager/ports.h"
#include "daemon/session/acceptor.h"
#include "daemon/session/deadlines.h"
#include "daemon/session/listener.h"
#include "daemon/session/peer.h"

namespace gpumem::session {

// Duplicates of descriptors with numbers in [first, end), each higher than the one before, until the range wraps.
// Loop thread only.
class HighFdRange {
 public:
  // The upper half of what RLIMIT_NOFILE allows, at most 65536 numbers.
  static HighFdRange OfThisProcess();
  HighFdRange(int first, int end) : first_(first), end_(end), next_(first) {}

  // Invalid with errno when no descriptor is left.
  UniqueFd Duplicate(int fd);

 private:
  int first_;
  int end_;
  int next_;
};

class ControlConnections {
 public:
  struct Options {
    ConnectionLimits limits;
    // A connection on which no call came for so long is closed: gRPC has no handshake timeout for handed-over sockets.
    std::chrono::milliseconds first_call_deadline{10'000};
    // Where the numbers for gRPC come from.
    HighFdRange numbers = HighFdRange::OfThisProcess();
  };
  using Admit = std::function<absl::Status(const PeerIdentity& peer)>;
  // Gets the descriptor to give to gRPC, and owns it. Find(fd) answers already.
  using HandOver = std::function<void(int fd)>;

  // Everything but the methods said to be thread-safe: loop thread only. `admit` and `hand_over` run there. `log` must
  // outlive the connections.
  ControlConnections(EventLoop* loop, ListeningSocket socket, const Options& options, Admit admit, HandOver hand_over,
                     manager::Log* log);
  ~ControlConnections();
  ControlConnections(const ControlConnections&) = delete;
  ControlConnections& operator=(const ControlConnections&) = delete;

  absl::Status Start();

  // Who is behind the connection that gRPC knows by this number; nullptr when it has ended. Thread-safe. To be asked at
  // the entry of a handler, never later.
  std::shared_ptr<const PeerIdentity> Find(int fd) const GPUMEM_EXCLUDES(mu_);
  // The same for ServerContext::peer(): "fd:123". nullptr for any other text.
  std::shared_ptr<const PeerIdentity> FindByPeerString(std::string_view peer) const;

  // A call came on this connection: it may stay. Thread-safe.
  void MarkUsed(int fd) GPUMEM_EXCLUDES(mu_);

  // Shuts every connection down, so that gRPC and the clients see their ends, and accepts no more.
  void CloseAll();

 private:
  struct Entry {
    std::shared_ptr<const PeerIdentity> peer;
    std::uint64_t key = 0;  // tells a connection from a later one that got its number
    bool used = false;
  };
  struct Connection {
    UniqueFd kept;
    int fd;  // gRPC's number
    ConnectionCounts::Slot slot;
  };

  void OnAccepted(AcceptedConnection accepted);
  void OnHungUp(std::uint64_t key);
  void OnFirstCallDeadline(std::uint64_t key);

  EventLoop* const loop_;
  const std::string name_;  // of the socket, for the log
  const std::chrono::milliseconds first_call_deadline_;
  const Admit admit_;
  const HandOver hand_over_;
  manager::Log* const log_;
  HighFdRange numbers_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_key_ = 1;
  Deadlines deadlines_;
  std::unique_ptr<Acceptor> acceptor_;

  mutable Mutex mu_;
  std::unordered_map<int, Entry> entries_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_CONNECTIONS_H_
