// daemon/core/state.h: the records of the books. Private to daemon/core; base/ and Abseil only.
//
// Nothing here moves a byte from one total to another: that is settlement.h's. Here are the records, how they are
// found, and how they come and go.
#ifndef GPUMEM_DAEMON_CORE_STATE_H_
#define GPUMEM_DAEMON_CORE_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/books.h"
#include "daemon/core/reasons.h"
#include "daemon/core/types.h"

namespace gpumem::core::internal {

struct Segment;
struct Session;
struct Holder;

// Wide enough for any sum of changes that one call makes to 64-bit totals.
__extension__ typedef __int128 Wide;

// Who may still reference a chunk's physical memory. Of a sealed segment, kWorkerRef means its readers.
enum Ref : std::uint8_t { kArenaRef = 1, kKeeperRef = 2, kWorkerRef = 4 };

struct Chunk {
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  std::uint16_t device = 0;  // index in State::devices
  ChunkState state = ChunkState::kReleased;
  std::uint8_t refs = 0;
  bool ending = false;            // is released at the moment its last reference goes
  Access mapped = Access::kNone;  // by the owner, as it says
  QuarantineReason reason{};      // 0 unless quarantined
  Evidence last{};                // the proof by which its latest reference went

  void Reference(Ref ref) { refs = static_cast<std::uint8_t>(refs | ref); }
  void Drop(Ref ref, Evidence evidence) {
    if ((refs & ref) == 0) return;
    refs = static_cast<std::uint8_t>(refs & ~ref);
    last = evidence;
    if (ref == kWorkerRef) mapped = Access::kNone;
  }
  void End() {
    ending = true;
    if (state != ChunkState::kQuarantined) state = ChunkState::kDraining;
  }
  // Keeps the first reason.
  void Quarantine(QuarantineReason why) {
    if (state == ChunkState::kQuarantined) return;
    state = ChunkState::kQuarantined;
    reason = why;
  }
  // Granted, and not on its way out.
  bool in_use() const { return state == ChunkState::kUndelivered || state == ChunkState::kLive; }
};
static_assert(sizeof(Chunk) == 24, "a million leases are kept");

// Byte totals. Each is the sum of what every chunk (and reader's mapping) contributes.
template <typename T>
struct Sums {
  T charged = 0;
  T physical = 0;
  T quarantined = 0;
  T draining = 0;
  T read_only = 0;
  T read_write = 0;

  // Adds `sign` times what `chunk` contributes.
  void Count(const Chunk& chunk, int sign) {
    if (chunk.state == ChunkState::kReleased) return;
    const T bytes = static_cast<T>(chunk.bytes) * static_cast<T>(sign);
    charged += bytes;
    if (chunk.refs != 0) physical += bytes;
    if (chunk.state == ChunkState::kQuarantined) quarantined += bytes;
    if (chunk.state == ChunkState::kDraining) draining += bytes;
    if (chunk.mapped == Access::kReadOnly) read_only += bytes;
    if (chunk.mapped == Access::kReadWrite) read_write += bytes;
  }
  friend bool operator==(const Sums&, const Sums&) = default;
};

// The totals of one device, tenant, session or holder, and what the call at hand wants to add to them.
struct Account {
  Sums<std::uint64_t> total;
  Sums<Wide> planned;
  bool touched = false;  // is in the list of the settlement at hand
};

struct Device {
  AuthoritySpec spec;
  DeviceState state = DeviceState::kStarting;
  Generation generation;
  std::string detail;
  Bytes unattributed;
  Account account;
  Account tenant;  // what the one tenant is charged here
  absl::btree_set<ChunkId> at_arena;
};

struct Lease {
  LeaseId id;  // its chunks have the ids that follow
  LeaseKind kind = LeaseKind::kPrivate;
  bool rolled_back = false;     // chunks that are created from here on are for giving back only
  std::uint32_t remaining = 0;  // chunks that are not released
  Session* session = nullptr;   // null: sealed, or adopted from the keeper
  Holder* holder = nullptr;
  std::shared_ptr<Segment> segment;
  Bytes asked;
  absl::Time since;
  absl::InlinedVector<Chunk, 1> chunks;

  ChunkId chunk_id(std::uint32_t index) const { return ChunkId(id.value() + 1 + index); }
  std::uint32_t count() const { return static_cast<std::uint32_t>(chunks.size()); }
};

struct Holder {
  HolderId id;
  Session* session = nullptr;
  std::string name;
  Role role = Role::kOther;
  std::uint32_t leases = 0;
  std::uint32_t attachments = 0;
  Account account;
};

struct Session {
  SessionId id;
  SessionIdentity identity;
  SessionState state = SessionState::kLive;
  bool ended = false;  // its process's end is proven
  absl::Time since;
  QuarantineReason fence_reason{};
  std::string fence_detail;
  EvidenceSet evidence;
  absl::btree_set<LeaseId> leases;
  absl::btree_set<HolderId> holders;
  absl::btree_set<AttachmentId> attachments;
  Account account;
};

// Lives as long as its lease or its place in State::segments, whichever is longer.
struct Segment {
  std::string path;
  std::uint64_t version = 0;  // the one that it has, or gets when it is sealed
  SegmentState state = SegmentState::kBuilding;
  bool was_sealed = false;
  Lease* lease = nullptr;  // null once its last charge has ended
  LeaseId lease_id;
  Generation generation;
  Bytes bytes;
  std::uint32_t chunks = 0;
  Manifest manifest;
  absl::Time sealed_at = absl::InfinitePast();
  absl::btree_map<SessionId, AttachmentId> readers;

  std::string FullName() const;
};

struct Attachment {
  AttachmentId id;
  Session* session = nullptr;
  Holder* holder = nullptr;
  std::shared_ptr<Segment> segment;
  std::vector<bool> mapped;      // by chunk, read-only
  bool outcome_unknown = false;  // detached with an unknown outcome: it ends with its process
};

// All of one lease's chunks on one device that are quarantined for one reason.
struct QuarantineRecord {
  QuarantineId id;
  Generation generation;
  QuarantineReason reason{};
  const Lease* lease = nullptr;
  std::uint16_t device = 0;
  std::uint64_t bytes = 0;
  std::uint32_t chunks = 0;
  std::string detail;
  absl::Time since;
  EvidenceSet evidence;
};
using RecordKey = std::tuple<LeaseId, std::uint16_t, QuarantineReason>;

struct ChunkRef {
  Lease* lease = nullptr;  // null: no such chunk, or it was released
  std::uint32_t index = 0;
  Chunk& operator*() const { return lease->chunks[index]; }
  explicit operator bool() const { return lease != nullptr; }
};

class State {
 public:
  State(const Limits& the_limits, std::uint64_t first_id) : limits(the_limits), next_id(first_id) {}

  const Limits limits;
  std::uint64_t next_id;
  std::vector<std::unique_ptr<Device>> devices;
  absl::flat_hash_map<DeviceUuid, std::uint16_t> device_index;
  std::optional<Bytes> tenant_limit;
  absl::btree_map<SessionId, std::unique_ptr<Session>> sessions;
  std::uint64_t sessions_fenced = 0;
  absl::btree_map<HolderId, std::unique_ptr<Holder>> holders;
  absl::btree_map<LeaseId, std::unique_ptr<Lease>> leases;
  absl::btree_map<std::string, std::shared_ptr<Segment>> segments;  // by path
  absl::flat_hash_map<AttachmentId, std::unique_ptr<Attachment>> attachments;
  absl::btree_map<QuarantineId, QuarantineRecord> records;
  absl::flat_hash_map<RecordKey, QuarantineId> record_index;
  absl::btree_set<ChunkId> kept;  // at the keeper

  template <typename IdType>
  IdType Draw() {
    return IdType(next_id++);
  }

  Device* FindDevice(const DeviceUuid& uuid);
  const Device* FindDevice(const DeviceUuid& uuid) const { return const_cast<State*>(this)->FindDevice(uuid); }
  Session* FindSession(SessionId id) const;
  Lease* FindLease(LeaseId id) const;
  ChunkRef FindChunk(ChunkId id) const;
  // UNKNOWN_SESSION, SESSION_FENCED.
  absl::StatusOr<Session*> LiveSession(SessionId id) const;
  // UNKNOWN_HOLDER when it is not this session's.
  absl::StatusOr<Holder*> HolderOf(const Session& session, HolderId id) const;
  // UNKNOWN_LEASE, ALREADY_SEALED, FOREIGN_LEASE.
  absl::StatusOr<Lease*> OwnedLease(const Session& session, LeaseId id) const;
  // The attachment by which `session` reads this lease; null when there is none.
  Attachment* ReaderOf(const Lease& lease, SessionId session) const;

  ChunkView View(const Lease& lease, std::uint32_t index) const;
  std::vector<ChunkView> Views(const Lease& lease, std::uint32_t first, std::uint32_t count) const;
  SegmentRow Row(const Segment& segment) const;

  // The version that the next sealing of `path` gives. A number that was given is not given again, also not after the
  // segment is gone: given versions are remembered per path, and when more paths are remembered than there may be
  // segments, all are forgotten at the price that every path then goes on above the highest of them.
  std::uint64_t NextVersion(const std::string& path) const;
  // Takes the segment's name out of the list; its charges, if any are left, end on their own.
  void Unlist(const std::shared_ptr<Segment>& segment);

  void EraseAttachment(Attachment* attachment);
  // Forgets a session whose end is proven and that has no lease left.
  void ForgetIfDone(Session* session);
  // Its last chunk was released.
  void RetireLease(Lease* lease);

 private:
  absl::flat_hash_map<std::string, std::uint64_t> given_versions_;
  std::uint64_t version_floor_ = 0;
};

// A defect: says which impossible thing was met.
absl::Status Defect(std::string_view what);
// "device GPU-… (H200)".
std::string Name(const Device& device);
// "session 7 (pid 123, python)".
std::string Name(const Session& session);

// One outcome per chunk, or exactly one for all; each a value that exists. INVALID_ARGUMENT otherwise.
absl::Status CheckOutcomes(const std::vector<Outcome>& outcomes, std::uint32_t chunks);
inline Outcome OutcomeOf(const std::vector<Outcome>& outcomes, std::uint32_t index) {
  return outcomes.size() == 1 ? outcomes[0] : outcomes[index];
}
// STILL_MAPPED naming the first chunk that is, of `thing`. The name is only made when it is needed.
absl::Status CheckNoneMapped(const std::vector<Outcome>& outcomes, absl::FunctionRef<std::string()> thing);
// What errors about a lease carry.
ErrorDetails LeaseDetails(LeaseId lease);
// INVALID_ARGUMENT when [first, first+count) is empty or not inside of `chunks`.
absl::Status CheckRange(std::uint32_t first, std::uint32_t count, std::uint32_t chunks);

}  // namespace gpumem::core::internal

namespace gpumem::core {
class Books::Impl : public internal::State {
 public:
  using State::State;
};
}  // namespace gpumem::core

#endif  // GPUMEM_DAEMON_CORE_STATE_H_
