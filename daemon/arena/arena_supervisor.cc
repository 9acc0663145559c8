#include "daemon/arena/arena_supervisor.h"

#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/frame_channel.h"
#include "base/process.h"
#include "base/reap_later.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;
using manager::ArenaChunk;
using manager::ArenaCreated;
using manager::ArenaMemory;
using manager::ChunkId;
using manager::HandleFd;
using Level = manager::Log::Level;

absl::Status ErrorOf(std::uint32_t reason, const std::string& message) {
  return core::Error(static_cast<Reason>(reason), message);
}

}  // namespace

// One device's arena: its process now, or the wait for the next one.
class ArenaSupervisor::Arena : public std::enable_shared_from_this<Arena> {
 public:
  enum class State : std::uint8_t {
    kIdle,      // no process: not started yet, waiting for a restart, or stopped
    kStarting,  // a process, without its Hello
    kReady,
    kEnding,  // its socket is closed or broken; its end is not proven yet
  };

  // The arena's answer to one frame, or why there is none.
  struct Answer {
    const FixedHeader* header = nullptr;  // nullptr: the arena's process ended without an answer
    std::span<const std::byte> bytes;
    std::vector<HandleFd> fds;
    bool fds_lost = false;  // this process was out of descriptors when the answer came
    absl::Status lost;      // set when header is nullptr
  };
  using OnAnswer = std::function<void(Answer)>;

  Arena(const DeviceUuid& device, std::shared_ptr<const Options> options, std::function<void()> on_idle)
      : device_(device), options_(std::move(options)), on_idle_(std::move(on_idle)), delay_(options_->restart_first) {}
  ~Arena();

  void Launch();
  void Stop();
  void Kill();

  State state() const { return state_; }
  pid_t pid() const { return child_.pid; }
  bool ready() const { return state_ == State::kReady; }

  absl::Status Unavailable() const;
  // Sends one frame and calls `on_answer` once, later. Only when ready.
  template <typename Body>
  void Ask(ArenaFrame type, const Body& body, ArenaFrame answer_type, OnAnswer on_answer);
  // The arena broke the protocol: ends its process. Broken also says so as a call's result.
  void Break(const std::string& why);
  absl::Status Broken(const std::string& why) {
    Break(why);
    return Unavailable();
  }

  template <typename Done, typename Result>
  void PostDone(Done done, Result result) {
    // std::function copies; the result may be move-only.
    auto shared = std::make_shared<Result>(std::move(result));
    options_->loop->Post([done = std::move(done), shared] { done(std::move(*shared)); });
  }

 private:
  struct Waiting {
    std::uint64_t request;
    ArenaFrame type;
    OnAnswer on_answer;
  };

  void LaunchFailed(const std::string& what, int error);
  void OnFrame(std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated);
  void OnHello(const HelloBody& hello);
  void OnSocketEnd(const std::string& how);
  void OnProcessEnd();
  void FailWaiting(const absl::Status& why);
  void ScheduleLaunch();
  void Log(Level level, const std::string& message) const;

  const DeviceUuid device_;
  const std::shared_ptr<const Options> options_;
  const std::function<void()> on_idle_;  // its process has ended and no other will be started
  State state_ = State::kIdle;
  bool stopped_ = false;
  ChildProcess child_;
  std::shared_ptr<FrameChannel> channel_;
  std::deque<Waiting> waiting_;  // in the order asked, which is the order of the answers
  std::uint64_t next_request_ = 1;
  std::uint64_t life_ = 0;  // counts processes, so that a timer knows whether it means this one
  std::string failed_;      // the arena's own last words
  std::chrono::milliseconds delay_;
  std::chrono::steady_clock::time_point ready_since_;
  bool was_ready_ = false;  // this process
};

ArenaSupervisor::Arena::~Arena() {
  if (channel_) channel_->Close();
  if (!child_.pidfd) return;
  options_->loop->Unwatch(child_.pidfd.get());
  SendSignal(child_.pidfd.get(), SIGKILL);
}

void ArenaSupervisor::Arena::Log(Level level, const std::string& message) const {
  if (options_->log) options_->log(level, absl::StrCat("arena ", device_.ToString(), ": ", message));
}

absl::Status ArenaSupervisor::Arena::Unavailable() const {
  std::string why;
  switch (state_) {
    case State::kStarting:
      why = "is starting";
      break;
    case State::kEnding:
      why = "is ending";
      break;
    case State::kIdle:
    case State::kReady:
      why = stopped_ ? "was stopped" : "is not running";
      break;
  }
  return core::Error(Reason::DEVICE_UNAVAILABLE,
                     absl::StrCat("the arena of ", device_.ToString(), " ", why,
                                  failed_.empty() ? "" : absl::StrCat(" (last error: ", failed_, ")"),
                                  stopped_ ? "" : "; it is started again by itself, try later"));
}

void ArenaSupervisor::Arena::Break(const std::string& why) {
  Log(Level::kError, absl::StrCat("broke the arena protocol and is ended: ", why));
  failed_ = why;
  Kill();
}

void ArenaSupervisor::Arena::Launch() {
  if (stopped_ || state_ != State::kIdle) return;
  ++life_;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return LaunchFailed("socketpair", errno);
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);

  SpawnOptions spawn;
  spawn.path = options_->executable;
  spawn.arguments = {"gpumemd", "arena", absl::StrCat("--device=", device_.ToString()),
                     absl::StrCat("--driver=", options_->driver)};
  if (!options_->libcuda.empty()) spawn.arguments.push_back(absl::StrCat("--libcuda=", options_->libcuda));
  spawn.set_environment = options_->environment;
  // The process sees one device. A MIG instance can only be seen this way.
  spawn.set_environment.emplace_back("CUDA_VISIBLE_DEVICES", device_.ToString());
  // Readiness is the front's to tell; the arena must not speak for it.
  spawn.unset_environment = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"};
  spawn.fd3 = theirs.get();
  if (const int error = Spawn(spawn, &child_); error != 0) return LaunchFailed(options_->executable, error);

  state_ = State::kStarting;
  was_ready_ = false;
  failed_.clear();
  const std::weak_ptr<Arena> weak = weak_from_this();
  FrameChannel::Options channel;
  channel.loop = options_->loop;
  channel.max_frame_bytes = kMaxArenaFrameBytes;
  channel.on_frame = [weak](std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated) {
    if (const auto self = weak.lock()) self->OnFrame(bytes, std::move(fds), truncated);
  };
  channel.on_end = [weak](const std::string& how) {
    if (const auto self = weak.lock()) self->OnSocketEnd(how);
  };
  channel_ = FrameChannel::Open(std::move(ours), std::move(channel));
  const int watched = options_->loop->Watch(child_.pidfd.get(), EPOLLIN, [weak](std::uint32_t) {
    if (const auto self = weak.lock()) self->OnProcessEnd();
  });
  if (!channel_ || watched != 0) {
    // The kernel's limit of epoll watches. The child is not lost: it ends at the end of its socket.
    if (channel_) channel_->Close();
    channel_.reset();
    SendSignal(child_.pidfd.get(), SIGKILL);
    if (watched == 0) options_->loop->Unwatch(child_.pidfd.get());
    ReapLater(options_->loop, std::move(child_.pidfd));
    child_ = ChildProcess();
    state_ = State::kIdle;
    LaunchFailed("epoll_ctl", watched != 0 ? watched : ENOSPC);
  }
}

void ArenaSupervisor::Arena::LaunchFailed(const std::string& what, int error) {
  failed_ = absl::StrCat("cannot start it: ", what, ": ", std::strerror(error));
  Log(Level::kError, failed_);
  ScheduleLaunch();
}

void ArenaSupervisor::Arena::ScheduleLaunch() {
  if (stopped_) return;
  Log(Level::kInfo, absl::StrCat("is started again in ", delay_.count(), " ms"));
  options_->loop->After(delay_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Launch();
  });
  delay_ = std::min(delay_ * 2, options_->restart_longest);
}

void ArenaSupervisor::Arena::Stop() {
  stopped_ = true;
  if (state_ == State::kIdle) return;
  OnSocketEnd("the front stops");
}

void ArenaSupervisor::Arena::Kill() {
  if (child_.pidfd) SendSignal(child_.pidfd.get(), SIGKILL);
  OnSocketEnd("it was killed");
}

void ArenaSupervisor::Arena::OnSocketEnd(const std::string& how) {
  if (state_ == State::kIdle || state_ == State::kEnding) return;
  if (!stopped_) Log(Level::kDebug, how);
  state_ = State::kEnding;
  channel_->Close();
  // Ending may take long: the kernel closes what it held, which is the driver's work.
  options_->loop->After(options_->end_grace, [weak = weak_from_this(), life = life_] {
    const auto self = weak.lock();
    if (self && self->life_ == life && self->state_ == State::kEnding) {
      SendSignal(self->child_.pidfd.get(), SIGKILL);
    }
  });
}

void ArenaSupervisor::Arena::OnProcessEnd() {
  // Answers that it had sent before it ended are still in the socket, and count.
  if (channel_ && channel_->open()) channel_->Drain();
  options_->loop->Unwatch(child_.pidfd.get());
  std::string how = Reap(options_->loop, std::move(child_.pidfd));
  if (channel_) channel_->Close();
  channel_.reset();
  child_ = ChildProcess();
  state_ = State::kIdle;
  if (!failed_.empty()) how = absl::StrCat(how, ": ", failed_);
  if (failed_.empty() && !stopped_) failed_ = how;

  FailWaiting(core::Error(Reason::DEVICE_UNAVAILABLE,
                          absl::StrCat("the arena of ", device_.ToString(), " ended before it answered: ", how)));
  Log(stopped_ ? Level::kInfo : Level::kWarning, absl::StrCat("ended: ", how));
  if (was_ready_) {
    if (options_->on_ended) {
      options_->loop->Post([options = options_, device = device_, how] { options->on_ended(device, how); });
    }
    if (std::chrono::steady_clock::now() - ready_since_ >= options_->healthy_after) delay_ = options_->restart_first;
  }
  if (stopped_) {
    on_idle_();
  } else {
    ScheduleLaunch();
  }
}

void ArenaSupervisor::Arena::FailWaiting(const absl::Status& why) {
  std::deque<Waiting> waiting;
  waiting.swap(waiting_);
  for (const Waiting& one : waiting) {
    Answer answer;
    answer.lost = why;
    one.on_answer(std::move(answer));
  }
}

void ArenaSupervisor::Arena::OnFrame(std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated) {
  // From here on the fds are closed by the closer only.
  Answer answer;
  for (UniqueFd& fd : fds) answer.fds.emplace_back(fd.release(), options_->fd_closer);
  FixedHeader header;
  std::string why;
  const FrameCheck check = CheckFrame(kArenaFormat, bytes, fds.size(), truncated, &header, &why);
  if (check == FrameCheck::kBroken) {
    Break(why);
    return;
  }
  const auto type = static_cast<ArenaFrame>(header.type);
  if (type == ArenaFrame::kHello && state_ == State::kStarting) {
    OnHello(DecodeBody<HelloBody>(bytes));
    return;
  }
  if (type == ArenaFrame::kFailed) {
    failed_ = GetText(DecodeBody<FailedBody>(bytes).message);
    Log(Level::kError, failed_);
    return;
  }
  if (waiting_.empty() || waiting_.front().request != header.request || waiting_.front().type != type) {
    Break(absl::StrCat("a frame of type ", header.type, " answers request ", header.request,
                       ", which is not the one whose turn it is"));
    return;
  }
  const Waiting one = std::move(waiting_.front());
  waiting_.pop_front();
  answer.header = &header;
  answer.bytes = bytes;
  answer.fds_lost = check == FrameCheck::kFdsLost;
  if (answer.fds_lost) Log(Level::kWarning, why);
  one.on_answer(std::move(answer));
}

void ArenaSupervisor::Arena::OnHello(const HelloBody& hello) {
  DeviceUuid::Raw raw;
  std::copy(std::begin(hello.device_raw), std::end(hello.device_raw), raw.begin());
  const DeviceUuid said(hello.device_kind == 0 ? DeviceUuid::Kind::kGpu : DeviceUuid::Kind::kMig, raw);
  if (said != device_ || hello.device_kind > 1 || hello.granularity == 0) {
    Break(absl::StrCat("its Hello names ", said.ToString(), " with granularity ", hello.granularity));
    return;
  }
  ArenaInfo info;
  info.driver = hello.driver;
  info.driver_version = hello.driver_version;
  info.name = GetText(hello.name);
  info.total = manager::Bytes(hello.total_bytes);
  info.granularity = manager::Bytes(hello.granularity);
  info.memory_readings = hello.memory_readings != 0;
  state_ = State::kReady;
  was_ready_ = true;
  ready_since_ = std::chrono::steady_clock::now();
  Log(Level::kInfo, absl::StrCat("ready: ", info.name, ", ", info.total.value(), " bytes, driver version ",
                                 info.driver_version, ", pid ", child_.pid));
  if (options_->on_ready) {
    options_->loop->Post([options = options_, device = device_, info] { options->on_ready(device, info); });
  }
}

template <typename Body>
void ArenaSupervisor::Arena::Ask(ArenaFrame type, const Body& body, ArenaFrame answer_type, OnAnswer on_answer) {
  const std::uint64_t request = next_request_++;
  waiting_.push_back(Waiting{request, answer_type, std::move(on_answer)});
  channel_->Send(Encode(type, request, 0, body));
}

// --- one call of the port each ------------------------------------------------------------------------------------
// A call lives in a shared object that its frames' answers hold. Frames of one call go out one after the other, so that
// a failure stops the rest before the driver sees it.
namespace {

// The ids of up to one frame, from `first` on.
ChunksBody NextChunks(const std::vector<ChunkId>& chunks, std::size_t first) {
  ChunksBody body;
  body.count = static_cast<std::uint32_t>(std::min<std::size_t>(chunks.size() - first, kMaxChunksPerFrame));
  for (std::uint32_t i = 0; i < body.count; ++i) body.chunk_ids[i] = chunks[first + i].value();
  return body;
}

template <typename ArenaT>
class CreateCall : public std::enable_shared_from_this<CreateCall<ArenaT>> {
 public:
  CreateCall(std::shared_ptr<ArenaT> arena, std::vector<ArenaChunk> chunks, std::uint32_t want_fds,
             std::function<void(absl::StatusOr<ArenaCreated>)> done)
      : arena_(std::move(arena)), chunks_(std::move(chunks)), want_fds_(want_fds), done_(std::move(done)) {}

  void SendNext() {
    const std::size_t first = result_.chunks.size();
    if (first == chunks_.size()) return Finish(std::move(result_));
    if (!arena_->ready()) return Finish(arena_->Unavailable());
    CreateBody asked;
    asked.count = static_cast<std::uint32_t>(std::min<std::size_t>(chunks_.size() - first, kMaxChunksPerFrame));
    const std::size_t wanted = want_fds_ > first ? want_fds_ - first : 0;
    asked.want_fds = static_cast<std::uint32_t>(std::min<std::size_t>(wanted, asked.count));
    for (std::uint32_t i = 0; i < asked.count; ++i) {
      asked.entries[i] = CreateEntry{chunks_[first + i].chunk.value(), chunks_[first + i].bytes.value()};
    }
    arena_->Ask(ArenaFrame::kCreate, asked, ArenaFrame::kCreated,
                [self = this->shared_from_this(), asked](typename ArenaT::Answer answer) {
                  self->OnCreated(asked, std::move(answer));
                });
  }

 private:
  void OnCreated(const CreateBody& asked, typename ArenaT::Answer answer) {
    if (answer.header == nullptr) return Finish(answer.lost);
    const auto body = DecodeBody<CreatedBody>(answer.bytes);
    if (!Plausible(body, asked, answer.header->fd_count)) {
      return Finish(arena_->Broken("a Created has counts that do not fit its Create"));
    }
    if (answer.fds_lost) return Undo(body);
    for (std::uint32_t i = 0; i < body.good; ++i) result_.chunks.push_back(absl::OkStatus());
    for (HandleFd& fd : answer.fds) result_.fds.push_back(std::move(fd));
    if (body.good < body.count) return FailRest(ErrorOf(body.reason, GetText(body.message)));
    SendNext();
  }

  // The chunks exist but their fds could not come in: they are closed again, so that what failed does not exist.
  void Undo(const CreatedBody& created) {
    const absl::Status why =
        core::Error(Reason::DESCRIPTORS, "the daemon's front process is out of file descriptors; raise LimitNOFILE");
    if (created.good == 0) return FailRest(why);
    if (!arena_->ready()) return Finish(arena_->Unavailable());
    ChunksBody close;
    close.count = created.good;
    const std::size_t first = result_.chunks.size();
    for (std::uint32_t i = 0; i < close.count; ++i) close.chunk_ids[i] = chunks_[first + i].chunk.value();
    arena_->Ask(ArenaFrame::kClose, close, ArenaFrame::kClosed,
                [self = this->shared_from_this(), why](const typename ArenaT::Answer& answer) {
                  if (answer.header == nullptr) return self->Finish(answer.lost);
                  self->FailRest(why);
                });
  }

  void FailRest(const absl::Status& why) {
    const std::uint64_t failed = chunks_[result_.chunks.size()].chunk.value();
    result_.chunks.push_back(why);
    const absl::Status rest = core::Error(
        core::ReasonOf(why), absl::StrCat("not attempted, because chunk ", failed, " failed: ", why.message()));
    while (result_.chunks.size() < chunks_.size()) result_.chunks.push_back(rest);
    Finish(std::move(result_));
  }

  void Finish(absl::StatusOr<ArenaCreated> result) { arena_->PostDone(std::move(done_), std::move(result)); }

  const std::shared_ptr<ArenaT> arena_;
  const std::vector<ArenaChunk> chunks_;
  const std::uint32_t want_fds_;
  std::function<void(absl::StatusOr<ArenaCreated>)> done_;
  ArenaCreated result_;
};

template <typename ArenaT>
class FetchCall : public std::enable_shared_from_this<FetchCall<ArenaT>> {
 public:
  FetchCall(std::shared_ptr<ArenaT> arena, std::vector<ChunkId> chunks,
            std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done)
      : arena_(std::move(arena)), chunks_(std::move(chunks)), done_(std::move(done)) {}

  void SendNext() {
    if (fds_.size() == chunks_.size()) return Finish(std::move(fds_));
    if (!arena_->ready()) return Finish(arena_->Unavailable());
    const ChunksBody asked = NextChunks(chunks_, fds_.size());
    arena_->Ask(ArenaFrame::kFetch, asked, ArenaFrame::kFetched,
                [self = this->shared_from_this(), count = asked.count](typename ArenaT::Answer answer) {
                  self->OnFetched(count, std::move(answer));
                });
  }

 private:
  void OnFetched(std::uint32_t asked, typename ArenaT::Answer answer) {
    if (answer.header == nullptr) return Finish(answer.lost);
    const auto body = DecodeBody<FetchedBody>(answer.bytes);
    if (!Plausible(body, asked, answer.header->fd_count)) {
      return Finish(arena_->Broken("a Fetched has another number of descriptors than its Fetch asked for"));
    }
    if (body.reason != 0) return Finish(ErrorOf(body.reason, GetText(body.message)));
    if (answer.fds_lost) {
      return Finish(
          core::Error(Reason::DESCRIPTORS, "the daemon's front process is out of file descriptors; raise LimitNOFILE"));
    }
    for (HandleFd& fd : answer.fds) fds_.push_back(std::move(fd));
    SendNext();
  }

  void Finish(absl::StatusOr<std::vector<HandleFd>> result) { arena_->PostDone(std::move(done_), std::move(result)); }

  const std::shared_ptr<ArenaT> arena_;
  const std::vector<ChunkId> chunks_;
  std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done_;
  std::vector<HandleFd> fds_;
};

template <typename ArenaT>
class CloseCall : public std::enable_shared_from_this<CloseCall<ArenaT>> {
 public:
  CloseCall(std::shared_ptr<ArenaT> arena, std::vector<ChunkId> chunks,
            std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done)
      : arena_(std::move(arena)), chunks_(std::move(chunks)), done_(std::move(done)) {}

  void SendNext() {
    if (results_.size() == chunks_.size()) return Finish(std::move(results_));
    if (!arena_->ready()) return Finish(arena_->Unavailable());
    const ChunksBody asked = NextChunks(chunks_, results_.size());
    arena_->Ask(ArenaFrame::kClose, asked, ArenaFrame::kClosed,
                [self = this->shared_from_this(), count = asked.count](const typename ArenaT::Answer& answer) {
                  self->OnClosed(count, answer);
                });
  }

 private:
  void OnClosed(std::uint32_t asked, const typename ArenaT::Answer& answer) {
    if (answer.header == nullptr) return Finish(answer.lost);
    const auto body = DecodeBody<ClosedBody>(answer.bytes);
    if (!Plausible(body, asked)) {
      return Finish(arena_->Broken("a Closed has another number of results than its Close"));
    }
    for (std::uint32_t i = 0; i < body.count; ++i) {
      const std::uint64_t chunk = chunks_[results_.size()].value();
      results_.push_back(body.reasons[i] == 0
                             ? absl::OkStatus()
                             : ErrorOf(body.reasons[i], absl::StrCat("the arena has no chunk ", chunk)));
    }
    SendNext();
  }

  void Finish(absl::StatusOr<std::vector<absl::Status>> result) {
    arena_->PostDone(std::move(done_), std::move(result));
  }

  const std::shared_ptr<ArenaT> arena_;
  const std::vector<ChunkId> chunks_;
  std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done_;
  std::vector<absl::Status> results_;
};

absl::Status UnknownDevice(const DeviceUuid& device) {
  return core::Error(Reason::UNKNOWN_DEVICE, absl::StrCat("no arena was ever started for ", device.ToString()));
}

template <typename Result>
void PostError(EventLoop* loop, std::function<void(absl::StatusOr<Result>)> done, const absl::Status& why) {
  loop->Post([done = std::move(done), why] { done(why); });
}

}  // namespace

ArenaSupervisor::ArenaSupervisor(Options options) : options_(std::make_shared<const Options>(std::move(options))) {}

ArenaSupervisor::~ArenaSupervisor() = default;

void ArenaSupervisor::AddDevice(const DeviceUuid& device) {
  if (Find(device) != nullptr) return;
  auto on_idle = [this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) FinishShutdown();
  };
  const auto arena = std::make_shared<Arena>(device, options_, std::move(on_idle));
  arenas_.emplace(device, arena);
  if (started_) arena->Launch();
}

void ArenaSupervisor::Start() {
  started_ = true;
  for (const auto& [device, arena] : arenas_) arena->Launch();
}

void ArenaSupervisor::Shutdown(std::function<void()> done) {
  shutdown_done_ = std::move(done);
  for (const auto& [device, arena] : arenas_) arena->Stop();
  // The arenas are killed at end_grace; this is for one that even that does not end.
  options_->loop->After(options_->end_grace * 2, [this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || !shutdown_done_) return;
    if (options_->log) options_->log(Level::kError, "an arena does not end although it was killed; it is left behind");
    options_->loop->Post(std::exchange(shutdown_done_, nullptr));
  });
  FinishShutdown();
}

void ArenaSupervisor::FinishShutdown() {
  const bool all_idle = std::all_of(arenas_.begin(), arenas_.end(),
                                    [](const auto& entry) { return entry.second->state() == Arena::State::kIdle; });
  if (all_idle && shutdown_done_) options_->loop->Post(std::exchange(shutdown_done_, nullptr));
}

ArenaSupervisor::Arena* ArenaSupervisor::Find(const DeviceUuid& device) const {
  const auto it = arenas_.find(device);
  return it == arenas_.end() ? nullptr : it->second.get();
}

std::optional<pid_t> ArenaSupervisor::Pid(const DeviceUuid& device) const {
  const Arena* const arena = Find(device);
  if (arena == nullptr || arena->pid() < 0) return std::nullopt;
  return arena->pid();
}

void ArenaSupervisor::Create(const DeviceUuid& device, std::vector<ArenaChunk> chunks, std::uint32_t want_fds,
                             std::function<void(absl::StatusOr<ArenaCreated>)> done) {
  Arena* const arena = Find(device);
  if (arena == nullptr) return PostError(options_->loop, std::move(done), UnknownDevice(device));
  std::make_shared<CreateCall<Arena>>(arena->shared_from_this(), std::move(chunks), want_fds, std::move(done))
      ->SendNext();
}

void ArenaSupervisor::Fetch(const DeviceUuid& device, std::vector<ChunkId> chunks,
                            std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done) {
  Arena* const arena = Find(device);
  if (arena == nullptr) return PostError(options_->loop, std::move(done), UnknownDevice(device));
  std::make_shared<FetchCall<Arena>>(arena->shared_from_this(), std::move(chunks), std::move(done))->SendNext();
}

void ArenaSupervisor::Close(const DeviceUuid& device, std::vector<ChunkId> chunks,
                            std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done) {
  Arena* const arena = Find(device);
  if (arena == nullptr) return PostError(options_->loop, std::move(done), UnknownDevice(device));
  std::make_shared<CloseCall<Arena>>(arena->shared_from_this(), std::move(chunks), std::move(done))->SendNext();
}

void ArenaSupervisor::Memory(const DeviceUuid& device, std::function<void(absl::StatusOr<ArenaMemory>)> done) {
  Arena* const arena = Find(device);
  if (arena == nullptr) return PostError(options_->loop, std::move(done), UnknownDevice(device));
  if (!arena->ready()) return PostError(options_->loop, std::move(done), arena->Unavailable());
  arena->Ask(ArenaFrame::kMemory, MemoryBody{}, ArenaFrame::kMemoryIs,
             [self = arena->shared_from_this(), done = std::move(done)](const Arena::Answer& answer) {
               if (answer.header == nullptr) {
                 return self->PostDone(done, absl::StatusOr<ArenaMemory>(answer.lost));
               }
               const auto body = DecodeBody<MemoryIsBody>(answer.bytes);
               absl::StatusOr<ArenaMemory> result =
                   ArenaMemory{manager::Bytes(body.total_bytes), manager::Bytes(body.used_bytes)};
               if (body.reason != 0) result = ErrorOf(body.reason, GetText(body.message));
               self->PostDone(done, std::move(result));
             });
}

}  // namespace gpumem::arena
