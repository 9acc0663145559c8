// daemon/core/references.cc: what the arena and the keeper answer, and what ends with their processes.
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/settlement.h"
#include "daemon/core/state.h"

namespace gpumem::core {

using internal::ChunkRef;
using internal::Defect;
using internal::kArenaRef;
using internal::kKeeperRef;
using internal::Lease;
using internal::Segment;
using internal::Settlement;

absl::Status Books::DropArenaReference(ChunkId id, Evidence evidence, absl::Time now, Transitions* moves) {
  if (evidence != Evidence::kArenaClosed && evidence != Evidence::kArenaEnded) {
    return Defect(absl::StrCat(ToString(evidence), " does not prove that an arena let go"));
  }
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk || ((*chunk).refs & kArenaRef) == 0) {
    return Defect(absl::StrCat("the arena let go of chunk ", id.value(), ", which it does not have"));
  }
  internal::Chunk next = *chunk;
  next.Drop(kArenaRef, evidence);
  Settlement settlement(impl_.get());
  settlement.ForRecords(now, "");
  settlement.Set(chunk.lease, chunk.index, next, evidence);
  return settlement.Commit(moves, nullptr);
}

// A sealed segment whose handle is gone can never be attached again: what is left of the chunk ends with its readers.
// A segment that is being built only loses its chance to be sealed: its owner still has the chunk mapped.
absl::Status Books::DropKeeperReference(ChunkId id, Evidence evidence, absl::Time now, Transitions* moves) {
  if (evidence != Evidence::kKeeperDeleted && evidence != Evidence::kKeeperEnded) {
    return Defect(absl::StrCat(ToString(evidence), " does not prove that the keeper let go"));
  }
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk || ((*chunk).refs & kKeeperRef) == 0) {
    return Defect(absl::StrCat("the keeper let go of chunk ", id.value(), ", which it does not have"));
  }
  internal::Chunk next = *chunk;
  const bool lost = !next.ending;
  next.Drop(kKeeperRef, evidence);
  const std::shared_ptr<Segment> segment = chunk.lease->segment;
  if (lost && segment->was_sealed) {
    next.Quarantine(QuarantineReason::kKeptFdMissing);
    next.End();
  }
  // Set before the commit: a lease that retires in it must be seen as lost.
  const SegmentState before = lost ? segment->state : SegmentState{};
  if (lost) segment->state = SegmentState::kLost;
  Settlement settlement(impl_.get());
  settlement.ForRecords(now, "the keeper no longer has the memory handle of a sealed segment");
  settlement.Set(chunk.lease, chunk.index, next, evidence);
  absl::Status status = settlement.Commit(moves, nullptr);
  if (!status.ok() && lost) segment->state = before;
  return status;
}

absl::Status Books::ReleaseFailed(ChunkId id, QuarantineReason reason, std::string_view detail, absl::Time now,
                                  Transitions* moves) {
  if (reason != QuarantineReason::kReleaseFailed && reason != QuarantineReason::kRollbackFailed) {
    return Defect(absl::StrCat(ToString(reason), " is not a failure to release"));
  }
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk) return Defect(absl::StrCat("the release of chunk ", id.value(), " failed, which is not in the books"));
  internal::Chunk next = *chunk;
  // Of a chunk in use only the early close of a spare fd failed: it is asked for again when the chunk ends.
  if (!next.ending) return absl::OkStatus();
  next.Quarantine(reason);
  Settlement settlement(impl_.get());
  settlement.ForRecords(now, detail);
  settlement.Set(chunk.lease, chunk.index, next, Evidence::kDriverFailed);
  return settlement.Commit(moves, nullptr);
}

absl::StatusOr<ChunkId> Books::AdoptUnknownKept(const DeviceUuid& uuid, Bytes bytes, std::string_view detail,
                                                absl::Time now, Transitions* moves) {
  if (impl_->FindDevice(uuid) == nullptr) {
    return Error(Reason::UNKNOWN_DEVICE,
                 absl::StrCat("the keeper holds memory of device ", uuid.ToString(), ", which is not managed here"),
                 {{"device_uuid", uuid.ToString()}});
  }
  if (bytes.value() == 0) return Error(Reason::SIZE_ZERO, "the keeper says that it holds memory of 0 bytes");
  std::optional<Bytes> sum = bytes;
  for (const auto& device : impl_->devices) {
    sum = CheckedAdd(*sum, Bytes(device->account.total.charged));
    if (!sum) {
      return Error(Reason::SIZE_OVERFLOW, absl::StrCat("the keeper says that it holds ", FormatBytesExact(bytes),
                                                       ": with what is charged, that overflows 64 bits"));
    }
  }
  auto owned = std::make_unique<Lease>();
  Lease* const lease = owned.get();
  lease->id = impl_->Draw<LeaseId>();
  lease->kind = LeaseKind::kSegment;
  lease->asked = bytes;
  lease->since = now;
  const ChunkId id = impl_->Draw<ChunkId>();
  internal::Chunk chunk;
  chunk.generation = impl_->Draw<Generation>().value();
  chunk.bytes = bytes.value();
  chunk.device = impl_->device_index.at(uuid);
  lease->chunks.push_back(chunk);
  chunk.Reference(kKeeperRef);
  chunk.Quarantine(QuarantineReason::kKeptFdUnknown);
  chunk.End();
  Settlement settlement(impl_.get());
  settlement.ForRecords(now, detail);
  settlement.Set(lease, 0, chunk, Evidence::kKeeperStored);
  if (absl::Status status = settlement.Commit(moves, nullptr); !status.ok()) return status;
  impl_->leases.emplace_hint(impl_->leases.end(), lease->id, std::move(owned));
  return id;
}

}  // namespace gpumem::core
