// tests/unit/core/property_test.cc: random histories against a world that the books do not see.
//
// The world knows which process really holds which chunk's memory: the arena, the keeper, and each worker process. It
// changes first, then the books are told, sometimes wrongly and with sizes near 2^64. Whatever the history: a charge
// ends only when the world holds the chunk nowhere, it begins and ends once, every book has the same sum, a refused
// call changes nothing, and when the world has let go of everything the books are empty.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/core/books_fixture.h"
// After GoogleTest, which it does not include itself.
#include "rapidcheck/gtest.h"

namespace gpumem::core {

struct Op {
  std::uint8_t kind = 0;
  std::uint32_t a = 0, b = 0, c = 0;
};
std::ostream& operator<<(std::ostream& os, const Op& op) {
  return os << "{" << int{op.kind} << ", " << op.a << ", " << op.b << ", " << op.c << "}";
}

}  // namespace gpumem::core

template <>
struct rc::Arbitrary<gpumem::core::Op> {
  static rc::Gen<gpumem::core::Op> arbitrary() {
    using gpumem::core::Op;
    return rc::gen::build<Op>(rc::gen::set(&Op::kind, rc::gen::inRange<std::uint8_t>(0, 64)),
                              rc::gen::set(&Op::a, rc::gen::inRange<std::uint32_t>(0, 64)),
                              rc::gen::set(&Op::b, rc::gen::inRange<std::uint32_t>(0, 64)),
                              rc::gen::set(&Op::c, rc::gen::inRange<std::uint32_t>(0, 64)));
  }
};

namespace gpumem::core {
namespace {

__extension__ typedef unsigned __int128 Wide;
constexpr std::uint64_t kMax = ~std::uint64_t{0};
constexpr std::uint64_t kHalf = std::uint64_t{1} << 63;

struct Holding {
  DeviceUuid device;
  std::uint64_t bytes = 0;
  SessionId owner;  // who is charged; none once sealed
  bool segment = false;
  bool charged = false;
  bool arena = false, keeper = false;
  std::set<SessionId> processes;

  bool held() const { return arena || keeper || !processes.empty(); }
};

Limits Small() {
  Limits limits;
  limits.sessions = 4;
  limits.leases_per_session = 6;
  limits.chunks_per_lease = 4;
  limits.attachments_per_session = 2;
  limits.segments = 3;
  return limits;
}

class World {
 public:
  World() : books_(Small(), 10) {
    Add(Uuid(1), 64 * kMiB, 4 * kMiB);
    Add(Uuid(2), kHalf + 6 * kMiB, 0);  // large enough that sums come near 2^64
  }

  void Do(const Op& op) {
    const std::string before = Picture(books_);
    moves_.clear();
    const absl::Status status = Perform(op);
    if (!status.ok()) {
      RC_ASSERT(moves_.empty());
      RC_ASSERT(Picture(books_) == before);
    }
    Check();
  }

  // Everybody dies and every errand is run: nothing may be left.
  void LetGoOfEverything() {
    for (const SessionRow& row : books_.Sessions(SessionId(), 100)) {
      // The second is not needed when the first completed the proof.
      Observe(row.session, Evidence::kPidfdReadable).IgnoreError();
      Observe(row.session, Evidence::kWitnessClosed).IgnoreError();
    }
    for (const SegmentRow& row : books_.Segments("")) {
      if (row.state != SegmentState::kBuilding) RC_ASSERT(books_.RemoveSegment(row.name, At(1), &moves_).ok());
    }
    Check();
    for (const ChunkId chunk : Charged()) {
      const auto view = books_.Chunk(chunk);
      if (view.ok() && view->state == ChunkState::kReserved) RC_ASSERT(Answer(chunk, false).ok());
    }
    for (const ChunkId chunk : Charged()) {
      const auto view = books_.Chunk(chunk);
      if (view.ok() && view->state == ChunkState::kUndelivered) {
        RC_ASSERT(books_.Rollback(view->lease, &moves_).ok());
      }
    }
    for (const ChunkId chunk : Charged()) RC_ASSERT(CloseAtArena(chunk).ok());
    for (const ChunkId chunk : Charged()) RC_ASSERT(DeleteAtKeeper(chunk, Evidence::kKeeperDeleted).ok());
    Check();
    for (const DeviceRow& row : books_.Devices()) RC_ASSERT(row.charged.value() == 0u && row.physical.value() == 0u);
    const Counts counts = books_.Count();
    RC_ASSERT(counts.leases == 0u && counts.quarantine_records == 0u);
    RC_ASSERT(counts.sessions_live + counts.sessions_fenced == 0u);
    RC_ASSERT(books_.Holders(HolderId(), 1).empty());
  }

 private:
  void Add(const DeviceUuid& uuid, std::uint64_t capacity, std::uint64_t headroom) {
    RC_ASSERT(books_.AddAuthority({uuid, "", Bytes(capacity), Bytes(headroom), Bytes(2 * kMiB)}).ok());
    RC_ASSERT(books_.SetDeviceState(uuid, DeviceState::kHealthy, "").ok());
  }

  // Something to act on: mostly what exists, sometimes what does not.
  template <typename IdType>
  static IdType Pick(const std::vector<IdType>& ids, std::uint32_t n) {
    return ids.empty() || n == 63 ? IdType(n * 7) : ids[n % ids.size()];
  }
  std::vector<SessionId> Sessions() const {
    std::vector<SessionId> ids;
    for (const SessionRow& row : books_.Sessions(SessionId(), 100)) ids.push_back(row.session);
    return ids;
  }
  std::vector<LeaseId> Leases() const {
    std::vector<LeaseId> ids;
    for (const LeaseRow& row : books_.Leases(LeaseId(), 100)) ids.push_back(row.lease);
    return ids;
  }
  std::vector<ChunkId> Charged() const {
    std::vector<ChunkId> ids;
    for (const auto& [id, chunk] : world_) {
      if (chunk.charged) ids.push_back(id);
    }
    return ids;
  }
  HolderId HolderOf(SessionId session) const {
    for (const HolderRow& row : books_.Holders(HolderId(), 1000)) {
      if (row.session == session) return row.holder;
    }
    return HolderId();
  }

  // Something that fits the call, or anything at all when there is none or once in a while.
  static std::string Name(const Op& op) { return std::string(1, static_cast<char>('a' + op.b % 4)); }
  SessionId LiveSession(const Op& op) const {
    std::vector<SessionId> live;
    for (const SessionId session : Sessions()) {
      if (books_.CheckLive(session).ok()) live.push_back(session);
    }
    return op.a < 60 && !live.empty() ? Pick(live, op.a) : Pick(Sessions(), op.a);
  }
  LeaseId BuildingLease(std::uint32_t n) const {
    std::vector<LeaseId> building;
    for (const LeaseRow& row : books_.Leases(LeaseId(), 100)) {
      if (row.session.valid() && !row.segment.empty()) building.push_back(row.lease);
    }
    return building.empty() ? Pick(Leases(), n) : Pick(building, n);
  }
  ChunkId ChunkIn(ChunkState state, std::uint32_t n) const {
    std::vector<ChunkId> in;
    for (const ChunkId id : Charged()) {
      if (books_.Chunk(id)->state == state) in.push_back(id);
    }
    return n < 60 && !in.empty() ? Pick(in, n) : Pick(Charged(), n);
  }

  absl::Status Perform(const Op& op) {
    const SessionId session = LiveSession(op);
    const LeaseId lease = Pick(Leases(), op.b);
    const ChunkId chunk = Pick(Charged(), op.b);
    switch (op.kind % 32) {
      case 0:
      case 1:
        return Open();
      case 2:
      case 3:
      case 4:
        return Reserve(session, op);
      case 5:
        return Answer(ChunkIn(ChunkState::kReserved, op.b), op.c % 8 != 0);
      case 6:
        return Keep(chunk);
      case 7:
        return Deliver(chunk);
      case 8:
        return Acknowledge(session, chunk, op);
      case 9:
      case 10:
        return books_.SetMapped(session, lease, op.c % 3, 1 + op.c % 4, static_cast<Access>(op.c % 3));
      case 11:
      case 12:
        return Release(session, lease, op);
      case 13:
        return op.c % 8 == 0 ? Fence(session) : absl::OkStatus();
      case 14:
        return op.c % 4 == 0 ? Observe(session, Evidence::kSocketClosed) : absl::OkStatus();
      case 15:
        return ObserveDying(op);
      case 16:
      case 17:
        return CloseAtArena(chunk);
      case 18:
        return DeleteWhenAsked(chunk, op.c % 8 == 0);
      case 19:
        return op.c % 2 == 0 ? ReleaseFailed(ChunkIn(ChunkState::kDraining, op.b)) : absl::OkStatus();
      case 20:
      case 21:
        return Seal(session, BuildingLease(op.b));
      case 22:
      case 23:
      case 24:
        return Attach(session, op);
      case 25:
        return Detach(session, op);
      case 26:
        return RemoveSegment(op);
      case 27:
        return op.c % 4 == 0 ? Adopt(op) : absl::OkStatus();
      case 28:
        return op.c % 4 == 0 ? books_.Rollback(BuildingLease(op.b), &moves_).status() : absl::OkStatus();
      default:
        return Complete(lease);
    }
  }

  // A grant that goes well, from wherever it is.
  absl::Status Complete(LeaseId lease) {
    const auto owner = books_.OwnerOf(lease);
    if (!owner.ok() || !books_.CheckLive(*owner).ok()) return absl::OkStatus();
    const std::vector<ChunkView> views = books_.LeaseChunks(lease).value();
    for (const ChunkView& view : views) {
      if (view.state == ChunkState::kReserved) RC_ASSERT(Answer(view.chunk, true).ok());
      RC_ASSERT(Keep(view.chunk).ok());
      const ChunkState state = StateOf(view.chunk);
      if (state != ChunkState::kUndelivered) continue;
      if (!Deliver(view.chunk).ok()) continue;  // rolled back
      if (!books_.Chunk(view.chunk)->at_worker) continue;
      RC_ASSERT(books_.Acknowledge(*owner, view.chunk, Access::kReadWrite, &moves_).ok());
    }
    return absl::OkStatus();
  }
  ChunkState StateOf(ChunkId id) const {
    const auto view = books_.Chunk(id);
    return view.ok() ? view->state : ChunkState::kReleased;
  }

  absl::Status Open() {
    const auto session = books_.OpenSession({1, 0, 0, "w"}, At(0));
    if (!session.ok()) return session.status();
    RC_ASSERT(used_.insert(session->value()).second);
    return books_.RegisterHolder(*session, "h", Role::kOther).status();
  }

  // The arithmetic of a grant, in 128 bits.
  bool ShouldFit(const std::vector<ChunkSpec>& specs) {
    Wide asked = 0, charged = 0, chunks = 0;
    std::map<DeviceUuid, Wide> by_device;
    for (const ChunkSpec& spec : specs) {
      if (spec.chunk_bytes.value() == 0 || spec.count == 0) return false;
      const Wide unit = 2 * kMiB;
      const Wide rounded = (Wide{spec.chunk_bytes.value()} + unit - 1) / unit * unit;
      if (rounded > kMax) return false;
      asked += Wide{spec.chunk_bytes.value()} * spec.count;
      charged += rounded * spec.count;
      chunks += spec.count;
      by_device[spec.device] += rounded * spec.count;
    }
    if (asked > kMax || charged > kMax || chunks > Small().chunks_per_lease) return false;
    for (const auto& [device, bytes] : by_device) {
      const auto row = books_.Device(device);
      if (Sum(device) + bytes > Wide{row->capacity.value() - row->headroom.value()}) return false;
    }
    return true;
  }

  absl::Status Reserve(SessionId session, const Op& op) {
    static constexpr std::uint64_t kSizes[] = {1, 2 * kMiB, 3 * kMiB, 8 * kMiB};
    static constexpr std::uint64_t kOddSizes[] = {0, kMax, kMax - kMiB, kHalf, kHalf / 2, kHalf - kMiB, 16 * kMiB};
    static constexpr std::uint32_t kOddCounts[] = {0, 4, 5, 0xffffffff, 3, 2};
    const auto size = [](std::uint32_t n) { return Bytes(n < 40 ? kSizes[n % 4] : kOddSizes[n % 7]); };
    const auto count = [](std::uint32_t n) { return n < 48 ? 1 + n % 2 : kOddCounts[n % 6]; };
    std::vector<ChunkSpec> specs = {{Uuid(static_cast<std::uint8_t>(1 + op.b % 2)), size(op.b), count(op.c)}};
    if (op.c % 4 == 3) specs.push_back({Uuid(static_cast<std::uint8_t>(2 - op.b % 2)), size(op.c), count(op.b)});
    const bool segment = op.c % 2 == 1;
    const std::string name = segment ? Name(op) : std::string();
    const bool fits = ShouldFit(specs);
    const std::uint32_t leases = CountLeases(session);
    const auto lease = books_.Reserve(session, HolderOf(session), segment ? LeaseKind::kSegment : LeaseKind::kPrivate,
                                      name, specs, At(0), &moves_);
    if (!lease.ok()) {
      const Reason reason = ReasonOf(lease.status());
      RC_ASSERT(reason != Reason::INTERNAL);
      const bool for_size = reason == Reason::SIZE_ZERO || reason == Reason::SIZE_OVERFLOW ||
                            reason == Reason::TOO_MANY_CHUNKS || reason == Reason::CAPACITY ||
                            reason == Reason::SETTLING;
      if (for_size) RC_ASSERT(!fits);
      return lease.status();
    }
    RC_ASSERT(fits && leases < Small().leases_per_session);
    RC_ASSERT(used_.insert(lease->lease.value()).second);
    for (const PlannedChunk& chunk : lease->chunks) {
      RC_ASSERT(used_.insert(chunk.chunk.value()).second);
      RC_ASSERT(used_.insert(chunk.generation.value()).second);
      world_[chunk.chunk] = {chunk.device, chunk.bytes.value(), session, segment, false, false, false, {}};
    }
    return absl::OkStatus();
  }

  std::uint32_t CountLeases(SessionId session) const {
    for (const SessionRow& row : books_.Sessions(SessionId(), 100)) {
      if (row.session == session) return row.leases;
    }
    return 0;
  }

  absl::Status Answer(ChunkId id, bool made) {
    const auto view = books_.Chunk(id);
    if (!view.ok() || view->state != ChunkState::kReserved) return books_.Created(id, &moves_);
    if (!made) return books_.NotCreated(id, Evidence::kDriverFailed, &moves_);
    world_[id].arena = true;
    return books_.Created(id, &moves_);
  }

  absl::Status Keep(ChunkId id) {
    const auto view = books_.Chunk(id);
    if (!view.ok() || !view->at_arena || view->at_keeper || !world_[id].segment) return absl::OkStatus();
    world_[id].keeper = true;
    return books_.Kept(id);
  }

  absl::Status Deliver(ChunkId id) {
    const auto view = books_.Chunk(id);
    if (!view.ok() || (!view->at_arena && !view->at_keeper)) return absl::OkStatus();  // there is no fd to send
    const absl::Status sent = books_.Sent(id);
    if (sent.ok() && world_[id].owner.valid()) world_[id].processes.insert(world_[id].owner);
    return sent;
  }

  absl::Status Acknowledge(SessionId session, ChunkId id, const Op& op) {
    const auto chunk = world_.find(id);
    const auto view = books_.Chunk(id);
    if (chunk == world_.end() || !view.ok() || !view->at_worker) return absl::OkStatus();
    return books_.Acknowledge(session, id, static_cast<Access>(op.c % 3), &moves_);
  }

  absl::Status Release(SessionId session, LeaseId lease, const Op& op) {
    const auto chunks = books_.LeaseChunks(lease);
    std::vector<Outcome> outcomes;
    for (std::size_t i = 0; chunks.ok() && i < chunks->size(); ++i) {
      const std::uint32_t n = (op.c + static_cast<std::uint32_t>(i)) % 8;
      outcomes.push_back(n == 7 ? Outcome::kStillMapped : n == 6 ? Outcome::kUnknown : Outcome::kUnmapped);
    }
    const auto owner = books_.OwnerOf(lease);
    if (op.a % 2 == 0 && owner.ok()) session = *owner;
    // The owner lets go before it says so. What it says is only believed if the whole call is.
    std::map<ChunkId, Holding> kept = world_;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      if (outcomes[i] == Outcome::kUnmapped) world_[(*chunks)[i].chunk].processes.erase(session);
    }
    const auto work = books_.Release(session, lease, outcomes, At(0), &moves_);
    if (!work.ok()) world_ = kept;
    return work.status();
  }

  absl::Status Fence(SessionId session) {
    return books_.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "", At(0), &moves_)
        .status();
  }

  absl::Status Observe(SessionId session, Evidence fact) {
    proofs_[session].Add(fact);
    const bool dead = proofs_[session].Has(Evidence::kPidfdReadable) && proofs_[session].Has(Evidence::kWitnessClosed);
    for (auto& [id, chunk] : world_) {
      if (dead) chunk.processes.erase(session);
    }
    return books_.Observe(session, fact, At(0), &moves_).status();
  }

  // Those who are dying die; now and then one who is not.
  absl::Status ObserveDying(const Op& op) {
    std::vector<SessionId> dying;
    for (const SessionId session : Sessions()) {
      if (!books_.CheckLive(session).ok()) dying.push_back(session);
    }
    const SessionId session = op.c < 56 ? Pick(dying, op.a) : Pick(Sessions(), op.a);
    return Observe(session, op.b % 2 == 0 ? Evidence::kPidfdReadable : Evidence::kWitnessClosed);
  }

  absl::Status CloseAtArena(ChunkId id) {
    const auto chunk = world_.find(id);
    if (chunk == world_.end() || !chunk->second.arena) return absl::OkStatus();
    chunk->second.arena = false;
    return books_.DropArenaReference(id, Evidence::kArenaClosed, At(0), &moves_);
  }

  absl::Status DeleteAtKeeper(ChunkId id, Evidence evidence) {
    const auto chunk = world_.find(id);
    if (chunk == world_.end() || !chunk->second.keeper) return absl::OkStatus();
    chunk->second.keeper = false;
    return books_.DropKeeperReference(id, evidence, At(0), &moves_);
  }

  // The keeper deletes what is ending; now and then it loses what is not.
  absl::Status DeleteWhenAsked(ChunkId id, bool loses) {
    const auto view = books_.Chunk(id);
    if (!view.ok()) return absl::OkStatus();
    const bool ending = view->state == ChunkState::kDraining || view->state == ChunkState::kQuarantined;
    if (!ending && !loses) return absl::OkStatus();
    return DeleteAtKeeper(id, ending ? Evidence::kKeeperDeleted : Evidence::kKeeperEnded);
  }

  absl::Status ReleaseFailed(ChunkId id) {
    if (!books_.Chunk(id).ok()) return absl::OkStatus();
    return books_.ReleaseFailed(id, QuarantineReason::kReleaseFailed, "EIO", At(0), &moves_);
  }

  absl::Status Seal(SessionId session, LeaseId lease) {
    const auto owner = books_.OwnerOf(lease);
    if (owner.ok()) session = *owner;
    const auto sealed = books_.Seal(session, lease, {Outcome::kUnmapped}, {}, At(0), &moves_);
    if (!sealed.ok()) return sealed.status();
    RC_ASSERT(sealed_names_.insert(sealed->name).second);  // a version is given once
    const std::vector<ChunkView> views = books_.LeaseChunks(lease).value();
    for (const ChunkView& view : views) {
      world_[view.chunk].processes.erase(session);
      world_[view.chunk].owner = SessionId();
    }
    return absl::OkStatus();
  }

  absl::Status Attach(SessionId session, const Op& op) {
    const auto attached = books_.Attach(session, HolderOf(session), std::string(1, static_cast<char>('a' + op.b % 4)));
    if (!attached.ok()) return attached.status();
    attachments_[attached->attachment] = {session, attached->chunks};
    for (const ChunkView& view : attached->chunks) world_[view.chunk].processes.insert(session);
    return absl::OkStatus();
  }

  absl::Status Detach(SessionId session, const Op& op) {
    std::vector<AttachmentId> ids;
    for (const auto& [id, attachment] : attachments_) ids.push_back(id);
    const AttachmentId id = Pick(ids, op.b);
    const Outcome outcome = op.c % 3 == 0 ? Outcome::kUnknown : Outcome::kUnmapped;
    const auto attachment = attachments_.find(id);
    if (attachment != attachments_.end() && op.a % 2 == 0) session = attachment->second.first;
    std::map<ChunkId, Holding> kept = world_;
    if (attachment != attachments_.end() && outcome == Outcome::kUnmapped) {
      for (const ChunkView& view : attachment->second.second) world_[view.chunk].processes.erase(session);
    }
    const absl::Status detached = books_.Detach(session, id, {outcome}, &moves_);
    if (!detached.ok()) {
      world_ = kept;
    } else if (outcome == Outcome::kUnmapped) {
      attachments_.erase(id);
    }
    return detached;
  }

  absl::Status RemoveSegment(const Op& op) { return books_.RemoveSegment(Name(op), At(0), &moves_).status(); }

  absl::Status Adopt(const Op& op) {
    static constexpr std::uint64_t kSizes[] = {2 * kMiB, 0, kMax, kHalf, 96 * kMiB};
    const Bytes bytes(kSizes[op.b % 5]);
    const auto chunk = books_.AdoptUnknownKept(Uuid(1 + op.a % 2), bytes, "", At(0), &moves_);
    if (!chunk.ok()) {
      RC_ASSERT(ReasonOf(chunk.status()) != Reason::INTERNAL);
      return chunk.status();
    }
    RC_ASSERT(used_.insert(chunk->value()).second);
    world_[*chunk] = {Uuid(1 + op.a % 2), bytes.value(), SessionId(), true, false, false, true, {}};
    return absl::OkStatus();
  }

  Wide Sum(const DeviceUuid& device) const {
    Wide sum = 0;
    for (const auto& [id, chunk] : world_) {
      if (chunk.charged && chunk.device == device) sum += chunk.bytes;
    }
    return sum;
  }

  // The moves of the last call, then every sum.
  void Check() {
    for (const Transition& move : moves_) {
      Holding& chunk = world_.at(move.chunk);
      RC_ASSERT(move.from != move.to);
      RC_ASSERT(move.bytes.value() == chunk.bytes && move.device == chunk.device);
      RC_ASSERT(chunk.charged == (move.from != ChunkState::kReleased));
      if (move.to == ChunkState::kReleased) {
        RC_ASSERT(!chunk.held());
        RC_ASSERT(move.evidence != Evidence{});
      }
      chunk.charged = move.to != ChunkState::kReleased;
    }
    moves_.clear();
    std::map<DeviceUuid, Wide> charged, held;
    std::map<SessionId, Wide> of_session;
    for (const auto& [id, chunk] : world_) {
      RC_ASSERT(chunk.charged || !chunk.held());
      RC_ASSERT(books_.Chunk(id).ok() == chunk.charged);
      if (!chunk.charged) continue;
      charged[chunk.device] += chunk.bytes;
      if (chunk.held()) held[chunk.device] += chunk.bytes;
      if (chunk.owner.valid()) of_session[chunk.owner] += chunk.bytes;
    }
    const std::vector<TenantUse> uses = books_.Tenants()[0].uses;
    std::size_t i = 0;
    for (const DeviceRow& row : books_.Devices()) {
      RC_ASSERT(Wide{row.charged.value()} == charged[row.device]);
      RC_ASSERT(uses[i++].charged == row.charged);
      RC_ASSERT(Wide{row.physical.value()} >= held[row.device]);
      RC_ASSERT(row.physical <= row.charged && row.quarantined <= row.charged && row.draining <= row.charged);
      RC_ASSERT(row.available <= row.capacity);
    }
    Wide in_leases = 0, in_devices = 0;
    for (const LeaseRow& row : books_.Leases(LeaseId(), 1000)) in_leases += row.charged.value();
    for (const auto& [device, bytes] : charged) in_devices += bytes;
    RC_ASSERT(in_leases == in_devices);
    for (const SessionRow& row : books_.Sessions(SessionId(), 100)) {
      RC_ASSERT(Wide{row.charged.value()} == of_session[row.session]);
      of_session.erase(row.session);
    }
    for (const auto& [session, bytes] : of_session) RC_ASSERT(bytes == 0);
    const absl::Status sound = books_.Verify();
    if (!sound.ok()) RC_FAIL(std::string(sound.message()));
  }

  Books books_;
  Transitions moves_;
  std::map<ChunkId, Holding> world_;
  std::map<AttachmentId, std::pair<SessionId, std::vector<ChunkView>>> attachments_;
  std::map<SessionId, EvidenceSet> proofs_;
  std::set<std::uint64_t> used_;  // every id and generation so far
  std::set<std::string> sealed_names_;
};

RC_GTEST_PROP(BooksProperty, AnyHistoryKeepsTheBooksTrueToTheWorld, ()) {
  const std::vector<Op> ops = *rc::gen::scale(6.0, rc::gen::arbitrary<std::vector<Op>>());
  World world;
  for (const Op& op : ops) world.Do(op);
  world.LetGoOfEverything();
}

}  // namespace
}  // namespace gpumem::core
