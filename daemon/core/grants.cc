// daemon/core/grants.cc: a lease from its reservation to its owner's release.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/settlement.h"
#include "daemon/core/state.h"

namespace gpumem::core {

using internal::Attachment;
using internal::CheckNoneMapped;
using internal::CheckOutcomes;
using internal::CheckRange;
using internal::ChunkRef;
using internal::Defect;
using internal::Device;
using internal::Holder;
using internal::kArenaRef;
using internal::kKeeperRef;
using internal::kWorkerRef;
using internal::Lease;
using internal::OutcomeOf;
using internal::Segment;
using internal::Session;
using internal::Settlement;
using internal::State;

namespace {

// What a request comes to, once every size in it is known to be sound.
struct Plan {
  struct Part {
    std::uint16_t device;
    std::uint64_t chunk_bytes;  // rounded up
    std::uint32_t count;
  };
  absl::InlinedVector<Part, 2> parts;
  absl::InlinedVector<std::uint64_t, 4> by_device;  // charged, by index of the device
  Bytes asked;
  Bytes charged;
  std::uint32_t chunks = 0;
};

absl::Status CheckNotZero(const std::vector<ChunkSpec>& specs, const Limits& limits) {
  if (specs.empty()) return Error(Reason::SIZE_ZERO, "no chunks were asked for; give at least one spec");
  if (specs.size() > limits.specs_per_request) {
    return Error(Reason::INVALID_ARGUMENT,
                 absl::StrCat(specs.size(), " specs in one request, at most ", limits.specs_per_request,
                              " are allowed; use counts, or ask for several leases"),
                 {{"asked", absl::StrCat(specs.size())}, {"limit", absl::StrCat(limits.specs_per_request)}});
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].chunk_bytes.value() != 0 && specs[i].count != 0) continue;
    return Error(Reason::SIZE_ZERO, absl::StrCat("spec ", i, " asks for ", specs[i].count, " chunks of ",
                                                 specs[i].chunk_bytes.value(), " bytes; ask for at least one byte"));
  }
  return absl::OkStatus();
}

// Adds bytes × count to `*sum`; false when that does not fit 64 bits.
bool AddProduct(Bytes bytes, std::uint32_t count, Bytes* sum) {
  const std::optional<Bytes> product = CheckedMul(bytes, count);
  const std::optional<Bytes> total = product ? CheckedAdd(*sum, *product) : std::nullopt;
  if (total) *sum = *total;
  return total.has_value();
}

absl::Status AddSizes(const State& state, const std::vector<ChunkSpec>& specs, Plan* plan) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ChunkSpec& spec = specs[i];
    const Device* device = state.FindDevice(spec.device);
    // A device that is not known has no granularity; it is refused after the sizes.
    const std::optional<Bytes> rounded =
        device == nullptr ? spec.chunk_bytes : CheckedRoundUp(spec.chunk_bytes, device->spec.granularity);
    if (!rounded || !AddProduct(spec.chunk_bytes, spec.count, &plan->asked) ||
        !AddProduct(*rounded, spec.count, &plan->charged)) {
      return Error(
          Reason::SIZE_OVERFLOW,
          absl::StrCat("spec ", i, " asks for ", spec.count, " chunks of ", spec.chunk_bytes.value(),
                       " bytes: rounded up",
                       device == nullptr ? "" : absl::StrCat(" to ", FormatBytesExact(device->spec.granularity)),
                       " and added up, that overflows 64 bits; ask for less"),
          {{"asked_bytes", absl::StrCat(spec.chunk_bytes.value())}});
    }
    const std::uint16_t index = device == nullptr ? std::uint16_t{0} : state.device_index.at(spec.device);
    plan->parts.push_back({index, rounded->value(), spec.count});
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const std::vector<ChunkSpec>& specs, const Limits& limits, Plan* plan) {
  std::uint64_t chunks = 0;  // at most specs_per_request × 2^32: fits
  for (const ChunkSpec& spec : specs) chunks += spec.count;
  if (chunks > limits.chunks_per_lease) {
    return Error(Reason::TOO_MANY_CHUNKS,
                 absl::StrCat(chunks, " chunks in one lease, at most ", limits.chunks_per_lease,
                              " are allowed; use larger chunks, or ask for several leases"),
                 {{"asked", absl::StrCat(chunks)}, {"limit", absl::StrCat(limits.chunks_per_lease)}});
  }
  plan->chunks = static_cast<std::uint32_t>(chunks);
  return absl::OkStatus();
}

absl::Status UnknownDevice(const State& state, const DeviceUuid& device) {
  std::vector<std::string> known;
  for (const auto& managed : state.devices) known.push_back(managed->spec.device.ToString());
  return Error(Reason::UNKNOWN_DEVICE,
               absl::StrCat("device ", device.ToString(), " is not managed here; ",
                            known.empty() ? "none is" : absl::StrCat("these are: ", absl::StrJoin(known, ", "))),
               {{"device_uuid", device.ToString()}});
}

absl::Status NotUsable(const Device& device) {
  const ErrorDetails details = {{"device_uuid", device.spec.device.ToString()}};
  const std::string detail = device.detail.empty() ? "" : absl::StrCat(": ", device.detail);
  if (device.state == DeviceState::kLost) {
    return Error(Reason::DEVICE_LOST,
                 absl::StrCat(Name(device), " is lost and its memory is gone", detail, "; use another device"),
                 details);
  }
  return Error(Reason::DEVICE_UNAVAILABLE,
               absl::StrCat(Name(device), " is ", ToString(device.state), " now", detail, "; try again later"),
               details);
}

absl::Status CheckDevices(const State& state, const std::vector<ChunkSpec>& specs, Plan* plan) {
  for (const ChunkSpec& spec : specs) {
    if (state.FindDevice(spec.device) == nullptr) return UnknownDevice(state, spec.device);
  }
  plan->by_device.assign(state.devices.size(), 0);
  for (const Plan::Part& part : plan->parts) {
    const Device& device = *state.devices[part.device];
    if (device.state != DeviceState::kHealthy) return NotUsable(device);
    plan->by_device[part.device] += part.chunk_bytes * part.count;  // parts of plan->charged, which fits
  }
  return absl::OkStatus();
}

// Whether `charged` + `asked` stays within `limit`.
bool FitsIn(std::uint64_t limit, std::uint64_t charged, std::uint64_t asked) {
  return charged <= limit && asked <= limit - charged;
}

// What may be charged on the device at most, as things stand.
std::uint64_t Grantable(const Device& device) {
  const Bytes kept_free = std::max(device.spec.headroom, device.unattributed);
  return CheckedSub(device.spec.capacity, kept_free).value_or(Bytes()).value();
}

std::uint64_t Settling(const Device& device) {
  return device.account.total.quarantined + device.account.total.draining;
}

struct Refusal {
  const Device* device;
  Reason reason;
  bool of_quota;  // which of the two limits it is about
  std::uint64_t asked, used, limit;
};

absl::Status Refuse(const Refusal& refusal) {
  const Device& device = *refusal.device;
  const std::uint64_t left = refusal.used < refusal.limit ? refusal.limit - refusal.used : 0;
  const std::uint64_t settling = Settling(device);
  std::string message = absl::StrCat(Name(device), ": asked ", FormatBytesExact(Bytes(refusal.asked)), ", but only ",
                                     FormatBytesExact(Bytes(left)), " of ", FormatBytesExact(Bytes(refusal.limit)),
                                     " are left ", refusal.of_quota ? "to tenant default" : "on the device", "; ",
                                     FormatBytesExact(Bytes(refusal.used)), " are charged, ",
                                     FormatBytesExact(Bytes(settling)), " of that quarantined or being given back");
  if (!refusal.of_quota) {
    absl::StrAppend(&message, "; capacity ", FormatBytesExact(device.spec.capacity), ", headroom ",
                    FormatBytesExact(device.spec.headroom), ", used by what is not in the books ",
                    FormatBytesExact(device.unattributed));
  }
  absl::StrAppend(&message, refusal.reason == Reason::SETTLING
                                ? "; it will fit when that has settled: try again later (memctl quarantine shows it)"
                                : "; release leases or ask for less");
  return Error(refusal.reason, message,
               {{"device_uuid", device.spec.device.ToString()},
                {"asked_bytes", absl::StrCat(refusal.asked)},
                {"used_bytes", absl::StrCat(refusal.used)},
                {"limit_bytes", absl::StrCat(refusal.limit)},
                {"available_bytes", absl::StrCat(left)},
                {"quarantined_bytes", absl::StrCat(settling)}});
}

// Refuses what would not fit even with everything settled first: waiting is of use only when it helps on every device.
absl::Status CheckRoom(const State& state, const Plan& plan) {
  std::optional<Refusal> wait;
  for (const bool of_quota : {true, false}) {
    for (std::size_t i = 0; i < plan.by_device.size(); ++i) {
      const Device& device = *state.devices[i];
      const std::uint64_t asked = plan.by_device[i];
      if (asked == 0 || (of_quota && !state.tenant_limit)) continue;
      const std::uint64_t limit = of_quota ? state.tenant_limit->value() : Grantable(device);
      const std::uint64_t used = of_quota ? device.tenant.total.charged : device.account.total.charged;
      if (FitsIn(limit, used, asked)) continue;
      if (!FitsIn(limit, used - Settling(device), asked)) {
        return Refuse({&device, of_quota ? Reason::QUOTA : Reason::CAPACITY, of_quota, asked, used, limit});
      }
      if (!wait) wait = Refusal{&device, Reason::SETTLING, of_quota, asked, used, limit};
    }
  }
  return wait ? Refuse(*wait) : absl::OkStatus();
}

// A name is free when nothing has it, or when what has it lost its memory to the last byte.
bool IsFree(const State& state, const std::string& path) {
  const auto it = state.segments.find(path);
  return it == state.segments.end() || it->second->lease == nullptr;
}

absl::StatusOr<std::string> CheckSegmentName(const State& state, LeaseKind kind, std::string_view text) {
  if (kind == LeaseKind::kPrivate) {
    if (text.empty()) return std::string();
    return Error(Reason::NAME_INVALID, absl::StrCat("a private lease has no name, but ", Quoted(text), " was given"));
  }
  if (kind != LeaseKind::kSegment) {
    return Error(Reason::INVALID_ARGUMENT, absl::StrCat("lease kind ", static_cast<int>(kind), " does not exist"));
  }
  absl::StatusOr<SegmentName> name = ParseSegmentName(text, state.limits.name_bytes);
  if (!name.ok()) return name.status();
  if (name->version) {
    return Error(Reason::NAME_INVALID,
                 absl::StrCat("segment name ", Quoted(text), " has a version; sealing gives it one: leave it out"));
  }
  if (!IsFree(state, name->path)) {
    const Segment& segment = *state.segments.at(name->path);
    const char* const next =
        segment.state == SegmentState::kSealed     ? "attach it, choose another name, or have it removed"
        : segment.state == SegmentState::kBuilding ? "wait until it is sealed and attach it, or choose another name"
                                                   : "choose another name, or have it removed";
    return Error(Reason::SEGMENT_EXISTS,
                 absl::StrCat("segment ", segment.FullName(), " is ", ToString(segment.state), "; ", next),
                 {{"segment", segment.FullName()}});
  }
  return std::move(name->path);
}

absl::Status CheckLimits(const State& state, const Session& session, const std::string& path) {
  if (session.leases.size() >= state.limits.leases_per_session) {
    return Error(Reason::LIMIT,
                 absl::StrCat(Name(session), " has ", session.leases.size(), " leases, at most ",
                              state.limits.leases_per_session, " are allowed; release some first"),
                 {{"limit", absl::StrCat(state.limits.leases_per_session)}});
  }
  if (!path.empty() && !state.segments.contains(path) && state.segments.size() >= state.limits.segments) {
    return Error(Reason::LIMIT,
                 absl::StrCat("there are ", state.segments.size(), " segments, at most ", state.limits.segments,
                              " are allowed; have some removed first"),
                 {{"limit", absl::StrCat(state.limits.segments)}});
  }
  return absl::OkStatus();
}

// All of Reserve's refusals, in the order that books.h gives.
absl::StatusOr<Plan> CheckRequest(const State& state, const Session& session, const std::string& path,
                                  const std::vector<ChunkSpec>& specs) {
  Plan plan;
  absl::Status status = CheckNotZero(specs, state.limits);
  if (status.ok()) status = AddSizes(state, specs, &plan);
  if (status.ok()) status = CheckCount(specs, state.limits, &plan);
  if (status.ok()) status = CheckDevices(state, specs, &plan);
  if (status.ok()) status = CheckLimits(state, session, path);
  if (status.ok()) status = CheckRoom(state, plan);
  if (!status.ok()) return status;
  return plan;
}

// A lease with its ids drawn and nothing charged yet.
std::unique_ptr<Lease> NewLease(State* state, LeaseKind kind, const Plan& plan, absl::Time now) {
  auto lease = std::make_unique<Lease>();
  lease->id = state->Draw<LeaseId>();
  lease->kind = kind;
  lease->asked = plan.asked;
  lease->since = now;
  state->next_id += plan.chunks;
  lease->chunks.reserve(plan.chunks);
  for (const Plan::Part& part : plan.parts) {
    for (std::uint32_t i = 0; i < part.count; ++i) {
      internal::Chunk chunk;
      chunk.generation = state->next_id++;
      chunk.bytes = part.chunk_bytes;
      chunk.device = part.device;
      lease->chunks.push_back(chunk);
    }
  }
  return lease;
}

void AddSegment(State* state, Lease* lease, const std::string& path, Bytes bytes) {
  if (const auto it = state->segments.find(path); it != state->segments.end()) {
    const std::shared_ptr<Segment> lost = it->second;  // without memory; see IsFree
    state->Unlist(lost);
  }
  auto segment = std::make_shared<Segment>();
  segment->path = path;
  segment->version = state->NextVersion(path);
  segment->lease = lease;
  segment->lease_id = lease->id;
  segment->generation = state->Draw<Generation>();
  segment->bytes = bytes;
  segment->chunks = lease->count();
  lease->segment = segment;
  state->segments.emplace(path, std::move(segment));
}

Reservation Describe(const State& state, const Lease& lease, const Plan& plan) {
  Reservation reservation;
  reservation.lease = lease.id;
  reservation.asked = plan.asked;
  reservation.charged = plan.charged;
  reservation.chunks.reserve(lease.count());
  for (std::uint32_t i = 0; i < lease.count(); ++i) {
    const internal::Chunk& chunk = lease.chunks[i];
    reservation.chunks.push_back({lease.chunk_id(i), Generation(chunk.generation),
                                  state.devices[chunk.device]->spec.device, Bytes(chunk.bytes)});
  }
  return reservation;
}

absl::Status NoSuchChunk(ChunkId id) {
  return Error(Reason::UNKNOWN_LEASE, absl::StrCat("chunk ", id.value(), " is not known, or it was released"),
               {{"chunk_id", absl::StrCat(id.value())}});
}

absl::Status AlreadyReleased(const Lease& lease) {
  return Error(Reason::ALREADY_RELEASED,
               absl::StrCat("lease ", lease.id.value(), " was given back before; what is left of it is settling"),
               internal::LeaseDetails(lease.id));
}

absl::Status NotGrantedYet(const Lease& lease) {
  return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", lease.id.value(), " is not granted yet"),
               internal::LeaseDetails(lease.id));
}

// What a chunk becomes when its living owner gives it back with `outcome`.
internal::Chunk GivenBack(internal::Chunk chunk, Outcome outcome) {
  const bool may_be_mapped = outcome == Outcome::kUnknown && (chunk.refs & kWorkerRef) != 0;
  if (may_be_mapped) {
    chunk.Quarantine(QuarantineReason::kOutcomeUnknown);
  } else {
    chunk.Drop(kWorkerRef, Evidence::kOwnerUnmapped);
  }
  chunk.End();
  return chunk;
}

absl::Status SetReaderMapped(State* state, Attachment* reader, std::uint32_t first, std::uint32_t count,
                             Access access) {
  if (access == Access::kReadWrite) {
    return Error(Reason::INVALID_ARGUMENT,
                 absl::StrCat("segment ", reader->segment->FullName(), " is sealed: readers map it read-only"));
  }
  Settlement settlement(state);
  for (std::uint32_t i = first; i < first + count; ++i) {
    settlement.MapReader(reader, i, access == Access::kReadOnly);
  }
  return settlement.Commit(nullptr, nullptr);
}

absl::Status CheckAccess(Access access) {
  if (access <= Access::kReadWrite) return absl::OkStatus();
  return Error(Reason::INVALID_ARGUMENT, absl::StrCat("access ", static_cast<int>(access), " does not exist"));
}

}  // namespace

absl::StatusOr<Reservation> Books::Reserve(SessionId session_id, HolderId holder_id, LeaseKind kind,
                                           std::string_view segment_name, const std::vector<ChunkSpec>& specs,
                                           absl::Time now, Transitions* moves) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  const absl::StatusOr<Holder*> holder = impl_->HolderOf(**session, holder_id);
  if (!holder.ok()) return holder.status();
  const absl::StatusOr<std::string> path = CheckSegmentName(*impl_, kind, segment_name);
  if (!path.ok()) return path.status();
  const absl::StatusOr<Plan> plan = CheckRequest(*impl_, **session, *path, specs);
  if (!plan.ok()) return plan.status();

  std::unique_ptr<Lease> owned = NewLease(impl_.get(), kind, *plan, now);
  Lease* const lease = owned.get();
  lease->session = *session;
  lease->holder = *holder;
  Settlement settlement(impl_.get());
  for (std::uint32_t i = 0; i < lease->count(); ++i) {
    internal::Chunk next = lease->chunks[i];
    next.state = ChunkState::kReserved;
    settlement.Set(lease, i, next, Evidence{});
  }
  if (absl::Status status = settlement.Commit(moves, nullptr); !status.ok()) return status;
  impl_->leases.emplace_hint(impl_->leases.end(), lease->id, std::move(owned));
  (*session)->leases.insert(lease->id);
  ++(*holder)->leases;
  if (kind == LeaseKind::kSegment) AddSegment(impl_.get(), lease, *path, plan->charged);
  return Describe(*impl_, *lease, *plan);
}

absl::Status Books::Created(ChunkId id, Transitions* moves) {
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk || (*chunk).state != ChunkState::kReserved) {
    return Defect(absl::StrCat("chunk ", id.value(), " was created, but it is not reserved"));
  }
  internal::Chunk next = *chunk;
  next.state = ChunkState::kUndelivered;
  next.Reference(kArenaRef);
  Settlement settlement(impl_.get());
  settlement.Set(chunk.lease, chunk.index, next, Evidence::kDriverCreated);
  return settlement.Commit(moves, nullptr);
}

absl::Status Books::NotCreated(ChunkId id, Evidence evidence, Transitions* moves) {
  if (evidence != Evidence::kDriverFailed && evidence != Evidence::kArenaEnded) {
    return Defect(absl::StrCat(ToString(evidence), " does not prove that a chunk was not created"));
  }
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk || (*chunk).state != ChunkState::kReserved) {
    return Defect(absl::StrCat("chunk ", id.value(), " was not created, but it is not reserved"));
  }
  internal::Chunk next = *chunk;
  next.End();  // nothing references it
  Settlement settlement(impl_.get());
  settlement.Set(chunk.lease, chunk.index, next, evidence);
  return settlement.Commit(moves, nullptr);
}

// Also of a chunk that is ending: the keeper has it, and must delete it before the charge ends.
absl::Status Books::Kept(ChunkId id) {
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk || (*chunk).state == ChunkState::kReserved || chunk.lease->kind != LeaseKind::kSegment) {
    return Defect(absl::StrCat("chunk ", id.value(), " was kept, but it is not a created chunk of a segment"));
  }
  if ((*chunk).refs & kKeeperRef) return Defect(absl::StrCat("chunk ", id.value(), " was kept twice"));
  internal::Chunk next = *chunk;
  next.Reference(kKeeperRef);
  Settlement settlement(impl_.get());
  settlement.Set(chunk.lease, chunk.index, next, Evidence::kKeeperStored);
  return settlement.Commit(nullptr, nullptr);
}

absl::Status Books::Sent(ChunkId id) {
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk) return NoSuchChunk(id);
  const Session* owner = chunk.lease->session;
  if (owner != nullptr && owner->state != SessionState::kLive) return impl_->LiveSession(owner->id).status();
  if ((*chunk).state == ChunkState::kReserved) {
    return Defect(absl::StrCat("chunk ", id.value(), " is to be sent, but it is not created"));
  }
  if (!(*chunk).in_use() || chunk.lease->rolled_back) return AlreadyReleased(*chunk.lease);
  if (owner == nullptr) return absl::OkStatus();  // a reader's reference is its attachment
  internal::Chunk next = *chunk;
  next.Reference(kWorkerRef);
  Settlement settlement(impl_.get());
  settlement.Set(chunk.lease, chunk.index, next, Evidence{});
  return settlement.Commit(nullptr, nullptr);
}

absl::StatusOr<ReleaseWork> Books::Rollback(LeaseId id, Transitions* moves) {
  Lease* lease = impl_->FindLease(id);
  if (lease == nullptr) return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", id.value(), " is not known"));
  if (lease->session == nullptr) {
    return Defect(absl::StrCat("lease ", id.value(), " is to be rolled back, but no session owns it"));
  }
  Settlement settlement(impl_.get());
  settlement.ForRecords(lease->since, "the grant failed after the chunk had been sent to the worker");
  for (std::uint32_t i = 0; i < lease->count(); ++i) {
    internal::Chunk next = lease->chunks[i];
    if (next.state == ChunkState::kReserved || next.state == ChunkState::kReleased || next.ending) continue;
    if (next.refs & kWorkerRef) next.Quarantine(QuarantineReason::kRollbackFailed);
    next.End();
    settlement.Set(lease, i, next, Evidence{});
  }
  const std::shared_ptr<Segment> segment = lease->segment;
  ReleaseWork work;
  if (absl::Status status = settlement.Commit(moves, &work); !status.ok()) return status;
  if (segment != nullptr) impl_->Unlist(segment);
  if (lease = impl_->FindLease(id); lease != nullptr) lease->rolled_back = true;  // what is left of it
  return work;
}

absl::Status Books::Acknowledge(SessionId session_id, ChunkId id, Access access, Transitions* moves) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (absl::Status status = CheckAccess(access); !status.ok()) return status;
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk) return NoSuchChunk(id);
  if (Attachment* reader = impl_->ReaderOf(*chunk.lease, session_id); reader != nullptr) {
    return SetReaderMapped(impl_.get(), reader, chunk.index, 1, access);
  }
  if (chunk.lease->session != *session || !(*chunk).in_use()) return NoSuchChunk(id);
  if (((*chunk).refs & kWorkerRef) == 0) {
    return Defect(absl::StrCat("chunk ", id.value(), " was acknowledged, but it was never sent"));
  }
  internal::Chunk next = *chunk;
  next.state = ChunkState::kLive;
  next.mapped = access;
  Settlement settlement(impl_.get());
  settlement.Set(chunk.lease, chunk.index, next, Evidence::kImportAcknowledged);
  return settlement.Commit(moves, nullptr);
}

absl::Status Books::SetMapped(SessionId session_id, LeaseId id, std::uint32_t first, std::uint32_t count,
                              Access access) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (absl::Status status = CheckAccess(access); !status.ok()) return status;
  if (Lease* read = impl_->FindLease(id); read != nullptr) {
    if (Attachment* reader = impl_->ReaderOf(*read, session_id); reader != nullptr) {
      if (absl::Status status = CheckRange(first, count, read->count()); !status.ok()) return status;
      return SetReaderMapped(impl_.get(), reader, first, count, access);
    }
  }
  const absl::StatusOr<Lease*> owned = impl_->OwnedLease(**session, id);
  if (!owned.ok()) return owned.status();
  Lease* const lease = *owned;
  if (absl::Status status = CheckRange(first, count, lease->count()); !status.ok()) return status;
  Settlement settlement(impl_.get());
  for (std::uint32_t i = first; i < first + count; ++i) {
    internal::Chunk next = lease->chunks[i];
    if (next.ending) return AlreadyReleased(*lease);
    if (next.state != ChunkState::kLive) {
      return Error(Reason::INVALID_ARGUMENT,
                   absl::StrCat("lease ", id.value(), ": chunk ", i, " is ", ToString(next.state),
                                "; acknowledge its import before its mapping"));
    }
    next.mapped = access;
    settlement.Set(lease, i, next, Evidence{});
  }
  return settlement.Commit(nullptr, nullptr);
}

absl::StatusOr<ReleaseWork> Books::Release(SessionId session_id, LeaseId id, const std::vector<Outcome>& outcomes,
                                           absl::Time now, Transitions* moves) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  const absl::StatusOr<Lease*> owned = impl_->OwnedLease(**session, id);
  if (!owned.ok()) return owned.status();
  Lease* const lease = *owned;
  if (lease->rolled_back) return AlreadyReleased(*lease);
  for (const internal::Chunk& chunk : lease->chunks) {
    if (chunk.ending) return AlreadyReleased(*lease);
    if (chunk.state == ChunkState::kReserved) return NotGrantedYet(*lease);
  }
  if (absl::Status status = CheckOutcomes(outcomes, lease->count()); !status.ok()) return status;
  const auto name = [id] { return absl::StrCat("lease ", id.value()); };
  if (absl::Status status = CheckNoneMapped(outcomes, name); !status.ok()) return status;

  Settlement settlement(impl_.get());
  settlement.ForRecords(now, "its owner does not know whether the chunk is still mapped");
  for (std::uint32_t i = 0; i < lease->count(); ++i) {
    const Outcome outcome = OutcomeOf(outcomes, i);
    settlement.Set(lease, i, GivenBack(lease->chunks[i], outcome),
                   outcome == Outcome::kUnmapped ? Evidence::kOwnerUnmapped : Evidence::kOwnerUnknown);
  }
  const std::shared_ptr<Segment> segment = lease->segment;
  ReleaseWork work;
  if (absl::Status status = settlement.Commit(moves, &work); !status.ok()) return status;
  if (segment != nullptr) impl_->Unlist(segment);
  return work;
}

}  // namespace gpumem::core
