#include "daemon/keeper/keeper_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/core/reasons.h"

namespace gpumem::keeper {
namespace {

using core::Reason;

// Connections that have not said Hello, and a front. Local users of the daemon's own uid can make these; nobody else.
constexpr std::size_t kMaxConnections = 16;
// A thread each. No machine has more devices and MIG instances than this.
constexpr std::size_t kMaxDevices = 256;
// accept(2) without descriptors left would be tried in a circle; the kernel's queue holds the peer meanwhile.
constexpr std::chrono::milliseconds kAcceptRetry(100);

DeviceUuid DeviceOf(const WireEntry& entry) {
  DeviceUuid::Raw raw;
  std::copy(std::begin(entry.device_raw), std::end(entry.device_raw), raw.begin());
  return DeviceUuid(entry.device_kind == 0 ? DeviceUuid::Kind::kGpu : DeviceUuid::Kind::kMig, raw);
}

std::pair<std::array<std::uint8_t, 16>, std::uint64_t> NameOf(const WireName& wire) {
  std::array<std::uint8_t, 16> ledger;
  std::copy(std::begin(wire.ledger), std::end(wire.ledger), ledger.begin());
  return {ledger, wire.id};
}

std::string HexOf(const std::uint8_t (&bytes)[16]) {
  std::string text;
  for (const std::uint8_t byte : bytes) absl::StrAppend(&text, absl::Hex(byte, absl::kZeroPad2));
  return text;
}

std::uint32_t Number(Reason reason) { return static_cast<std::uint32_t>(reason); }

}  // namespace

KeeperServer::KeeperServer(UniqueFd listener, Options options)
    : options_(std::move(options)), listener_(std::move(listener)) {
  Listen();
  if (options_.on_idle) CheckIdleAfter(options_.first_front_grace);
}

KeeperServer::~KeeperServer() {
  options_.loop->Unwatch(listener_.get());
  for (auto& [id, connection] : connections_) connection.channel->Close();
}

void KeeperServer::Log(const std::string& message) const {
  if (options_.log) options_.log(message);
}

std::uint64_t KeeperServer::bytes() const {
  std::uint64_t total = 0;  // for a log line: what fronts said, so a wrapped sum harms nothing
  for (const auto& [name, entry] : entries_) total += entry.wire.bytes;
  return total;
}

void KeeperServer::Listen() {
  options_.loop->Watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { OnConnect(); });
}

void KeeperServer::OnConnect() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
    Log(absl::StrCat("cannot accept a connection: ", std::strerror(errno), "; raise LimitNOFILE"));
    options_.loop->Unwatch(listener_.get());
    options_.loop->After(kAcceptRetry, [this, alive = std::weak_ptr<bool>(alive_)] {
      if (!alive.expired()) Listen();
    });
    return;
  }
  if (!Admit(socket.get())) return;
  const std::uint64_t id = next_connection_++;
  FrameChannel::Options channel;
  channel.loop = options_.loop;
  channel.max_frame_bytes = kMaxKeeperFrameBytes;
  // A Got waits in the queue with the entry's own fd: no frame that could delete the entry is read before it is sent.
  channel.read_only_when_sent = true;
  channel.on_frame = [this, id](std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated) {
    OnFrame(id, bytes, std::move(fds), truncated);
  };
  channel.on_end = [this, id](const std::string& how) { Drop(id, how); };
  Connection connection;
  connection.channel = FrameChannel::Open(std::move(socket), std::move(channel));
  if (!connection.channel) {
    Log(absl::StrCat("cannot watch a connection: ", std::strerror(errno)));
    return;
  }
  ++activity_;
  connections_.emplace(id, std::move(connection));
}

// Only the daemon's own user, or root, may hold and take memory here.
bool KeeperServer::Admit(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid != 0 && peer.uid != ::geteuid()) {
    Log(absl::StrCat("refused process ", peer.pid, " of uid ", peer.uid, ": only uid ", ::geteuid(), " and root may"));
    return false;
  }
  if (connections_.size() >= kMaxConnections) {
    Log(absl::StrCat("refused process ", peer.pid, ": ", kMaxConnections, " connections are open"));
    return false;
  }
  return true;
}

void KeeperServer::Drop(std::uint64_t connection, const std::string& why) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;
  const std::shared_ptr<FrameChannel> channel = it->second.channel;  // it may be in the middle of a callback
  if (it->second.is_front) Log(absl::StrCat("the front left: ", why, "; holding ", entries_.size(), " handles"));
  connections_.erase(it);
  channel->Close();
  ++activity_;
  if (options_.on_idle) CheckIdleAfter(options_.idle_grace);
}

void KeeperServer::CheckIdleAfter(std::chrono::milliseconds grace) {
  options_.loop->After(grace, [this, seen = activity_, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || seen != activity_ || !connections_.empty() || !entries_.empty()) return;
    options_.on_idle();
  });
}

void KeeperServer::OnFrame(std::uint64_t connection, std::span<const std::byte> bytes, std::vector<UniqueFd> fds,
                           bool truncated) {
  FixedHeader header;
  std::string why;
  const FrameCheck check = CheckFrame(kKeeperFormat, bytes, fds.size(), truncated, &header, &why);
  if (check == FrameCheck::kBroken) return Drop(connection, why);
  const auto type = static_cast<KeeperFrame>(header.type);
  if (header.fd_count != (type == KeeperFrame::kPut ? 1 : 0)) {
    return Drop(connection, "a frame carries a number of descriptors that its type does not have");
  }
  if (type == KeeperFrame::kHello) return OnHello(connection, header.request, DecodeBody<KeeperHelloBody>(bytes));
  if (!connections_.at(connection).is_front) return Drop(connection, "a frame came before Hello");
  switch (type) {
    case KeeperFrame::kPut:
      if (check == FrameCheck::kFdsLost) {
        Log(why);
        return Answer(connection, KeeperFrame::kDone, header.request, Number(Reason::DESCRIPTORS),
                      "the keeper is out of file descriptors; raise its LimitNOFILE");
      }
      return OnPut(connection, header.request, DecodeBody<PutBody>(bytes).entry, std::move(fds.front()));
    case KeeperFrame::kGet:
      return OnGet(connection, header.request, DecodeBody<NameBody>(bytes).name);
    case KeeperFrame::kDel:
      return OnDel(connection, header.request, DecodeBody<NameBody>(bytes).name);
    case KeeperFrame::kList:
      return OnList(connection, header.request, DecodeBody<ListBody>(bytes));
    default:
      return Drop(connection, absl::StrCat("a frame of type ", header.type, " is not for a keeper"));
  }
}

void KeeperServer::Answer(std::uint64_t connection, KeeperFrame type, std::uint64_t request, std::uint32_t reason,
                          const std::string& message, int fd) {
  const auto it = connections_.find(connection);
  if (it == connections_.end()) return;  // the front that asked is gone; the next one lists
  ResultBody body;
  body.reason = reason;
  SetText(body.message, message);
  const std::shared_ptr<FrameChannel> channel = it->second.channel;
  channel->Send(Encode(type, request, fd >= 0 ? 1 : 0, body), fd);
}

void KeeperServer::OnHello(std::uint64_t connection, std::uint64_t request, const KeeperHelloBody& hello) {
  HelloIsBody answer;
  answer.version = kKeeperVersion;
  answer.held = entries_.size();
  answer.most = options_.max_entries;
  answer.pid = static_cast<std::uint32_t>(::getpid());
  const bool common = hello.min_version <= kKeeperVersion && kKeeperVersion <= hello.max_version;
  if (!common) answer.reason = Number(Reason::VERSION_MISMATCH);
  connections_.at(connection).channel->Send(Encode(KeeperFrame::kHelloIs, request, 0, answer));
  if (!common) {
    return Drop(connection, absl::StrCat("it speaks versions ", hello.min_version, " to ", hello.max_version,
                                         ", and not version ", kKeeperVersion));
  }
  // A front that hangs must not keep its successor out.
  const auto before = std::find_if(connections_.begin(), connections_.end(), [&](const auto& entry) {
    return entry.second.is_front && entry.first != connection;
  });
  if (before != connections_.end()) Drop(before->first, "another front took over");
  connections_.at(connection).is_front = true;
  Log(absl::StrCat("serving daemon instance ", HexOf(hello.instance), "; holding ", entries_.size(), " of at most ",
                   options_.max_entries, " handles"));
}

// Starts the device's closing thread with its first entry, so that a Del never lacks one.
bool KeeperServer::HasCloser(const WireEntry& entry) {
  const DeviceUuid device = DeviceOf(entry);
  if (closers_.contains(device)) return true;
  if (closers_.size() >= kMaxDevices) return false;
  std::unique_ptr<ClosingThread> closer = ClosingThread::TryStart();
  if (!closer) return false;
  closers_.emplace(device, std::move(closer));
  return true;
}

void KeeperServer::OnPut(std::uint64_t connection, std::uint64_t request, const WireEntry& entry, UniqueFd fd) {
  Reason reason{};
  std::string why;
  if (!Plausible(entry) || entry.kind != EntryKind::kChunk) {
    reason = Reason::INVALID_ARGUMENT;
    why = absl::StrCat("an entry with id ", entry.name.id, ", device kind ", entry.device_kind, " and entry kind ",
                       static_cast<std::uint32_t>(entry.kind), " is not one that this keeper knows");
  } else if (entries_.contains(NameOf(entry.name))) {
    reason = Reason::INVALID_ARGUMENT;
    why = absl::StrCat("a handle is held under id ", entry.name.id, " already; names are never used twice");
  } else if (entries_.size() >= options_.max_entries) {
    reason = Reason::DESCRIPTORS;
    why = absl::StrCat("the keeper holds ", entries_.size(), " handles, its most; raise its LimitNOFILE");
  } else if (!HasCloser(entry)) {
    reason = Reason::LIMIT;
    why = absl::StrCat("the keeper cannot start a thread for another device; it has ", closers_.size(), " of at most ",
                       kMaxDevices);
  }
  if (why.empty()) {
    ++activity_;
    Entry kept;
    kept.wire = entry;
    kept.fd = std::move(fd);
    entries_.emplace(NameOf(entry.name), std::move(kept));
    return Answer(connection, KeeperFrame::kDone, request, 0, "");
  }
  // The front still has its own copy, unless it died: so even this close may be the last.
  refused_.Close(std::move(fd));
  Answer(connection, KeeperFrame::kDone, request, Number(reason), why);
}

void KeeperServer::OnGet(std::uint64_t connection, std::uint64_t request, const WireName& name) {
  const auto it = entries_.find(NameOf(name));
  if (it == entries_.end() || !it->second.fd) {
    return Answer(connection, KeeperFrame::kGot, request, Number(Reason::HANDLE_LOST),
                  absl::StrCat("the keeper holds no handle under id ", name.id));
  }
  Answer(connection, KeeperFrame::kGot, request, 0, "", it->second.fd.get());
}

void KeeperServer::OnDel(std::uint64_t connection, std::uint64_t request, const WireName& name) {
  const auto it = entries_.find(NameOf(name));
  if (it == entries_.end()) {
    return Answer(connection, KeeperFrame::kDone, request, Number(Reason::HANDLE_LOST),
                  absl::StrCat("the keeper holds no handle under id ", name.id));
  }
  Entry& entry = it->second;
  entry.waiters.push_back(Waiter{connection, request});
  if (!entry.fd) return;  // being closed already; the same end answers both
  closers_.at(DeviceOf(entry.wire))
      ->Close(std::move(entry.fd), [this, key = it->first, alive = std::weak_ptr<bool>(alive_)] {
        options_.loop->Post([this, key, alive] {
          if (!alive.expired()) OnClosed(key);
        });
      });
}

void KeeperServer::OnClosed(const Name& name) {
  const auto it = entries_.find(name);
  const std::vector<Waiter> waiters = std::move(it->second.waiters);
  entries_.erase(it);
  ++activity_;
  for (const Waiter& waiter : waiters) Answer(waiter.connection, KeeperFrame::kDone, waiter.request, 0, "");
  if (options_.on_idle && entries_.empty()) CheckIdleAfter(options_.idle_grace);
}

void KeeperServer::OnList(std::uint64_t connection, std::uint64_t request, const ListBody& list) {
  ListedBody page;
  auto it = list.from_start != 0 ? entries_.begin() : entries_.upper_bound(NameOf(list.after));
  for (; it != entries_.end() && page.count < kEntriesPerPage; ++it) page.entries[page.count++] = it->second.wire;
  page.more = it != entries_.end() ? 1 : 0;
  connections_.at(connection).channel->Send(Encode(KeeperFrame::kListed, request, 0, page));
}

}  // namespace gpumem::keeper
