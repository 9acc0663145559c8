#include "daemon/session/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/core/reasons.h"

namespace gpumem::session {
namespace {

using core::Reason;

// Connections taken before other events of the loop get their turn.
constexpr int kAcceptsAtOnce = 32;

UniqueFd OpenSpare() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

absl::StatusOr<ConnectionCounts::Slot> ConnectionCounts::Take(uid_t uid) {
  const ConnectionLimits& limits = state_->limits;
  if (state_->all >= limits.in_all) {
    return core::Error(Reason::LIMIT, absl::StrCat("too many connections: ", state_->all, " are open, the limit is ",
                                                   limits.in_all, "; close some and connect again"));
  }
  std::uint32_t& open = state_->open[uid];
  if (open >= limits.for_each_uid) {
    const std::uint32_t found = open;
    if (found == 0) state_->open.erase(uid);
    return core::Error(Reason::LIMIT, absl::StrCat("too many connections of uid ", uid, ": ", found,
                                                   " are open, the limit for each uid is ", limits.for_each_uid,
                                                   "; close some and connect again"));
  }
  ++open;
  ++state_->all;
  return Slot(nullptr, [state = state_, uid](void*) {
    const auto it = state->open.find(uid);
    if (--it->second == 0) state->open.erase(it);
    --state->all;
  });
}

Acceptor::Acceptor(EventLoop* loop, ListeningSocket socket, const ConnectionLimits& limits, OnAccepted accepted,
                   OnRefused refused, manager::Log* log)
    : loop_(loop),
      socket_(std::move(socket)),
      counts_(limits),
      accepted_(std::move(accepted)),
      refused_(std::move(refused)),
      log_(log),
      spare_(OpenSpare()) {}

absl::Status Acceptor::Start() {
  const int error = loop_->Watch(socket_.fd(), EPOLLIN, [this](std::uint32_t) { OnReadable(); });
  if (error == 0) return absl::OkStatus();
  return core::Error(Reason::INTERNAL,
                     absl::StrCat(name(), ": cannot watch the listening socket: ", std::strerror(error)));
}

Acceptor::~Acceptor() { loop_->Unwatch(socket_.fd()); }

void Acceptor::OnReadable() {
  const std::weak_ptr<bool> alive = alive_;
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    if (!AcceptOne() || alive.expired()) return;
  }
}

bool Acceptor::AcceptOne() {
  UniqueFd socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    const int error = errno;
    if (error == EAGAIN) return false;
    if (error == EINTR || error == ECONNABORTED) return true;  // that one is gone; there may be others
    Pause(error);
    return false;
  }
  absl::StatusOr<PeerIdentity> peer = ReadPeer(socket.get());
  if (!peer.ok()) {
    log_->Write(manager::Log::Level::kWarning, absl::StrCat(name(), ": connection refused: ", peer.status().message()));
    refused_(std::move(socket), peer.status());
    return true;
  }
  absl::StatusOr<ConnectionCounts::Slot> slot = counts_.Take(peer->uid);
  if (!slot.ok()) {
    log_->Write(manager::Log::Level::kWarning, absl::StrCat(name(), ": process ", peer->pid, " (", peer->comm,
                                                            ") refused: ", slot.status().message()));
    refused_(std::move(socket), slot.status());
    return true;
  }
  accepted_(
      AcceptedConnection{std::move(socket), std::make_shared<const PeerIdentity>(*std::move(peer)), *std::move(slot)});
  return true;
}

void Acceptor::Pause(int error) {
  // The client would otherwise hang in the queue without a word.
  spare_.reset();
  UniqueFd(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  spare_ = OpenSpare();
  log_->Write(manager::Log::Level::kError,
              absl::StrCat(name(), ": cannot accept a connection: ", std::strerror(error), "; trying again in ",
                           kPause.count(), " ms; if descriptors ran out, raise LimitNOFILE"));
  loop_->Modify(socket_.fd(), 0);
  loop_->After(kPause, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    if (!spare_) spare_ = OpenSpare();
    loop_->Modify(socket_.fd(), EPOLLIN);
  });
}

}  // namespace gpumem::session
