// daemon/session/handle_sessions.h: the sessions on handles.sock. A connection that says Open, with a witness pipe, is
// a session; its socket, its process's pidfd and its witness are watched here, and what happens to each is reported.
// What it means is the manager's to say. May call base/, core/, manager/ports.h and the wire's frames.
//
// Three ends, told apart:
//   the socket  closed, or closed here for a breach of the protocol: the session is fenced
//   the pidfd   readable: every thread of the process has ended
//   the witness hung up: no process holds the write end any more, so no forked child that could hold the driver's fds
//               is left
#ifndef GPUMEM_DAEMON_SESSION_HANDLE_SESSIONS_H_
#define GPUMEM_DAEMON_SESSION_HANDLE_SESSIONS_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "daemon/core/books.h"
#include "daemon/core/types.h"
#include "daemon/manager/handle_fd.h"
#include "daemon/manager/ports.h"
#include "daemon/session/acceptor.h"
#include "daemon/session/deadlines.h"
#include "daemon/session/frames.h"
#include "daemon/session/listener.h"
#include "daemon/session/peer.h"

namespace gpumem::session {

// Called on the loop thread. Each may call back into HandleSessions, Close and Forget included.
struct SessionEvents {
  std::function<absl::StatusOr<core::SessionId>(const core::SessionIdentity& identity)> open;
  // Once each at most, in any order. socket_closed does not follow a Close().
  std::function<void(core::SessionId session)> socket_closed;
  std::function<void(core::SessionId session)> pidfd_readable;
  std::function<void(core::SessionId session)> witness_closed;

  std::function<void(core::SessionId session, std::uint64_t request_id, core::LeaseId lease, std::uint32_t first,
                     std::uint32_t count)>
      fetch;
  // `imported` has wire::kMaxFdsPerFrame values, whatever the size of the frame that is acknowledged.
  std::function<void(core::SessionId session, std::uint64_t handles_sequence, const std::vector<bool>& imported,
                     core::Access access)>
      acknowledge;
  std::function<void(core::SessionId session, core::LeaseId lease, std::uint32_t first, std::uint32_t count,
                     core::Access access)>
      mapping;
};

enum class ProcessMatch { kNoSuchSession, kOtherProcess, kSame };

// Everything but CheckProcess: loop thread only.
class HandleSessions : public manager::HandleChannels {
 public:
  struct Options {
    // On connections and sessions together: a session counts until it is forgotten.
    ConnectionLimits limits;
    // A connection that has not said Open by then is refused.
    std::chrono::milliseconds open_deadline{5'000};
    // Fetches of one session that wait for their answer. One more is a breach of the protocol.
    std::uint32_t unanswered_fetches = 64;
    // Told to the worker: Handles frames that may wait for their acknowledgement.
    std::uint32_t unacknowledged_frames = 4;
    std::array<std::uint8_t, 16> instance{};
  };

  // The pointers must outlive this. Fds that a peer sent unasked, and sockets that may hold some, are closed by
  // `closer`: the last close of a driver's fd may block.
  HandleSessions(EventLoop* loop, ListeningSocket socket, const Options& options, SessionEvents events,
                 manager::Random* random, manager::FdCloser* closer, manager::Log* log);
  ~HandleSessions() override;
  HandleSessions(const HandleSessions&) = delete;
  HandleSessions& operator=(const HandleSessions&) = delete;

  absl::Status Start();
  // No new connections from here on; sessions stay.
  void StopAccepting();

  // Whether `peer`, of another connection, is the process of this session. Thread-safe.
  ProcessMatch CheckProcess(core::SessionId session, const PeerIdentity& peer) const GPUMEM_EXCLUDES(mu_);

  // manager::HandleChannels. SendHandles: INTERNAL also for counts that no frame can have.
  absl::StatusOr<std::uint64_t> SendHandles(core::SessionId session, manager::OutboundHandles handles) override;
  absl::Status SendFetchRefused(core::SessionId session, std::uint64_t request_id, const absl::Status& why) override;
  absl::Status SendFenced(core::SessionId session, core::QuarantineReason reason, std::string_view message) override;
  void Close(core::SessionId session) override;
  void Forget(core::SessionId session) override;

 private:
  struct Connection {
    UniqueFd socket;  // none once closed
    std::shared_ptr<const PeerIdentity> peer;
    ConnectionCounts::Slot slot;
    UniqueFd witness;
    core::SessionId session;  // not valid before Open
    std::uint64_t next_inbound = 1;
    std::uint64_t next_outbound = 1;
    std::set<std::uint64_t> unanswered_fetches;  // request ids
  };

  void OnAccepted(AcceptedConnection accepted);
  void OnSocket(std::uint64_t key);
  void OnPidfd(std::uint64_t key);
  void OnWitness(std::uint64_t key);

  void OnFrame(std::uint64_t key, std::span<const std::byte> bytes, ReceivedFrame received);
  absl::StatusOr<Frame> CheckFrame(Connection& connection, std::span<const std::byte> bytes,
                                   const ReceivedFrame& received) const;
  void OnOpen(std::uint64_t key, const Frame& frame, std::vector<UniqueFd> fds);
  absl::Status TakeWitness(std::uint64_t key, Connection& connection, UniqueFd witness);
  void SendWelcome(Connection& connection);
  void OnSessionFrame(std::uint64_t key, const Frame& frame);

  // The connection's end for a breach or a failure: refuses it before Open, closes its socket and reports that after.
  void Break(std::uint64_t key, const absl::Status& why);
  void ReportSocketClosed(std::uint64_t key, absl::string_view how);
  void CloseSocket(Connection& connection);
  void RefuseAndClose(UniqueFd socket, const absl::Status& why);
  void CloseUnasked(std::vector<UniqueFd> fds);
  void Erase(std::uint64_t key);

  Connection* FindSession(core::SessionId session);
  absl::StatusOr<std::uint64_t> Send(Connection& connection, wire::FrameType type, std::uint64_t request_id,
                                     std::span<const int> fds, const auto& body);

  EventLoop* const loop_;
  const Options options_;
  const SessionEvents events_;
  manager::Random* const random_;
  manager::FdCloser* const closer_;
  manager::Log* const log_;
  const std::string name_;  // of the socket, for the log
  std::map<std::uint64_t, Connection> connections_;
  std::map<core::SessionId, std::uint64_t> keys_;  // of connections_
  std::uint64_t next_key_ = 1;
  Deadlines open_deadlines_;
  std::unique_ptr<Acceptor> acceptor_;

  mutable Mutex mu_;
  std::map<core::SessionId, std::shared_ptr<const PeerIdentity>> processes_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_HANDLE_SESSIONS_H_
