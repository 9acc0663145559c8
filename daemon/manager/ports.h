// daemon/manager/ports.h: everything that the manager needs of the world, as asynchronous ports.
//
// The manager is one strand: each call into it, and each completion that it passed to a port, runs there, one at a
// time. A port never calls a completion from inside the call that took it; it posts it to the strand. Every completion
// is called exactly once, with an error when the other side is gone. The same manager runs single-threaded under a
// virtual clock with simulated ports.
#ifndef GPUMEM_DAEMON_MANAGER_PORTS_H_
#define GPUMEM_DAEMON_MANAGER_PORTS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/types.h"
#include "daemon/manager/handle_fd.h"

namespace gpumem::manager {

using core::AttachmentId;
using core::Bytes;
using core::ChunkId;
using core::Generation;
using core::HolderId;
using core::LeaseId;
using core::SessionId;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;  // wall time, for records and displays only: nothing is decided by it
};

class Timers {
 public:
  virtual ~Timers() = default;
  // Runs `fn` on the strand once, after `delay` of monotonic time.
  virtual void After(absl::Duration delay, std::function<void()> fn) = 0;
};

class Random {
 public:
  virtual ~Random() = default;
  virtual std::array<std::uint8_t, 16> Token() = 0;  // unpredictable
};

// --- arenas -----------------------------------------------------------------------------------------------------
struct ArenaChunk {
  ChunkId chunk;
  Bytes bytes;
};
struct ArenaCreated {
  // For each chunk asked, in order: OK, or why not. A chunk that failed does not exist in the driver.
  std::vector<absl::Status> chunks;
  // fds of the first `want_fds` chunks, in order (fewer when a chunk failed).
  std::vector<HandleFd> fds;
};
struct ArenaMemory {
  Bytes total;
  Bytes used;
};

// The arena processes, one per device. A call for a device whose arena is not running, or ends before it answers,
// completes with DEVICE_UNAVAILABLE; the end itself is reported through Manager::OnArenaEnded, after those completions.
class Arenas {
 public:
  virtual ~Arenas() = default;
  // Creates, exports, and lets go of the CUDA handles; the arena keeps the fds until Close.
  virtual void Create(const DeviceUuid& device, std::vector<ArenaChunk> chunks, std::uint32_t want_fds,
                      std::function<void(absl::StatusOr<ArenaCreated>)> done) = 0;
  // Copies (dup) of fds that the arena still has, in order.
  virtual void Fetch(const DeviceUuid& device, std::vector<ChunkId> chunks,
                     std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done) = 0;
  // Closes fds: a driver call each when it is the last reference. One answer per chunk.
  virtual void Close(const DeviceUuid& device, std::vector<ChunkId> chunks,
                     std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done) = 0;
  virtual void Memory(const DeviceUuid& device, std::function<void(absl::StatusOr<ArenaMemory>)> done) = 0;
};

// --- keeper -----------------------------------------------------------------------------------------------------
// A name in the keeper: the ledger's nonce and a never-reused id.
struct KeptName {
  std::array<std::uint8_t, 16> ledger{};
  std::uint64_t id = 0;
  friend bool operator==(const KeptName&, const KeptName&) = default;
};
struct KeptEntry {
  KeptName name;
  DeviceUuid device;
  Bytes bytes;
};

// The keeper process. A call while it is not connected, or that it does not answer before the connection ends,
// completes with KEEPER_UNAVAILABLE; the connection's end is reported through Manager::OnKeeperLost after those, and a
// new one through OnKeeperReady with what the keeper holds.
class Keeper {
 public:
  virtual ~Keeper() = default;
  virtual void Put(const KeptEntry& entry, HandleFd fd, std::function<void(absl::Status)> done) = 0;
  virtual void Get(const KeptName& name, std::function<void(absl::StatusOr<HandleFd>)> done) = 0;
  virtual void Del(const KeptName& name, std::function<void(absl::Status)> done) = 0;
};

// --- journal ----------------------------------------------------------------------------------------------------
// Takes each batch of transitions before the reply that depends on it is sent. `done` is the moment at which the reply
// may go. Batches complete in order.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual void Record(core::Transitions moves, std::function<void(absl::Status)> done) = 0;
};

// --- sessions' handle channel ---------------------------------------------------------------------------------------
struct OutboundChunk {
  ChunkId chunk;
  Generation generation;
  Bytes bytes;
  std::uint32_t index = 0;
};
struct OutboundHandles {
  std::uint64_t request_id = 0;
  LeaseId lease;
  std::vector<OutboundChunk> chunks;  // at most wire::kMaxFdsPerFrame
  std::vector<HandleFd> fds;          // as many, in the same order
};

// The outbox of each session's handles.sock. Sends never block: a frame either went into the socket whole or not at
// all. A call for a session without a socket returns UNAVAILABLE.
class HandleChannels {
 public:
  virtual ~HandleChannels() = default;
  // The sequence number that the frame got. RESOURCE_EXHAUSTED when the socket's buffer or the kernel's limit of
  // in-flight fds is full: nothing was sent, the worker may fetch again.
  virtual absl::StatusOr<std::uint64_t> SendHandles(SessionId session, OutboundHandles handles) = 0;
  virtual absl::Status SendFetchRefused(SessionId session, std::uint64_t request_id, const absl::Status& why) = 0;
  virtual absl::Status SendFenced(SessionId session, core::QuarantineReason reason, std::string_view message) = 0;
  // Drops the socket. Frames that were queued in it can still be read by the worker, and their fds die with the
  // worker's end of it. The session's pidfd and witness stay watched.
  virtual void Close(SessionId session) = 0;
  // The session is over in the books: forget its pidfd and witness too.
  virtual void Forget(SessionId session) = 0;
};

// --- events -----------------------------------------------------------------------------------------------------
struct SessionFencedEvent {
  SessionId session;
  core::QuarantineReason reason{};
  Bytes quarantined;
  std::string detail;
};
struct SessionEndedEvent {
  SessionId session;
  Bytes settled;
};
struct DeviceChangedEvent {
  DeviceUuid device;
  core::DeviceState state{};
  Generation generation;
  std::string detail;
};
struct SegmentChangedEvent {
  std::string name;
  core::SegmentState state{};
  bool removed = false;
};
struct DaemonStoppingEvent {
  absl::Duration grace;
};
struct Event {
  std::uint64_t sequence = 0;
  absl::Time at;
  std::variant<SessionFencedEvent, SessionEndedEvent, DeviceChangedEvent, SegmentChangedEvent, DaemonStoppingEvent>
      kind;
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Publish(const Event& event) = 0;  // never blocks
};

// One line of the log about the books; daemon/observe writes it.
class Log {
 public:
  virtual ~Log() = default;
  enum class Level { kDebug, kInfo, kWarning, kError };
  virtual void Write(Level level, std::string_view message) = 0;
};

struct Ports {
  Clock* clock = nullptr;
  Timers* timers = nullptr;
  Random* random = nullptr;
  Arenas* arenas = nullptr;
  Keeper* keeper = nullptr;
  Journal* journal = nullptr;
  HandleChannels* channels = nullptr;
  EventSink* events = nullptr;
  Log* log = nullptr;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_PORTS_H_
