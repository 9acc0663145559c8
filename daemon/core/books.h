// daemon/core/books.h: the books of one node: authorities, tenants, sessions, holders, leases, chunks, segments,
// quarantine; and the one place where a charge ends (settlement).
//
// A pure state machine: values in, effects out, time passed in. It makes no driver call, owns no fd, has no clock, no
// thread and no lock, and calls nothing but base/ and Abseil. Not thread-safe: the manager's strand owns it.
//
// Every mutating call either does all of what it says and appends the moves it made to `*moves`, or returns an error
// and changes nothing. Errors carry a Reason (reasons.h). A state that its own callers made impossible (an underflow, a
// chunk that is not where it must be) is a defect: the call returns Reason::INTERNAL naming it, and changes nothing.
//
// How a charge ends. A chunk's physical memory can be referenced from three kinds of place, and the books remember
// which ("references"):
//   arena   the arena process still has the exported fd open
//   keeper  the keeper has it in its store
//   worker  it was sent to the owning session's worker (or to a segment's readers: then by attachment)
// A chunk whose lease is ending is released at the moment the last of them is proven gone, by evidence of its own kind:
// the arena's close or the arena process's end; the keeper's delete or the keeper's end; a living owner's outcome
// `unmapped`, or the proven end of the owner's process (pidfd readable and witness closed). Nothing else ends a charge.
#ifndef GPUMEM_DAEMON_CORE_BOOKS_H_
#define GPUMEM_DAEMON_CORE_BOOKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/types.h"

namespace gpumem::core {

// Every limit that a peer could otherwise grow past. Each has a test at the limit and one above.
struct Limits {
  std::uint32_t sessions = 4096;
  std::uint32_t holders_per_session = 256;
  std::uint32_t leases_per_session = 65536;
  std::uint32_t chunks_per_lease = 65536;
  std::uint32_t specs_per_request = 64;
  std::uint32_t attachments_per_session = 1024;
  std::uint32_t segments = 4096;
  std::uint32_t tensors_per_manifest = 65536;
  std::uint32_t name_bytes = 200;
};

struct AuthoritySpec {
  DeviceUuid device;
  std::string name;
  Bytes capacity;     // bytes that the daemon may hand out at most, headroom included
  Bytes headroom;     // kept free for contexts and libraries
  Bytes granularity;  // of the driver; a chunk is a multiple of it
};

// What the kernel said of the process behind a session.
struct SessionIdentity {
  std::int64_t pid = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::string comm;
};

struct ChunkSpec {
  DeviceUuid device;
  Bytes chunk_bytes;
  std::uint32_t count = 0;
};

struct PlannedChunk {
  ChunkId chunk;
  Generation generation;
  DeviceUuid device;
  Bytes bytes;  // rounded up to the granularity: as charged
};

struct Reservation {
  LeaseId lease;
  Bytes asked;
  Bytes charged;
  std::vector<PlannedChunk> chunks;  // in lease order
};

struct TensorInfo {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  Bytes offset;
  Bytes size;
};
using Manifest = std::vector<TensorInfo>;

// Work that the manager must have done elsewhere before charges can end; each answer comes back as Drop*Reference.
struct ReleaseWork {
  std::vector<ChunkId> close_at_arena;
  std::vector<ChunkId> delete_at_keeper;
  Bytes released;     // charges that this very call ended
  Bytes quarantined;  // charges that this very call moved to quarantine
};

// One chunk as a shell needs it to move fds about.
struct ChunkView {
  ChunkId chunk;
  Generation generation;
  LeaseId lease;
  std::uint32_t index = 0;  // in its lease
  DeviceUuid device;
  Bytes bytes;
  ChunkState state = ChunkState::kReserved;
  bool at_arena = false;
  bool at_keeper = false;
  bool at_worker = false;
};

// Rows of snapshots. All of one instant.
struct DeviceRow {
  DeviceUuid device;
  std::string name;
  DeviceState state = DeviceState::kStarting;
  Generation generation;
  Bytes granularity, capacity, headroom;
  Bytes charged, physical, mapped_read_only, mapped_read_write, unattributed, quarantined, draining, available;
  std::string detail;
};
struct TenantUse {
  DeviceUuid device;
  Bytes charged;
};
struct TenantRow {
  std::string name;
  std::optional<Bytes> limit;
  std::vector<TenantUse> uses;
};
struct SessionRow {
  SessionId session;
  SessionState state = SessionState::kLive;
  SessionIdentity identity;
  std::string tenant;
  absl::Time since;
  std::uint32_t holders = 0, leases = 0, attachments = 0;
  Bytes charged, mapped_read_only, mapped_read_write;
  std::string fence_detail;
  EvidenceSet evidence, waiting_for;
};
struct HolderRow {
  HolderId holder;
  SessionId session;
  std::string name;
  Role role = Role::kOther;
  std::string tenant;
  std::uint32_t leases = 0, attachments = 0;
  Bytes charged, mapped_read_only, mapped_read_write;
  std::int64_t pid = 0;
};
struct LeaseRow {
  LeaseId lease;
  LeaseKind kind = LeaseKind::kPrivate;
  SessionId session;
  HolderId holder;
  std::string holder_name;
  std::string tenant;
  std::string segment;
  Bytes asked, charged;
  struct Group {
    DeviceUuid device;
    ChunkState state = ChunkState::kReserved;
    std::uint32_t count = 0;
    Bytes bytes;
  };
  std::vector<Group> groups;
  absl::Time since;
};
struct SegmentRow {
  std::string name;  // with @version once sealed
  SegmentState state = SegmentState::kBuilding;
  LeaseId lease;
  Generation generation;
  std::string tenant;
  Bytes bytes;
  std::uint32_t chunks = 0, tensors = 0, readers = 0;
  absl::Time sealed_at = absl::InfinitePast();
};
struct QuarantineRow {
  QuarantineId record;
  Generation generation;
  QuarantineReason reason = QuarantineReason::kOperator;
  LeaseId lease;
  DeviceUuid device;
  Bytes bytes;
  std::uint32_t chunks = 0;
  SessionId session;
  std::int64_t pid = 0;
  std::string holder;
  Role role = Role::kOther;
  std::string tenant;
  std::string segment;
  std::string detail;
  absl::Time since;
  EvidenceSet evidence, waiting_for;
};
struct Counts {
  std::uint64_t sessions_live = 0, sessions_fenced = 0, leases = 0, segments = 0, quarantine_records = 0;
  Bytes quarantined;
};

struct Attached {
  AttachmentId attachment;
  SegmentRow segment;
  std::vector<ChunkView> chunks;
  // Owned by the books; valid until the next mutating call.
  const Manifest* manifest = nullptr;
};

class Books {
 public:
  // Ids and generations are drawn from a counter that starts at `first_id` (> 0). The caller picks it above every id of
  // any earlier daemon life.
  Books(const Limits& limits, std::uint64_t first_id);
  ~Books();
  Books(const Books&) = delete;
  Books& operator=(const Books&) = delete;

  const Limits& limits() const;

  // --- devices and tenants -------------------------------------------------------------------------------------
  // Refused: a device that is there already, granularity 0, headroom above capacity.
  absl::Status AddAuthority(const AuthoritySpec& spec);
  absl::Status SetDeviceState(const DeviceUuid& device, DeviceState state, std::string_view detail);
  // What the driver says is used on the device. Call only with a reading taken while nothing was being created or
  // closed there; it sets `unattributed`.
  absl::Status SetDriverUsed(const DeviceUuid& device, Bytes used);
  // The one tenant of this version. No limit: nullopt. A limit below what is charged is refused.
  absl::Status SetTenantLimit(std::optional<Bytes> per_device);
  static constexpr std::string_view kDefaultTenant = "default";

  // --- sessions and holders ------------------------------------------------------------------------------------
  absl::StatusOr<SessionId> OpenSession(const SessionIdentity& identity, absl::Time now);
  // OK when live; UNKNOWN_SESSION or SESSION_FENCED otherwise.
  absl::Status CheckLive(SessionId session) const;
  bool Exists(SessionId session) const;  // live or fenced
  absl::StatusOr<HolderId> RegisterHolder(SessionId session, std::string_view name, Role role);

  // Nothing new is granted from here on. Its undelivered and live private chunks, and those of segments that it is
  // building, become quarantined, with one record per lease and device. Fencing a fenced session adds `evidence` to
  // what is known and keeps the first reason. `quarantined` in the result: bytes that this call moved.
  absl::StatusOr<ReleaseWork> Fence(SessionId session, QuarantineReason reason, Evidence evidence,
                                    std::string_view detail, absl::Time now, Transitions* moves);
  // One fact about the session's process (kPidfdReadable, kWitnessClosed, kSocketClosed). When both kPidfdReadable and
  // kWitnessClosed are known the process's end is proven: attachments end, worker references are dropped, and every
  // charge for which nothing else is waited for ends. Fences the session first if it is live. The session is forgotten
  // once its last lease is gone; `ended` is true in the one call that completed the proof.
  struct EndResult {
    bool ended = false;
    ReleaseWork work;
  };
  absl::StatusOr<EndResult> Observe(SessionId session, Evidence fact, absl::Time now, Transitions* moves);

  // --- grants: plan, reserve, execute, commit --------------------------------------------------------------------
  // Charges all of `specs` or nothing. kSegment: `segment_name` is [namespace/…]name without version, and the segment
  // is then building. Checks, in this order: session, holder, name, sizes (zero, overflow, counts), devices, limits,
  // tenant's quota, capacity; the message has asked, used, limit and available in bytes.
  absl::StatusOr<Reservation> Reserve(SessionId session, HolderId holder, LeaseKind kind, std::string_view segment_name,
                                      const std::vector<ChunkSpec>& specs, absl::Time now, Transitions* moves);
  // The driver made it: reserved → undelivered; physical grows; the arena references it.
  absl::Status Created(ChunkId chunk, Transitions* moves);
  // The driver did not make it (its own answer, or the arena's end): reserved → released.
  absl::Status NotCreated(ChunkId chunk, Evidence evidence, Transitions* moves);
  // The keeper acknowledged its PUT: the keeper references it, also when the chunk is ending by now; the caller must
  // then have the keeper delete it, because the work of the call that ended it could not list that.
  absl::Status Kept(ChunkId chunk);
  // Its fd was handed to the owner's socket, in this same step: from here on the worker references it. The caller has
  // made sure in the step that it may be sent (Created just now, or CheckFetch); that it was sent although it may not
  // (SESSION_FENCED, ALREADY_RELEASED, UNKNOWN_LEASE) is a defect of the caller's, and changes nothing here.
  absl::Status Sent(ChunkId chunk);
  // The grant failed half-way or its session went: gives the lease's created chunks back. For chunks still `reserved`
  // the caller calls NotCreated, as their answers come, or Created and Rollback again. A chunk that was Sent may be
  // imported by now: it is quarantined (kRollbackFailed) until its process's proven end.
  absl::StatusOr<ReleaseWork> Rollback(LeaseId lease, Transitions* moves);

  // The owner imported the chunk (and mapped it with `access`): undelivered → live. Of an attachment's reader: only
  // `mapped` changes. A chunk that is not (or no longer) the session's is UNKNOWN_LEASE.
  absl::Status Acknowledge(SessionId session, ChunkId chunk, Access access, Transitions* moves);
  absl::Status SetMapped(SessionId session, LeaseId lease, std::uint32_t first, std::uint32_t count, Access access);

  // A living owner gives a private lease, or a segment that it is building, back. One outcome per chunk or one for all.
  // Any kStillMapped refuses the whole call.
  absl::StatusOr<ReleaseWork> Release(SessionId session, LeaseId lease, const std::vector<Outcome>& outcomes,
                                      absl::Time now, Transitions* moves);

  // A reference is proven gone. Of a chunk that is not ending: only the reference goes (an acknowledged private chunk's
  // arena fd, say); a sealed chunk whose keeper reference goes this way makes its segment kLost, and it is quarantined
  // (kKeptFdMissing) until its readers have ended.
  absl::Status DropArenaReference(ChunkId chunk, Evidence evidence, absl::Time now, Transitions* moves);
  absl::Status DropKeeperReference(ChunkId chunk, Evidence evidence, absl::Time now, Transitions* moves);
  // The arena or the keeper answered that it could not let go: quarantined (kReleaseFailed or kRollbackFailed).
  absl::Status ReleaseFailed(ChunkId chunk, QuarantineReason reason, std::string_view detail, absl::Time now,
                             Transitions* moves);
  // Chunks that the arena of `device` (or the keeper) still references, for when that process ends.
  std::vector<ChunkId> ReferencedByArena(const DeviceUuid& device) const;
  std::vector<ChunkId> ReferencedByKeeper() const;
  // Something the keeper holds that these books do not know: charged to its device as quarantined (kKeptFdUnknown).
  absl::StatusOr<ChunkId> AdoptUnknownKept(const DeviceUuid& device, Bytes bytes, std::string_view detail,
                                           absl::Time now, Transitions* moves);

  // --- segments --------------------------------------------------------------------------------------------------
  // The builder's read-write release and the publication in one step; all outcomes must be kUnmapped, every chunk kept.
  // The manifest must lie inside the segment and its tensors must not overlap. Returns the name with its version.
  // `close_at_arena` of the work: fds that the arena still has.
  struct Sealed {
    std::string name;
    ReleaseWork work;
  };
  absl::StatusOr<Sealed> Seal(SessionId session, LeaseId lease, const std::vector<Outcome>& outcomes, Manifest manifest,
                              absl::Time now, Transitions* moves);
  absl::StatusOr<Attached> Attach(SessionId session, HolderId holder, std::string_view name);
  // Any kUnknown outcome: the attachment goes on to count as a reader, until it is detached as unmapped or its
  // process's end is proven. The last reader of a lost segment ends the charges that waited for it: those are `*moves`.
  absl::Status Detach(SessionId session, AttachmentId attachment, const std::vector<Outcome>& outcomes,
                      Transitions* moves = nullptr);
  // An operator's removal of a sealed or lost segment. SEGMENT_IN_USE while anyone has it attached.
  absl::StatusOr<ReleaseWork> RemoveSegment(std::string_view name, absl::Time now, Transitions* moves);

  // --- questions ---------------------------------------------------------------------------------------------------
  // May this session have fds of chunks [first, first+count) of this lease (its own, or one it has attached)?
  absl::StatusOr<std::vector<ChunkView>> CheckFetch(SessionId session, LeaseId lease, std::uint32_t first,
                                                    std::uint32_t count) const;
  absl::StatusOr<std::vector<ChunkView>> LeaseChunks(LeaseId lease) const;
  absl::StatusOr<ChunkView> Chunk(ChunkId chunk) const;
  absl::StatusOr<SessionId> OwnerOf(LeaseId lease) const;  // UNKNOWN_LEASE when sealed or gone

  std::vector<DeviceRow> Devices() const;
  std::vector<TenantRow> Tenants() const;
  Counts Count() const;
  // Pages of rows with id > `after`, in rising order of id.
  std::vector<SessionRow> Sessions(SessionId after, std::uint32_t most) const;
  std::vector<HolderRow> Holders(HolderId after, std::uint32_t most) const;
  std::vector<LeaseRow> Leases(LeaseId after, std::uint32_t most) const;
  std::vector<QuarantineRow> Quarantine(QuarantineId after, std::uint32_t most) const;
  std::vector<SegmentRow> Segments(std::string_view prefix) const;
  std::optional<DeviceRow> Device(const DeviceUuid& device) const;

  // Re-derives every total from the records. The first difference, as a sentence; OK when there is none. Walks
  // everything: for tests, `memctl verify` and the simulation.
  absl::Status Verify() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// [namespace/…]name[@version]: parts of [A-Za-z0-9._-]+ that do not begin with '.', at most `name_bytes` in all;
// version a decimal number > 0 without leading zeros.
struct SegmentName {
  std::string path;
  std::optional<std::uint64_t> version;
};
absl::StatusOr<SegmentName> ParseSegmentName(std::string_view text, std::uint32_t name_bytes);

// Offsets and sizes inside `segment_bytes`, no overlap, names not empty and unique, dtype known, and where the dtype is
// whole bytes, size = dtype bytes × product of shape.
absl::Status CheckManifest(const Manifest& manifest, Bytes segment_bytes, std::uint32_t max_tensors);

}  // namespace gpumem::core

#endif  // GPUMEM_DAEMON_CORE_BOOKS_H_
