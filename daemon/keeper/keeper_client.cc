#include "daemon/keeper/keeper_client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reap_later.h"
#include "daemon/core/reasons.h"
#include "daemon/keeper/socket_address.h"

namespace gpumem::keeper {
namespace {

using core::Reason;
using manager::HandleFd;
using manager::KeptEntry;
using manager::KeptName;
using Level = manager::Log::Level;

WireName ToWire(const KeptName& name) {
  WireName wire;
  std::copy(name.ledger.begin(), name.ledger.end(), wire.ledger);
  wire.id = name.id;
  return wire;
}

WireEntry ToWire(const KeptEntry& entry) {
  WireEntry wire;
  wire.name = ToWire(entry.name);
  std::copy(entry.device.raw().begin(), entry.device.raw().end(), wire.device_raw);
  wire.device_kind = static_cast<std::uint32_t>(entry.device.kind());
  wire.bytes = entry.bytes.value();
  return wire;
}

KeptEntry FromWire(const WireEntry& wire) {
  KeptEntry entry;
  std::copy(std::begin(wire.name.ledger), std::end(wire.name.ledger), entry.name.ledger.begin());
  entry.name.id = wire.name.id;
  DeviceUuid::Raw raw;
  std::copy(std::begin(wire.device_raw), std::end(wire.device_raw), raw.begin());
  entry.device = DeviceUuid(wire.device_kind == 0 ? DeviceUuid::Kind::kGpu : DeviceUuid::Kind::kMig, raw);
  entry.bytes = manager::Bytes(wire.bytes);
  return entry;
}

}  // namespace

KeeperClient::KeeperClient(Options options) : options_(std::move(options)), delay_(options_.retry_first) {}

KeeperClient::~KeeperClient() {
  if (channel_) channel_->Close();
  if (spawned_.pidfd) options_.loop->Unwatch(spawned_.pidfd.get());
  FailCalls("the daemon stops");
}

void KeeperClient::Log(Level level, const std::string& message) const {
  if (options_.log) options_.log(level, absl::StrCat("keeper ", options_.socket_path, ": ", message));
}

void KeeperClient::Start() { Connect(); }

void KeeperClient::ConnectLater() {
  options_.loop->After(delay_, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) Connect();
  });
  delay_ = std::min(delay_ * 2, options_.retry_longest);
}

void KeeperClient::Connect() {
  sockaddr_un address;
  int error = 0;
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    error = errno;
  } else if (!SocketAddress(options_.socket_path, &address)) {
    error = ENAMETOOLONG;
  } else if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    error = errno;  // a Unix socket connects at once or not at all
  } else if (!KeeperIsOurs(socket.get())) {
    error = EPERM;
  }
  if (error == 0) {
    FrameChannel::Options channel;
    channel.loop = options_.loop;
    channel.max_frame_bytes = kMaxKeeperFrameBytes;
    channel.on_frame = [this](std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated) {
      OnFrame(bytes, std::move(fds), truncated);
    };
    channel.on_end = [this](const std::string& how) { OnEnd(how); };
    channel_ = FrameChannel::Open(std::move(socket), std::move(channel));
    if (!channel_) error = errno;
  }
  if (error != 0) {
    const bool none_there = error == ENOENT || error == ECONNREFUSED;
    if (options_.spawn && none_there) {
      SpawnKeeper();
    } else {
      if (!told_unreachable_) {
        Log(Level::kWarning, absl::StrCat("cannot connect: ", std::strerror(error), "; trying again"));
      }
      told_unreachable_ = true;
    }
    return ConnectLater();
  }
  state_ = State::kGreeting;
  KeeperHelloBody hello;
  std::copy(options_.instance.begin(), options_.instance.end(), hello.instance);
  channel_->Send(Encode(KeeperFrame::kHello, 0, 0, hello));
}

// Whoever else listens there would be given the node's memory.
bool KeeperClient::KeeperIsOurs(int socket) const {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid == 0 || peer.uid == ::geteuid()) return true;
  Log(Level::kError, absl::StrCat("process ", peer.pid, " of uid ", peer.uid, " listens there; it must be uid ",
                                  ::geteuid(), " or root"));
  return false;
}

void KeeperClient::SpawnKeeper() {
  if (spawned_.pidfd) return;  // it is starting; one that cannot start ends, and then the next attempt starts another
  SpawnOptions spawn;
  spawn.path = options_.executable;
  spawn.arguments = {"gpumemd", "keeper", absl::StrCat("--socket=", options_.socket_path), "--exit-when-idle"};
  // It must not take the daemon's sockets or speak to systemd in the daemon's name.
  spawn.unset_environment = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                             "LISTEN_FDS",    "LISTEN_PID",    "LISTEN_FDNAMES"};
  spawn.new_session = true;
  UniqueFd log;
  if (!options_.keeper_log.empty()) {
    log.reset(::open(options_.keeper_log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640));
    if (!log) Log(Level::kWarning, absl::StrCat("cannot open ", options_.keeper_log, ": ", std::strerror(errno)));
    spawn.stdout_fd = log.get();
    spawn.stderr_fd = log.get();
  }
  if (const int error = Spawn(spawn, &spawned_); error != 0) {
    Log(Level::kError, absl::StrCat("cannot start ", options_.executable, " keeper: ", std::strerror(error)));
    return;
  }
  Log(Level::kInfo, absl::StrCat("started one, pid ", spawned_.pid));
  options_.loop->Watch(spawned_.pidfd.get(), EPOLLIN, [this](std::uint32_t) { OnSpawnedEnd(); });
}

void KeeperClient::OnSpawnedEnd() {
  options_.loop->Unwatch(spawned_.pidfd.get());
  const std::string how = Reap(options_.loop, std::move(spawned_.pidfd));
  Log(Level::kWarning, absl::StrCat("the one that was started, pid ", spawned_.pid, ", ended: ", how));
  spawned_ = ChildProcess();
}

void KeeperClient::OnFrame(std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated) {
  // From here on the fds are closed by the closer only.
  std::vector<HandleFd> handles;
  for (UniqueFd& fd : fds) handles.emplace_back(fd.release(), options_.fd_closer);
  FixedHeader header;
  std::string why;
  const FrameCheck check = CheckFrame(kKeeperFormat, bytes, fds.size(), truncated, &header, &why);
  if (check == FrameCheck::kBroken) return OnEnd(why);
  const auto type = static_cast<KeeperFrame>(header.type);
  if (type == KeeperFrame::kHelloIs && state_ == State::kGreeting) return OnHelloIs(DecodeBody<HelloIsBody>(bytes));
  if (type == KeeperFrame::kListed && state_ == State::kListing) return OnListed(DecodeBody<ListedBody>(bytes));
  if ((type == KeeperFrame::kDone || type == KeeperFrame::kGot) && state_ == State::kReady) {
    return OnAnswer(header, DecodeBody<ResultBody>(bytes), std::move(handles), check == FrameCheck::kFdsLost);
  }
  OnEnd(absl::StrCat("a frame of type ", header.type, " came when none was due"));
}

void KeeperClient::OnHelloIs(const HelloIsBody& hello) {
  if (hello.reason != 0) {
    // It holds memory, so it is not replaced: an operator decides.
    Log(Level::kError, absl::StrCat("it speaks version ", hello.version, " and this daemon version ", kKeeperVersion,
                                    "; it holds ", hello.held, " handles"));
    delay_ = options_.retry_longest;
    return OnEnd("no protocol version in common");
  }
  keeper_pid_ = static_cast<pid_t>(hello.pid);
  state_ = State::kListing;
  listed_.clear();
  AskList(nullptr);
}

void KeeperClient::AskList(const WireName* after) {
  ListBody list;
  if (after == nullptr) {
    list.from_start = 1;
  } else {
    list.after = *after;
  }
  channel_->Send(Encode(KeeperFrame::kList, 0, 0, list));
}

void KeeperClient::OnListed(const ListedBody& page) {
  if (!Plausible(page)) return OnEnd("a page of its list has counts that cannot be");
  for (std::uint32_t i = 0; i < page.count; ++i) listed_.push_back(FromWire(page.entries[i]));
  if (page.more != 0) return AskList(&page.entries[page.count - 1].name);
  state_ = State::kReady;
  delay_ = options_.retry_first;
  told_unreachable_ = false;
  Log(Level::kInfo, absl::StrCat("connected to pid ", *keeper_pid_, ", which holds ", listed_.size(), " handles"));
  if (options_.on_ready) {
    options_.loop->Post([on_ready = options_.on_ready, held = std::move(listed_)] { on_ready(held); });
  }
  listed_ = {};
}

void KeeperClient::OnAnswer(const FixedHeader& header, const ResultBody& body, std::vector<HandleFd> fds,
                            bool fds_lost) {
  const auto it = calls_.find(header.request);
  const bool fits = it != calls_.end() && static_cast<KeeperFrame>(header.type) == it->second.answer &&
                    header.fd_count == (it->second.answer == KeeperFrame::kGot && body.reason == 0 ? 1 : 0);
  if (!fits) return OnEnd(absl::StrCat("its answer to request ", header.request, " fits no open call"));
  absl::StatusOr<HandleFd> result = HandleFd();
  if (body.reason != 0) {
    result = core::Error(static_cast<Reason>(body.reason), GetText(body.message));
  } else if (fds_lost) {
    result =
        core::Error(Reason::DESCRIPTORS, "the daemon's front process is out of file descriptors; raise LimitNOFILE");
  } else if (!fds.empty()) {
    result = std::move(fds.front());
  }
  const auto done = std::move(it->second.done);
  calls_.erase(it);
  auto shared = std::make_shared<absl::StatusOr<HandleFd>>(std::move(result));
  options_.loop->Post([done, shared] { done(std::move(*shared)); });
}

void KeeperClient::OnEnd(const std::string& how) {
  const bool was_ready = state_ == State::kReady;
  channel_->Close();
  state_ = State::kDisconnected;
  keeper_pid_.reset();
  FailCalls(how);
  if (was_ready) {
    Log(Level::kWarning, absl::StrCat("the connection ended: ", how));
    if (options_.on_lost) options_.loop->Post([on_lost = options_.on_lost, how] { on_lost(how); });
  }
  ConnectLater();
}

void KeeperClient::FailCalls(const std::string& how) {
  std::map<std::uint64_t, Call> calls;
  calls.swap(calls_);
  const absl::Status why = core::Error(
      Reason::KEEPER_UNAVAILABLE,
      absl::StrCat("the connection to the keeper at ", options_.socket_path, " ended before it answered: ", how));
  for (auto& [request, call] : calls) options_.loop->Post([done = std::move(call.done), why] { done(why); });
}

template <typename Body>
void KeeperClient::Ask(KeeperFrame type, const Body& body, Call call) {
  if (state_ != State::kReady) {
    options_.loop->Post([done = std::move(call.done), path = options_.socket_path] {
      done(core::Error(Reason::KEEPER_UNAVAILABLE, absl::StrCat("the keeper at ", path, " is not connected")));
    });
    return;
  }
  const std::uint64_t request = next_request_++;
  const int fd = call.fd.get();
  calls_.emplace(request, std::move(call));
  channel_->Send(Encode(type, request, fd >= 0 ? 1 : 0, body), fd);
}

void KeeperClient::Put(const KeptEntry& entry, HandleFd fd, std::function<void(absl::Status)> done) {
  if (!fd.valid()) {
    options_.loop->Post([done = std::move(done), id = entry.name.id] {
      done(core::Error(Reason::INVALID_ARGUMENT, absl::StrCat("no handle came with the entry of id ", id)));
    });
    return;
  }
  Call call;
  call.answer = KeeperFrame::kDone;
  call.done = [done = std::move(done)](const absl::StatusOr<HandleFd>& result) { done(result.status()); };
  call.fd = std::move(fd);
  Ask(KeeperFrame::kPut, PutBody{ToWire(entry)}, std::move(call));
}

void KeeperClient::Get(const KeptName& name, std::function<void(absl::StatusOr<HandleFd>)> done) {
  Call call;
  call.answer = KeeperFrame::kGot;
  call.done = std::move(done);
  Ask(KeeperFrame::kGet, NameBody{ToWire(name)}, std::move(call));
}

void KeeperClient::Del(const KeptName& name, std::function<void(absl::Status)> done) {
  Call call;
  call.answer = KeeperFrame::kDone;
  call.done = [done = std::move(done)](const absl::StatusOr<HandleFd>& result) { done(result.status()); };
  Ask(KeeperFrame::kDel, NameBody{ToWire(name)}, std::move(call));
}

}  // namespace gpumem::keeper
