#include "client/handle_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/unix_connect.h"

namespace gpumem::client {
namespace {

using wire::FrameType;

template <typename Body>
std::span<const std::byte> BytesOf(const Body& body) {
  return std::as_bytes(std::span<const Body>(&body, 1));
}

Status Broken(const std::string& what) { return Error(Reason::PROTOCOL, "gpumemd broke the handle protocol: " + what); }

Status Gone(const std::string& how) {
  return Error(Reason::DISCONNECTED, "the session with gpumemd is gone (" + how +
                                         "); mapped memory stays valid; connect again for anything else");
}

// A sentence in a fixed field, which a broken peer may have left without its NUL.
template <std::size_t kSize>
std::string Text(const char (&field)[kSize]) {
  return std::string(field, strnlen(field, kSize));
}

Status RefusalOf(const wire::RefusedBody& body) {
  Reason reason = static_cast<Reason>(body.reason);
  std::string message = Text(body.message);
  if (body.reason == 0 || InfoOf(static_cast<std::int32_t>(body.reason)).name == std::string_view("UNKNOWN")) {
    reason = Reason::INTERNAL;
    message = "refused with reason " + std::to_string(body.reason) + ", which this library does not know: " + message;
  }
  return Error(reason, std::move(message));
}

}  // namespace

// One checked frame. `type` is FrameType{} when there is none.
struct HandleChannel::Incoming {
  FrameType type{};
  std::uint64_t request_id = 0;
  HandleSet handles;          // kHandles
  wire::WelcomeBody welcome;  // kWelcome
  wire::RefusedBody refused;  // kRefused, kFetchRefused
  wire::FencedBody fenced;    // kFenced
  bool truncated = false;     // kHandles whose fds did not all come
};

// Gives the reader's turn back, also when memory ran out.
class HandleChannel::ReaderTurn {
 public:
  explicit ReaderTurn(HandleChannel* channel) : channel_(channel) {}
  ~ReaderTurn() {
    MutexLock lock(&channel_->mu_);
    channel_->reading_ = false;
    channel_->changed_.NotifyAll();
  }
  ReaderTurn(const ReaderTurn&) = delete;
  ReaderTurn& operator=(const ReaderTurn&) = delete;

 private:
  HandleChannel* const channel_;
};

Status HandleChannel::Open(const std::string& path, const std::string& client_name, Deadline deadline,
                           std::unique_ptr<HandleChannel>* channel) {
  GuardedFd socket;
  if (Status status = ConnectUnix(path, SOCK_SEQPACKET, deadline, &socket); !status.ok()) return status;
  return OpenOn(std::move(socket), client_name, deadline, channel);
}

Status HandleChannel::OpenOn(GuardedFd socket, const std::string& client_name, Deadline deadline,
                             std::unique_ptr<HandleChannel>* channel) {
  std::unique_ptr<HandleChannel> made(new HandleChannel(std::move(socket)));
  if (Status status = made->SendOpen(client_name, deadline); !status.ok()) return status;
  if (Status status = made->ReceiveWelcome(deadline); !status.ok()) return status;
  *channel = std::move(made);
  return {};
}

Status HandleChannel::SendOpen(const std::string& client_name, Deadline deadline) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Error(Reason::DESCRIPTORS, "this process cannot open a pipe: " + ErrnoText(errno));
  }
  const UniqueFd read_end(ends[0]);
  witness_.reset(ends[1]);
  wire::OpenBody body;
  const std::size_t size = std::min(client_name.size(), sizeof(body.client_name) - 1);
  std::memcpy(body.client_name, client_name.data(), size);
  const int fd = read_end.get();
  return Send(FrameType::kOpen, 0, BytesOf(body), std::span<const int>(&fd, 1), deadline);
}

Status HandleChannel::ReceiveWelcome(Deadline deadline) {
  Incoming incoming;
  if (Status status = Receive(deadline, &incoming); !status.ok()) return status;
  if (incoming.type == FrameType::kRefused) return RefusalOf(incoming.refused);
  if (incoming.type == FrameType{}) return Error(Reason::DEADLINE, "gpumemd did not open a session in time");
  if (incoming.type != FrameType::kWelcome) return Broken("its first frame is no Welcome");
  welcome_ = incoming.welcome;
  return {};
}

Status HandleChannel::Send(FrameType type, std::uint64_t request_id, std::span<const std::byte> body,
                           std::span<const int> fds, Deadline deadline) {
  if (!send_turn_.TakeUntil(deadline)) return Error(Reason::DEADLINE, "gpumemd does not read its handle socket");
  struct Giver {
    Turn* turn;
    ~Giver() { turn->Give(); }
  } giver{&send_turn_};
  wire::FrameHeader header;
  header.type = type;
  header.sequence = sent_ + 1;
  header.request_id = request_id;
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  header.fd_count = static_cast<std::uint32_t>(fds.size());
  std::byte frame[sizeof(header) + sizeof(wire::OpenBody)];  // the largest body that a worker sends
  std::memcpy(frame, &header, sizeof(header));
  std::memcpy(frame + sizeof(header), body.data(), body.size());
  const std::span<const std::byte> bytes(frame, sizeof(header) + body.size());
  for (;;) {
    const int error = SendFrame(socket_.get(), bytes, fds, false);
    if (error == 0) {
      ++sent_;
      return {};
    }
    if (error == EAGAIN) {
      if (WaitFor(socket_.get(), POLLOUT, deadline) != 0) continue;
      return Error(Reason::DEADLINE, "gpumemd does not read its handle socket");
    }
    if (error == EPIPE || error == ECONNRESET || error == ENOTCONN) return Gone(ErrnoText(error));
    return Error(Reason::INTERNAL, "sending to gpumemd failed: " + ErrnoText(error));
  }
}

Status HandleChannel::Receive(Deadline deadline, Incoming* incoming) {
  for (;;) {
    ReceivedFrame received;
    const std::span<std::byte> buffer(buffer_.get(), wire::kMaxFrameBytes);
    const int error = ReceiveFrame(socket_.get(), buffer, false, &received);
    if (error == 0) return CheckFrame(&received, incoming);
    if (error != EAGAIN) return Gone(ErrnoText(error));
    if (WaitFor(socket_.get(), POLLIN, deadline) == 0) return {};
  }
}

Status HandleChannel::CheckFrame(ReceivedFrame* received, Incoming* incoming) {
  if (received->size == 0) return Gone("the daemon closed it");
  wire::FrameHeader header;
  if (received->size < sizeof(header)) return Broken("a frame is shorter than its header");
  std::memcpy(&header, buffer_.get(), sizeof(header));
  if (header.magic != wire::kFrameMagic) return Broken("a frame does not begin with the magic number");
  if (header.version != wire::kFrameVersion) {
    return Error(Reason::VERSION_MISMATCH, "gpumemd sent a frame of version " + std::to_string(header.version) +
                                               "; this library speaks version " + std::to_string(wire::kFrameVersion));
  }
  if (header.sequence != received_ + 1) return Broken("a frame is missing or came twice");
  ++received_;
  const std::size_t body_bytes = wire::BodyBytes(header.type);
  if (body_bytes == 0) return Broken("a frame has the unknown type " + std::to_string(static_cast<int>(header.type)));
  if (header.body_bytes != body_bytes || received->size != sizeof(header) + body_bytes) {
    return Broken("a frame's size does not fit its type");
  }
  // Short of descriptors, the kernel drops the rest of a frame's fds. That is this process's trouble and ends one
  // request; a frame that lies about its fds ends the channel.
  const bool cut = received->truncated && received->fds.size() < header.fd_count;
  if (!cut && (received->truncated || received->fds.size() != header.fd_count)) {
    return Broken("a frame has " + std::to_string(received->fds.size()) + " fds and says " +
                  std::to_string(header.fd_count));
  }
  const std::byte* const body = buffer_.get() + sizeof(header);
  incoming->type = header.type;
  incoming->request_id = header.request_id;
  incoming->truncated = cut;
  switch (header.type) {
    case FrameType::kHandles: {
      if (header.fd_count == 0 || header.fd_count > wire::kMaxFdsPerFrame) return Broken("a frame has no handles");
      std::uint64_t lease_id = 0;
      std::memcpy(&lease_id, body + offsetof(wire::HandlesBody, lease_id), sizeof(lease_id));
      incoming->handles.sequence = header.sequence;
      incoming->handles.lease_id = lease_id;
      incoming->handles.entries.resize(header.fd_count);
      std::memcpy(incoming->handles.entries.data(), body + offsetof(wire::HandlesBody, entries),
                  header.fd_count * sizeof(wire::HandleEntry));
      incoming->handles.fds = std::move(received->fds);
      return {};
    }
    case FrameType::kWelcome:
      std::memcpy(&incoming->welcome, body, sizeof(incoming->welcome));
      break;
    case FrameType::kRefused:
    case FrameType::kFetchRefused:
      std::memcpy(&incoming->refused, body, sizeof(incoming->refused));
      break;
    case FrameType::kFenced:
      std::memcpy(&incoming->fenced, body, sizeof(incoming->fenced));
      break;
    default:
      return Broken("a frame of type " + std::to_string(static_cast<int>(header.type)) + " goes the other way");
  }
  if (header.fd_count != 0) return Broken("a frame that carries no handles has fds");
  return {};
}

void HandleChannel::Die(Status why) {
  MutexLock lock(&mu_);
  if (dead_.ok()) dead_ = std::move(why);
  changed_.NotifyAll();
  Wake();
}

void HandleChannel::WakeOnNews(int event_fd) {
  wake_fd_.store(event_fd);
  MutexLock lock(&mu_);
  if (!dead_.ok() || fenced_.has_value()) Wake();
}

// An eventfd never blocks for one more count; a lost wake would only be one that is pending already.
void HandleChannel::Wake() const {
  const int fd = wake_fd_.load();
  const std::uint64_t one = 1;
  if (fd >= 0) (void)!::write(fd, &one, sizeof(one));
}

// Returns the sequence number of a Handles frame that nobody wants: the caller acknowledges it, and closes its fds,
// outside the lock.
std::optional<std::uint64_t> HandleChannel::Deliver(Incoming* arrived) {
  Incoming& incoming = *arrived;
  if (incoming.type == FrameType::kFenced) {
    fenced_ = incoming.fenced;
    Wake();
    return std::nullopt;
  }
  const auto found = expected_.find(incoming.request_id);
  if (incoming.type == FrameType::kFetchRefused) {
    if (found != expected_.end()) found->second.failures.push_back(RefusalOf(incoming.refused));
    return std::nullopt;
  }
  if (found == expected_.end()) return incoming.handles.sequence;
  if (!incoming.truncated) {
    found->second.sets.push_back(std::move(incoming.handles));
    return std::nullopt;
  }
  found->second.failures.push_back(Error(Reason::DESCRIPTORS, "this process has no room for " +
                                                                  std::to_string(incoming.handles.entries.size()) +
                                                                  " more file descriptors; raise RLIMIT_NOFILE"));
  return incoming.handles.sequence;
}

void HandleChannel::ReadOne(Deadline deadline) {
  Incoming incoming;
  Status status = Receive(deadline, &incoming);
  if (status.ok() && (incoming.type == FrameType::kWelcome || incoming.type == FrameType::kRefused)) {
    status = Broken("a session was opened twice");
  }
  if (!status.ok()) return Die(std::move(status));
  if (incoming.type == FrameType{}) return;
  std::optional<std::uint64_t> unwanted;
  {
    MutexLock lock(&mu_);
    unwanted = Deliver(&incoming);
    changed_.NotifyAll();
  }
  if (!unwanted.has_value()) return;
  incoming.handles.fds.clear();
  (void)Acknowledge(*unwanted, {}, deadline);
}

// True when Await has its answer.
bool HandleChannel::TakeArrived(std::uint64_t request_id, HandleSet* handles, Status* status) {
  Expected& expected = expected_[request_id];
  if (!expected.sets.empty()) {
    *handles = std::move(expected.sets.front());
    expected.sets.pop_front();
    *status = {};
    return true;
  }
  if (!expected.failures.empty()) {
    *status = std::move(expected.failures.front());
    expected.failures.pop_front();
    return true;
  }
  if (dead_.ok()) return false;
  *status = dead_;
  return true;
}

// Waits for an answer or for the reader's turn. True when there is an answer.
bool HandleChannel::BecomeReader(std::uint64_t request_id, Deadline deadline, HandleSet* handles, Status* status) {
  MutexLock lock(&mu_);
  for (;;) {
    if (TakeArrived(request_id, handles, status)) return true;
    if (std::chrono::steady_clock::now() >= deadline) {
      *status = Error(Reason::DEADLINE, "gpumemd did not send the memory handles in time");
      return true;
    }
    if (!reading_) {
      reading_ = true;
      return false;
    }
    changed_.WaitUntil(&mu_, deadline);
  }
}

Status HandleChannel::Await(std::uint64_t request_id, Deadline deadline, HandleSet* handles) {
  Status status;
  while (!BecomeReader(request_id, deadline, handles, &status)) {
    const ReaderTurn turn(this);
    ReadOne(deadline);
  }
  return status;
}

Status HandleChannel::Poll() {
  for (bool more = true; more;) {
    {
      MutexLock lock(&mu_);
      if (!dead_.ok()) return dead_;
      if (reading_) return {};
      reading_ = true;
    }
    const ReaderTurn turn(this);
    const std::uint64_t before = received_;
    ReadOne(Deadline{});
    more = received_ != before;
  }
  MutexLock lock(&mu_);
  return dead_;
}

void HandleChannel::Expect(std::uint64_t request_id) {
  MutexLock lock(&mu_);
  expected_.try_emplace(request_id);
}

void HandleChannel::Forget(std::uint64_t request_id, Deadline deadline) {
  std::deque<HandleSet> left;
  {
    MutexLock lock(&mu_);
    const auto found = expected_.find(request_id);
    if (found == expected_.end()) return;
    left = std::move(found->second.sets);
    expected_.erase(found);
  }
  for (HandleSet& set : left) {
    set.fds.clear();
    (void)Acknowledge(set.sequence, {}, deadline);
  }
}

Status HandleChannel::Fetch(std::uint64_t request_id, std::uint64_t lease_id, std::uint32_t first, std::uint32_t count,
                            Deadline deadline) {
  wire::FetchBody body;
  body.lease_id = lease_id;
  body.first = first;
  body.count = std::min(count, wire::kMaxFdsPerFrame);
  return Send(FrameType::kFetch, request_id, BytesOf(body), {}, deadline);
}

Status HandleChannel::Acknowledge(std::uint64_t handles_sequence, const std::vector<bool>& imported,
                                  Deadline deadline) {
  wire::AcknowledgeBody body;
  body.handles_sequence = handles_sequence;
  for (std::size_t i = 0; i < imported.size(); ++i) {
    if (imported[i]) body.imported[i / 8] = static_cast<std::uint8_t>(body.imported[i / 8] | (1u << (i % 8)));
  }
  return Send(FrameType::kAcknowledge, 0, BytesOf(body), {}, deadline);
}

Status HandleChannel::ReportMapping(std::uint64_t lease_id, std::uint32_t chunk_count, wire::MappedAccess access,
                                    Deadline deadline) {
  wire::MappingBody body;
  body.lease_id = lease_id;
  body.first = 0;
  body.count = chunk_count;
  body.access = access;
  return Send(FrameType::kMapping, 0, BytesOf(body), {}, deadline);
}

std::optional<wire::FencedBody> HandleChannel::fenced() const {
  MutexLock lock(&mu_);
  return fenced_;
}

bool HandleChannel::dead() const {
  MutexLock lock(&mu_);
  return !dead_.ok();
}

void HandleChannel::Shutdown() {
  Die(Error(Reason::DISCONNECTED, "the client was closed"));
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace gpumem::client
