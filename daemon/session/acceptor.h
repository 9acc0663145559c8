// daemon/session/acceptor.h: the accept loop of one listening socket. May call base/, core/, manager/ports.h (Log).
//
// A connection reaches its owner with the peer's kernel-verified identity, under limits for each uid and in all. The
// loop survives running out of descriptors: one spare is kept to accept and close with, so the client gets an answer,
// and the loop pauses before it tries again.
#ifndef GPUMEM_DAEMON_SESSION_ACCEPTOR_H_
#define GPUMEM_DAEMON_SESSION_ACCEPTOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "daemon/manager/ports.h"
#include "daemon/session/listener.h"
#include "daemon/session/peer.h"

namespace gpumem::session {

// Limits on connections that are open at once. 0 is a limit too: nobody gets in.
struct ConnectionLimits {
  std::uint32_t for_each_uid = 256;
  std::uint32_t in_all = 1024;
};

// How many connections each uid has open. Loop thread only.
class ConnectionCounts {
 public:
  // One counted connection; uncounts itself. May outlive the ConnectionCounts. Loop thread only.
  using Slot = std::shared_ptr<void>;

  explicit ConnectionCounts(const ConnectionLimits& limits) : state_(std::make_shared<State>(State{limits, {}, 0})) {}

  // LIMIT, naming the limit that is reached.
  absl::StatusOr<Slot> Take(uid_t uid);

 private:
  struct State {
    ConnectionLimits limits;
    std::unordered_map<uid_t, std::uint32_t> open;
    std::uint32_t all;
  };
  std::shared_ptr<State> state_;
};

struct AcceptedConnection {
  UniqueFd socket;  // non-blocking, close-on-exec
  std::shared_ptr<const PeerIdentity> peer;
  ConnectionCounts::Slot slot;  // to be kept as long as the connection is open
};

// Loop thread only.
class Acceptor {
 public:
  using OnAccepted = std::function<void(AcceptedConnection connection)>;
  // A connection over a limit, or whose peer has no identity. The socket may be used for a word of refusal.
  using OnRefused = std::function<void(UniqueFd socket, const absl::Status& why)>;

  // How long the loop pauses when descriptors ran out.
  static constexpr std::chrono::milliseconds kPause{100};

  // `log` must outlive the acceptor.
  Acceptor(EventLoop* loop, ListeningSocket socket, const ConnectionLimits& limits, OnAccepted accepted,
           OnRefused refused, manager::Log* log);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Starts to accept. INTERNAL when the loop cannot watch the socket.
  absl::Status Start();

  const std::string& name() const { return socket_.name(); }

 private:
  void OnReadable();
  bool AcceptOne();  // false when there is nothing to accept now
  void Pause(int error);

  EventLoop* const loop_;
  const ListeningSocket socket_;
  ConnectionCounts counts_;
  const OnAccepted accepted_;
  const OnRefused refused_;
  manager::Log* const log_;
  UniqueFd spare_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // the pause's timer holds it weakly
};

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_ACCEPTOR_H_
