#include "daemon/session/handle_sessions.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/reasons.h"

namespace gpumem::session {
namespace {

using core::Reason;
using core::SessionId;
using Level = manager::Log::Level;

// Frames of one session that are handled before other events of the loop get their turn.
constexpr int kFramesAtOnce = 32;

// One byte more than the longest frame of a worker, so that a longer one shows.
constexpr std::size_t kInboundBytes = sizeof(wire::FrameHeader) +
                                      std::max({sizeof(wire::OpenBody), sizeof(wire::AcknowledgeBody),
                                                sizeof(wire::FetchBody), sizeof(wire::MappingBody)}) +
                                      1;

absl::Status CheckWitness(int fd) {
  struct stat status {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (::fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) {
    return core::Error(Reason::INVALID_ARGUMENT, "the fd that came with Open is not a pipe");
  }
  if (flags < 0 || (flags & O_ACCMODE) != O_RDONLY || (flags & O_PATH) != 0) {
    return core::Error(Reason::INVALID_ARGUMENT, "the fd that came with Open is not the read end of its pipe");
  }
  pollfd hung_up{fd, 0, 0};
  if (::poll(&hung_up, 1, 0) > 0 && (hung_up.revents & POLLHUP) != 0) {
    return core::Error(Reason::INVALID_ARGUMENT,
                       "nobody holds the write end of the witness pipe; keep it open until the process ends");
  }
  return absl::OkStatus();
}

core::SessionIdentity IdentityOf(const PeerIdentity& peer) {
  return core::SessionIdentity{peer.pid, peer.uid, peer.gid, peer.comm};
}

absl::Status CheckVersions(const wire::OpenBody& open) {
  if (open.min_version <= wire::kFrameVersion && wire::kFrameVersion <= open.max_version) return absl::OkStatus();
  return core::Error(Reason::VERSION_MISMATCH,
                     absl::StrCat("the worker speaks versions ", open.min_version, " to ", open.max_version,
                                  " of the handle frames, the daemon version ", wire::kFrameVersion));
}

}  // namespace

HandleSessions::HandleSessions(EventLoop* loop, ListeningSocket socket, const Options& options, SessionEvents events,
                               manager::Random* random, manager::FdCloser* closer, manager::Log* log)
    : loop_(loop),
      options_(options),
      events_(std::move(events)),
      random_(random),
      closer_(closer),
      log_(log),
      name_(socket.name()),
      open_deadlines_(loop, options.open_deadline,
                      [this](std::uint64_t key) {
                        Break(key, core::Error(Reason::DEADLINE, absl::StrCat("no Open frame came within ",
                                                                              options_.open_deadline.count(), " ms")));
                      }),
      acceptor_(std::make_unique<Acceptor>(
          loop, std::move(socket), options.limits,
          [this](AcceptedConnection accepted) { OnAccepted(std::move(accepted)); },
          [this](UniqueFd refused, const absl::Status& why) { RefuseAndClose(std::move(refused), why); }, log)) {}

HandleSessions::~HandleSessions() {
  while (!connections_.empty()) Erase(connections_.begin()->first);
}

absl::Status HandleSessions::Start() { return acceptor_->Start(); }

void HandleSessions::StopAccepting() { acceptor_.reset(); }

ProcessMatch HandleSessions::CheckProcess(SessionId session, const PeerIdentity& peer) const {
  std::shared_ptr<const PeerIdentity> process;
  {
    MutexLock lock(&mu_);
    const auto it = processes_.find(session);
    if (it == processes_.end()) return ProcessMatch::kNoSuchSession;
    process = it->second;
  }
  return SameProcess(*process, peer) ? ProcessMatch::kSame : ProcessMatch::kOtherProcess;
}

// --- what the kernel reports ----------------------------------------------------------------------------------------

void HandleSessions::OnAccepted(AcceptedConnection accepted) {
  const std::uint64_t key = next_key_++;
  const int error = loop_->Watch(accepted.socket.get(), EPOLLIN, [this, key](std::uint32_t) { OnSocket(key); });
  if (error != 0) {
    RefuseAndClose(std::move(accepted.socket),
                   core::Error(Reason::INTERNAL, absl::StrCat("cannot watch the socket: ", std::strerror(error))));
    return;
  }
  Connection& connection = connections_[key];
  connection.socket = std::move(accepted.socket);
  connection.peer = std::move(accepted.peer);
  connection.slot = std::move(accepted.slot);
  open_deadlines_.Add(key);
}

void HandleSessions::OnSocket(std::uint64_t key) {
  for (int i = 0; i < kFramesAtOnce; ++i) {
    // Looked up each time: what a frame started may have closed the socket or forgotten the session.
    const auto it = connections_.find(key);
    if (it == connections_.end() || !it->second.socket) return;
    std::array<std::byte, kInboundBytes> buffer;
    ReceivedFrame received;
    const int error = ReceiveFrame(it->second.socket.get(), buffer, /*blocking=*/false, &received);
    if (error == EAGAIN) return;
    if (error != 0) return ReportSocketClosed(key, std::strerror(error));
    if (received.size == 0) {
      CloseUnasked(std::move(received.fds));
      return ReportSocketClosed(key, "closed by the worker");
    }
    const std::span<const std::byte> bytes(buffer.data(), received.size);
    OnFrame(key, bytes, std::move(received));
  }
}

void HandleSessions::OnPidfd(std::uint64_t key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  loop_->Unwatch(it->second.peer->pidfd.get());
  events_.pidfd_readable(it->second.session);
}

void HandleSessions::OnWitness(std::uint64_t key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  loop_->Unwatch(it->second.witness.get());
  it->second.witness.reset();
  events_.witness_closed(it->second.session);
}

// --- frames
// -----------------------------------------------------------------------------------------------------------

absl::StatusOr<Frame> HandleSessions::CheckFrame(Connection& connection, std::span<const std::byte> bytes,
                                                 const ReceivedFrame& received) const {
  if (received.truncated && received.size < kInboundBytes) {
    return core::Error(Reason::DESCRIPTORS,
                       "the daemon has no descriptors left for the fds that came; raise its LimitNOFILE");
  }
  absl::StatusOr<Frame> frame = ParseFrame(bytes, received.fds.size(), Direction::kToDaemon);
  if (!frame.ok()) return frame;
  if (frame->header.sequence != connection.next_inbound) {
    return core::Error(Reason::INVALID_ARGUMENT, absl::StrCat("the frame has sequence number ", frame->header.sequence,
                                                              " where ", connection.next_inbound, " was next"));
  }
  const bool is_open = frame->header.type == wire::FrameType::kOpen;
  if (is_open == connection.session.valid()) {
    return core::Error(Reason::INVALID_ARGUMENT,
                       is_open ? "a second Open on one connection" : "the first frame must be Open");
  }
  ++connection.next_inbound;
  return frame;
}

void HandleSessions::OnFrame(std::uint64_t key, std::span<const std::byte> bytes, ReceivedFrame received) {
  const absl::StatusOr<Frame> frame = CheckFrame(connections_.at(key), bytes, received);
  if (!frame.ok()) {
    CloseUnasked(std::move(received.fds));
    return Break(key, frame.status());
  }
  if (frame->header.type == wire::FrameType::kOpen) return OnOpen(key, *frame, std::move(received.fds));
  OnSessionFrame(key, *frame);  // ParseFrame lets no other frame carry fds
}

void HandleSessions::OnOpen(std::uint64_t key, const Frame& frame, std::vector<UniqueFd> fds) {
  const auto& open = std::get<wire::OpenBody>(frame.body);
  Connection& connection = connections_.at(key);
  absl::Status status = CheckVersions(open);
  if (status.ok()) status = CheckWitness(fds.front().get());
  if (!status.ok()) {
    CloseUnasked(std::move(fds));
    return Break(key, status);
  }
  RefuseFds(connection.socket.get());
  status = TakeWitness(key, connection, std::move(fds.front()));
  if (!status.ok()) return Break(key, status);
  const absl::StatusOr<SessionId> session = events_.open(IdentityOf(*connection.peer));
  if (!session.ok()) return Break(key, session.status());

  connection.session = *session;
  keys_[*session] = key;
  {
    MutexLock lock(&mu_);
    processes_[*session] = connection.peer;
  }
  open_deadlines_.Remove(key);
  log_->Write(Level::kInfo, absl::StrCat("session ", session->value(), " opened by process ", connection.peer->pid,
                                         " (", connection.peer->comm, ") of uid ", connection.peer->uid, ", client ",
                                         TextOf(open.client_name)));
  SendWelcome(connection);
}

// Watches the process and the witness before the session exists, so that it never exists unwatched. Their handlers run
// later, from the loop.
absl::Status HandleSessions::TakeWitness(std::uint64_t key, Connection& connection, UniqueFd witness) {
  connection.witness = std::move(witness);
  int error = loop_->Watch(connection.peer->pidfd.get(), EPOLLIN, [this, key](std::uint32_t) { OnPidfd(key); });
  // No event but the hang-up, which is always reported: what is written into the pipe is nobody's concern.
  if (error == 0) error = loop_->Watch(connection.witness.get(), 0, [this, key](std::uint32_t) { OnWitness(key); });
  if (error == 0) return absl::OkStatus();
  return core::Error(Reason::INTERNAL,
                     absl::StrCat("cannot watch the process and its witness pipe: ", std::strerror(error)));
}

void HandleSessions::SendWelcome(Connection& connection) {
  wire::WelcomeBody welcome;
  welcome.session_id = connection.session.value();
  const std::array<std::uint8_t, 16> token = random_->Token();
  std::copy(token.begin(), token.end(), welcome.resume_token);
  std::copy(options_.instance.begin(), options_.instance.end(), welcome.instance);
  welcome.unacknowledged_frames = options_.unacknowledged_frames;
  const auto sent = Send(connection, wire::FrameType::kWelcome, 0, {}, welcome);
  // A worker without its Welcome has no session. The loop reports the hang-up.
  if (!sent.ok()) ::shutdown(connection.socket.get(), SHUT_RDWR);
}

void HandleSessions::OnSessionFrame(std::uint64_t key, const Frame& frame) {
  Connection& connection = connections_.at(key);
  const SessionId session = connection.session;
  if (const auto* fetch = std::get_if<wire::FetchBody>(&frame.body)) {
    const std::uint64_t request_id = frame.header.request_id;
    if (connection.unanswered_fetches.size() >= options_.unanswered_fetches) {
      return Break(key, core::Error(Reason::LIMIT, absl::StrCat("more than ", options_.unanswered_fetches,
                                                                " fetches wait for their answer")));
    }
    if (!connection.unanswered_fetches.insert(request_id).second) {
      return Break(key, core::Error(Reason::REQUEST_ID_REUSED,
                                    absl::StrCat("fetch ", request_id, " was sent again before its answer")));
    }
    events_.fetch(session, request_id, core::LeaseId(fetch->lease_id), fetch->first, fetch->count);
  } else if (const auto* acknowledge = std::get_if<wire::AcknowledgeBody>(&frame.body)) {
    std::vector<bool> imported(wire::kMaxFdsPerFrame);
    for (std::size_t i = 0; i < imported.size(); ++i) imported[i] = (acknowledge->imported[i / 8] >> (i % 8) & 1) != 0;
    events_.acknowledge(session, acknowledge->handles_sequence, imported,
                        static_cast<core::Access>(acknowledge->access));
  } else if (const auto* mapping = std::get_if<wire::MappingBody>(&frame.body)) {
    events_.mapping(session, core::LeaseId(mapping->lease_id), mapping->first, mapping->count,
                    static_cast<core::Access>(mapping->access));
  }
}

// --- ends
// -------------------------------------------------------------------------------------------------------------

void HandleSessions::Break(std::uint64_t key, const absl::Status& why) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  Connection& connection = it->second;
  if (connection.session.valid()) return ReportSocketClosed(key, why.message());
  log_->Write(Level::kWarning, absl::StrCat(name_, ": process ", connection.peer->pid, " (", connection.peer->comm,
                                            ") got no session: ", why.message()));
  loop_->Unwatch(connection.socket.get());
  RefuseAndClose(std::move(connection.socket), why);
  Erase(key);
}

void HandleSessions::ReportSocketClosed(std::uint64_t key, absl::string_view how) {
  Connection& connection = connections_.at(key);
  const SessionId session = connection.session;
  if (!session.valid()) return Erase(key);
  log_->Write(Level::kInfo, absl::StrCat("session ", session.value(), ", process ", connection.peer->pid, " (",
                                         connection.peer->comm, "): socket closed: ", how));
  CloseSocket(connection);
  events_.socket_closed(session);
}

void HandleSessions::CloseSocket(Connection& connection) {
  if (!connection.socket) return;
  loop_->Unwatch(connection.socket.get());
  ::shutdown(connection.socket.get(), SHUT_RDWR);  // the worker sees the end now, whenever the closer comes to it
  closer_->Close(connection.socket.release());
  connection.unanswered_fetches.clear();
}

void HandleSessions::RefuseAndClose(UniqueFd socket, const absl::Status& why) {
  // A socket that is closed with frames unread shows the peer ECONNRESET instead of the refusal. So nothing more may
  // come in, and what came is read away.
  ::shutdown(socket.get(), SHUT_RD);
  std::array<std::byte, kInboundBytes> buffer;
  ReceivedFrame received;
  while (ReceiveFrame(socket.get(), buffer, /*blocking=*/false, &received) == 0 && received.size > 0) {
    CloseUnasked(std::move(received.fds));
  }
  wire::FrameHeader header;
  header.type = wire::FrameType::kRefused;
  header.sequence = 1;
  // The refusal is a courtesy: a peer that cannot take it sees the end of the stream.
  static_cast<void>(SendFrame(socket.get(), EncodeFrame(header, RefusalOf(why)), {}, /*blocking=*/false));
  ::shutdown(socket.get(), SHUT_RDWR);
  closer_->Close(socket.release());
}

void HandleSessions::CloseUnasked(std::vector<UniqueFd> fds) {
  for (UniqueFd& fd : fds) closer_->Close(fd.release());
}

void HandleSessions::Erase(std::uint64_t key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  Connection& connection = it->second;
  CloseSocket(connection);
  open_deadlines_.Remove(key);
  loop_->Unwatch(connection.peer->pidfd.get());
  if (connection.witness) loop_->Unwatch(connection.witness.get());
  if (connection.session.valid()) {
    keys_.erase(connection.session);
    MutexLock lock(&mu_);
    processes_.erase(connection.session);
  }
  connections_.erase(it);
}

// --- the manager's calls --------------------------------------------------------------------------------------------

HandleSessions::Connection* HandleSessions::FindSession(SessionId session) {
  const auto it = keys_.find(session);
  return it == keys_.end() ? nullptr : &connections_.at(it->second);
}

absl::StatusOr<std::uint64_t> HandleSessions::Send(Connection& connection, wire::FrameType type,
                                                   std::uint64_t request_id, std::span<const int> fds,
                                                   const auto& body) {
  if (!connection.socket) return core::Error(Reason::DISCONNECTED, "the session's socket is closed");
  wire::FrameHeader header;
  header.type = type;
  header.sequence = connection.next_outbound;
  header.request_id = request_id;
  header.fd_count = static_cast<std::uint32_t>(fds.size());
  const int error = SendFrame(connection.socket.get(), EncodeFrame(header, body), fds, /*blocking=*/false);
  switch (error) {
    case 0:
      return connection.next_outbound++;
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return core::Error(Reason::LIMIT, absl::StrCat("the worker's socket takes no more frames now: ",
                                                     std::strerror(error), "; it must read, then fetch again"));
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
      return core::Error(Reason::DISCONNECTED, "the worker's end of its socket is closed");
    default:
      return core::Error(Reason::INTERNAL, absl::StrCat("sendmsg to the worker: ", std::strerror(error)));
  }
}

absl::StatusOr<std::uint64_t> HandleSessions::SendHandles(SessionId session, manager::OutboundHandles handles) {
  Connection* const connection = FindSession(session);
  if (connection == nullptr) return core::Error(Reason::DISCONNECTED, "the session is not known here");
  const std::size_t count = handles.chunks.size();
  if (count == 0 || count > wire::kMaxFdsPerFrame || handles.fds.size() != count) {
    return core::Error(Reason::INTERNAL, absl::StrCat(count, " chunks with ", handles.fds.size(),
                                                      " fds do not make a frame of 1 to ", wire::kMaxFdsPerFrame));
  }
  // Whatever becomes of it, this was the answer.
  connection->unanswered_fetches.erase(handles.request_id);
  wire::HandlesBody body{};
  body.lease_id = handles.lease.value();
  std::vector<int> fds;
  fds.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const manager::OutboundChunk& chunk = handles.chunks[i];
    body.entries[i] =
        wire::HandleEntry{chunk.chunk.value(), chunk.generation.value(), chunk.bytes.value(), chunk.index, 0};
    fds.push_back(handles.fds[i].get());
  }
  return Send(*connection, wire::FrameType::kHandles, handles.request_id, fds, body);
}

absl::Status HandleSessions::SendFetchRefused(SessionId session, std::uint64_t request_id, const absl::Status& why) {
  Connection* const connection = FindSession(session);
  if (connection == nullptr) return core::Error(Reason::DISCONNECTED, "the session is not known here");
  connection->unanswered_fetches.erase(request_id);
  return Send(*connection, wire::FrameType::kFetchRefused, request_id, {}, RefusalOf(why)).status();
}

absl::Status HandleSessions::SendFenced(SessionId session, core::QuarantineReason reason, std::string_view message) {
  Connection* const connection = FindSession(session);
  if (connection == nullptr) return core::Error(Reason::DISCONNECTED, "the session is not known here");
  wire::FencedBody body;
  body.quarantine_reason = static_cast<std::uint32_t>(reason);
  SetText(body.message, message);
  return Send(*connection, wire::FrameType::kFenced, 0, {}, body).status();
}

void HandleSessions::Close(SessionId session) {
  if (Connection* const connection = FindSession(session)) CloseSocket(*connection);
}

void HandleSessions::Forget(SessionId session) {
  const auto it = keys_.find(session);
  if (it != keys_.end()) Erase(it->second);
}

}  // namespace gpumem::session
