#include "daemon/session/connections.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gpumem::session {
namespace {

using Level = manager::Log::Level;

constexpr rlim_t kMaxNumbers = 65536;

}  // namespace

HighFdRange HighFdRange::OfThisProcess() {
  rlimit limit{};
  constexpr rlim_t kLargest = 1 << 30;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1024;
  const rlim_t end = std::min(limit.rlim_cur, kLargest);
  const rlim_t first = end / 2;
  return HighFdRange(static_cast<int>(first), static_cast<int>(std::min(end, first + kMaxNumbers)));
}

UniqueFd HighFdRange::Duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, next_));
  if (!copy || copy.get() >= end_) {
    // Nothing is free from `next_` up (EMFILE, or EINVAL when the limit was lowered): once more from the start.
    copy.reset(::fcntl(fd, F_DUPFD_CLOEXEC, first_));
  }
  if (copy) next_ = copy.get() + 1 < end_ ? copy.get() + 1 : first_;
  return copy;
}

ControlConnections::ControlConnections(EventLoop* loop, ListeningSocket socket, const Options& options, Admit admit,
                                       HandOver hand_over, manager::Log* log)
    : loop_(loop),
      name_(socket.name()),
      first_call_deadline_(options.first_call_deadline),
      admit_(std::move(admit)),
      hand_over_(std::move(hand_over)),
      log_(log),
      numbers_(options.numbers),
      deadlines_(loop, options.first_call_deadline, [this](std::uint64_t key) { OnFirstCallDeadline(key); }),
      acceptor_(std::make_unique<Acceptor>(
          loop, std::move(socket), options.limits,
          [this](AcceptedConnection accepted) { OnAccepted(std::move(accepted)); },
          // gRPC's clients take an early close for UNAVAILABLE; there is no word to send before the handshake.
          [](UniqueFd, const absl::Status&) {}, log)) {}

ControlConnections::~ControlConnections() {
  for (const auto& [key, connection] : connections_) loop_->Unwatch(connection.kept.get());
}

absl::Status ControlConnections::Start() { return acceptor_->Start(); }

void ControlConnections::OnAccepted(AcceptedConnection accepted) {
  const PeerIdentity& peer = *accepted.peer;
  if (const absl::Status admitted = admit_(peer); !admitted.ok()) {
    log_->Write(Level::kWarning, absl::StrCat(name_, ": connection refused: ", admitted.message()));
    return;
  }
  RefuseFds(accepted.socket.get());
  UniqueFd handed = numbers_.Duplicate(accepted.socket.get());
  if (!handed) {
    log_->Write(Level::kError, absl::StrCat(name_, ": no descriptor for a connection of process ", peer.pid, ": ",
                                            std::strerror(errno), "; raise LimitNOFILE"));
    return;
  }
  const std::uint64_t key = next_key_++;
  // No event but the hang-up, which is always reported: reading is gRPC's.
  const int error = loop_->Watch(accepted.socket.get(), 0, [this, key](std::uint32_t) { OnHungUp(key); });
  if (error != 0) {
    log_->Write(Level::kError, absl::StrCat(name_, ": cannot watch a connection: ", std::strerror(error)));
    return;
  }
  const int fd = handed.release();
  {
    MutexLock lock(&mu_);
    entries_[fd] = Entry{std::move(accepted.peer), key, false};
  }
  connections_.emplace(key, Connection{std::move(accepted.socket), fd, std::move(accepted.slot)});
  deadlines_.Add(key);
  hand_over_(fd);
}

void ControlConnections::OnHungUp(std::uint64_t key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  loop_->Unwatch(it->second.kept.get());
  {
    MutexLock lock(&mu_);
    const auto entry = entries_.find(it->second.fd);
    if (entry != entries_.end() && entry->second.key == key) entries_.erase(entry);
  }
  deadlines_.Remove(key);
  connections_.erase(it);
}

void ControlConnections::OnFirstCallDeadline(std::uint64_t key) {
  const auto it = connections_.find(key);
  if (it == connections_.end()) return;
  std::int64_t pid = 0;
  {
    MutexLock lock(&mu_);
    const auto entry = entries_.find(it->second.fd);
    if (entry == entries_.end() || entry->second.key != key || entry->second.used) return;
    pid = entry->second.peer->pid;
  }
  log_->Write(Level::kInfo, absl::StrCat(name_, ": connection of process ", pid, " closed: no call within ",
                                         first_call_deadline_.count(), " ms"));
  ::shutdown(it->second.kept.get(), SHUT_RDWR);  // gRPC sees the end, and the hang-up ends the entry
}

std::shared_ptr<const PeerIdentity> ControlConnections::Find(int fd) const {
  MutexLock lock(&mu_);
  const auto it = entries_.find(fd);
  return it == entries_.end() ? nullptr : it->second.peer;
}

std::shared_ptr<const PeerIdentity> ControlConnections::FindByPeerString(std::string_view peer) const {
  int fd = -1;
  absl::string_view number(peer.data(), peer.size());
  if (!absl::ConsumePrefix(&number, "fd:") || !absl::SimpleAtoi(number, &fd)) return nullptr;
  return Find(fd);
}

void ControlConnections::MarkUsed(int fd) {
  MutexLock lock(&mu_);
  const auto it = entries_.find(fd);
  if (it != entries_.end()) it->second.used = true;
}

void ControlConnections::CloseAll() {
  acceptor_.reset();
  for (const auto& [key, connection] : connections_) ::shutdown(connection.kept.get(), SHUT_RDWR);
}

}  // namespace gpumem::session
