// daemon/core/segments.cc: segments are sealed, attached, detached and removed.
#include <algorithm>
#include <string>
#include <vector>

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
using internal::Holder;
using internal::kArenaRef;
using internal::kKeeperRef;
using internal::kWorkerRef;
using internal::Lease;
using internal::Segment;
using internal::Session;
using internal::Settlement;
using internal::State;

namespace {

ErrorDetails DetailsFor(const Segment& segment) {
  return {{"segment", segment.FullName()}, {"lease_id", absl::StrCat(segment.lease_id.value())}};
}

absl::Status Lost(const Segment& segment) {
  return Error(Reason::SEGMENT_LOST,
               absl::StrCat("segment ", segment.FullName(),
                            " lost its memory handles; it can only be built again, when its readers are gone"),
               DetailsFor(segment));
}

absl::Status NotSealed(const Segment& segment) {
  return Error(Reason::NOT_SEALED,
               absl::StrCat("segment ", segment.FullName(), " is still being built by session ",
                            segment.lease->session->id.value(), "; try again when it is sealed"),
               DetailsFor(segment));
}

absl::Status CheckSealable(const Lease& lease) {
  const ErrorDetails details = internal::LeaseDetails(lease.id);
  const std::string name = absl::StrCat("lease ", lease.id.value());
  if (lease.segment == nullptr) {
    return Error(Reason::INVALID_ARGUMENT, absl::StrCat(name, " is private: only a segment can be sealed"), details);
  }
  for (const internal::Chunk& chunk : lease.chunks) {
    if (chunk.ending || lease.rolled_back)
      return Error(Reason::ALREADY_RELEASED, absl::StrCat(name, " was given back before"), details);
    if (chunk.state == ChunkState::kReserved) {
      return Error(Reason::UNKNOWN_LEASE, absl::StrCat(name, " is not granted yet"), details);
    }
  }
  if (lease.segment->state == SegmentState::kLost) return Lost(*lease.segment);
  for (std::uint32_t i = 0; i < lease.count(); ++i) {
    if (lease.chunks[i].refs & kKeeperRef) continue;
    return Error(Reason::KEEPER_UNAVAILABLE,
                 absl::StrCat(name, ": the keeper has not acknowledged chunk ", i, " yet; try again later"), details);
  }
  return absl::OkStatus();
}

absl::Status CheckSealOutcomes(const std::vector<Outcome>& outcomes, const Lease& lease) {
  const auto name = [&lease] { return absl::StrCat("lease ", lease.id.value()); };
  if (absl::Status status = CheckOutcomes(outcomes, lease.count()); !status.ok()) return status;
  if (absl::Status status = CheckNoneMapped(outcomes, name); !status.ok()) return status;
  const auto unknown = std::find(outcomes.begin(), outcomes.end(), Outcome::kUnknown);
  if (unknown == outcomes.end()) return absl::OkStatus();
  return Error(Reason::INVALID_ARGUMENT,
               absl::StrCat(name(), ": whether chunk ", unknown - outcomes.begin(),
                            " is unmapped is not known, so its memory could still be written to and cannot be sealed; "
                            "release the lease and build the segment again"),
               {{"chunk_index", absl::StrCat(unknown - outcomes.begin())}});
}

// The segment of that name: without a version the one of that path.
absl::StatusOr<std::shared_ptr<Segment>> FindSegment(const State& state, std::string_view text) {
  const absl::StatusOr<SegmentName> name = ParseSegmentName(text, state.limits.name_bytes);
  if (!name.ok()) return name.status();
  const auto it = state.segments.find(name->path);
  if (it == state.segments.end() || (name->version && *name->version != it->second->version)) {
    return Error(Reason::UNKNOWN_SEGMENT,
                 absl::StrCat("there is no segment ", Quoted(text),
                              it == state.segments.end() ? "" : absl::StrCat("; there is ", it->second->FullName())),
                 {{"segment", std::string(text)}});
  }
  return it->second;
}

absl::Status CheckAttachable(const State& state, const Session& session, const Segment& segment) {
  if (segment.state == SegmentState::kLost) return Lost(segment);
  if (segment.state != SegmentState::kSealed) return NotSealed(segment);
  if (const auto it = segment.readers.find(session.id); it != segment.readers.end()) {
    const bool unknown = state.attachments.at(it->second)->outcome_unknown;
    return Error(Reason::ALREADY_ATTACHED,
                 absl::StrCat(Name(session), " has segment ", segment.FullName(), " attached already",
                              unknown ? ": it was detached with an unknown outcome and may still be mapped" : "",
                              "; use attachment ", it->second.value()),
                 DetailsFor(segment));
  }
  if (session.attachments.size() >= state.limits.attachments_per_session) {
    return Error(Reason::LIMIT,
                 absl::StrCat(Name(session), " has ", session.attachments.size(), " segments attached, at most ",
                              state.limits.attachments_per_session, " are allowed; detach some first"),
                 {{"limit", absl::StrCat(state.limits.attachments_per_session)}});
  }
  return absl::OkStatus();
}

absl::Status InUse(const State& state, const Segment& segment) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> users;
  if (segment.lease->session != nullptr) users.push_back(Name(*segment.lease->session));
  for (const auto& [session, attachment] : segment.readers) {
    if (users.size() == kNamed) break;
    users.push_back(Name(*state.FindSession(session)));
  }
  const std::size_t more = segment.readers.size() > users.size() ? segment.readers.size() - users.size() : 0;
  return Error(Reason::SEGMENT_IN_USE,
               absl::StrCat("segment ", segment.FullName(), " is in use by ", absl::StrJoin(users, ", "),
                            more == 0 ? "" : absl::StrCat(" and ", more, " more"),
                            "; detach it there, or end these processes, then remove it"),
               DetailsFor(segment));
}

}  // namespace

namespace internal {

void PlanDetach(Attachment* attachment, Evidence evidence, Settlement* settlement) {
  Lease* const lease = attachment->segment->lease;
  for (std::uint32_t i = 0; i < lease->count(); ++i) settlement->MapReader(attachment, i, false);
  if (attachment->segment->readers.size() > 1) return;
  for (std::uint32_t i = 0; i < lease->count(); ++i) {
    Chunk next = lease->chunks[i];
    if (next.state == ChunkState::kReleased) continue;
    next.Drop(kWorkerRef, evidence);
    settlement->Set(lease, i, next, evidence);
  }
}

}  // namespace internal

absl::StatusOr<Books::Sealed> Books::Seal(SessionId session_id, LeaseId id, const std::vector<Outcome>& outcomes,
                                          Manifest manifest, absl::Time now, Transitions* moves) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  const absl::StatusOr<Lease*> owned = impl_->OwnedLease(**session, id);
  if (!owned.ok()) return owned.status();
  Lease* const lease = *owned;
  if (absl::Status status = CheckSealable(*lease); !status.ok()) return status;
  if (absl::Status status = CheckSealOutcomes(outcomes, *lease); !status.ok()) return status;
  Segment* const segment = lease->segment.get();
  absl::Status checked = CheckManifest(manifest, segment->bytes, impl_->limits.tensors_per_manifest);
  if (!checked.ok()) return checked;

  Settlement settlement(impl_.get());
  Sealed sealed;
  for (std::uint32_t i = 0; i < lease->count(); ++i) {
    internal::Chunk next = lease->chunks[i];
    next.Drop(kWorkerRef, Evidence::kOwnerUnmapped);
    next.state = ChunkState::kLive;
    settlement.Set(lease, i, next, Evidence::kOwnerUnmapped);
    if (next.refs & kArenaRef) sealed.work.close_at_arena.push_back(lease->chunk_id(i));
  }
  settlement.GiveUpOwner(lease);
  if (absl::Status status = settlement.Commit(moves, &sealed.work); !status.ok()) return status;
  segment->state = SegmentState::kSealed;
  segment->was_sealed = true;
  segment->sealed_at = now;
  segment->manifest = std::move(manifest);
  sealed.name = segment->FullName();
  return sealed;
}

absl::StatusOr<Attached> Books::Attach(SessionId session_id, HolderId holder_id, std::string_view name) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  const absl::StatusOr<Holder*> holder = impl_->HolderOf(**session, holder_id);
  if (!holder.ok()) return holder.status();
  const absl::StatusOr<std::shared_ptr<Segment>> segment = FindSegment(*impl_, name);
  if (!segment.ok()) return segment.status();
  if (absl::Status status = CheckAttachable(*impl_, **session, **segment); !status.ok()) return status;

  Lease* const lease = (*segment)->lease;
  Settlement settlement(impl_.get());
  for (std::uint32_t i = 0; i < lease->count() && (*segment)->readers.empty(); ++i) {
    internal::Chunk next = lease->chunks[i];
    next.Reference(kWorkerRef);
    settlement.Set(lease, i, next, Evidence{});
  }
  if (absl::Status status = settlement.Commit(nullptr, nullptr); !status.ok()) return status;
  auto attachment = std::make_unique<Attachment>();
  attachment->id = impl_->Draw<AttachmentId>();
  attachment->session = *session;
  attachment->holder = *holder;
  attachment->segment = *segment;
  attachment->mapped.resize(lease->count());
  (*session)->attachments.insert(attachment->id);
  ++(*holder)->attachments;
  (*segment)->readers.emplace(session_id, attachment->id);
  Attached attached;
  attached.attachment = attachment->id;
  impl_->attachments.emplace(attachment->id, std::move(attachment));
  attached.segment = impl_->Row(**segment);
  attached.chunks = impl_->Views(*lease, 0, lease->count());
  attached.manifest = &(*segment)->manifest;
  return attached;
}

absl::Status Books::Detach(SessionId session_id, AttachmentId id, const std::vector<Outcome>& outcomes,
                           Transitions* moves) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  const auto it = impl_->attachments.find(id);
  if (it == impl_->attachments.end()) {
    return Error(Reason::UNKNOWN_LEASE, absl::StrCat("attachment ", id.value(), " is not known, or it was detached"));
  }
  Attachment* const attachment = it->second.get();
  if (attachment->session != *session) {
    return Error(Reason::FOREIGN_LEASE,
                 absl::StrCat("attachment ", id.value(), " belongs to another session than ", session_id.value()));
  }
  const auto thing = [attachment] { return absl::StrCat("segment ", attachment->segment->FullName()); };
  if (absl::Status status = CheckOutcomes(outcomes, attachment->segment->chunks); !status.ok()) return status;
  if (absl::Status status = CheckNoneMapped(outcomes, thing); !status.ok()) return status;
  if (std::find(outcomes.begin(), outcomes.end(), Outcome::kUnknown) != outcomes.end()) {
    attachment->outcome_unknown = true;
    return absl::OkStatus();
  }
  Settlement settlement(impl_.get());
  PlanDetach(attachment, Evidence::kReaderDetached, &settlement);
  if (absl::Status status = settlement.Commit(moves, nullptr); !status.ok()) return status;
  impl_->EraseAttachment(attachment);
  return absl::OkStatus();
}

absl::StatusOr<ReleaseWork> Books::RemoveSegment(std::string_view name, absl::Time now, Transitions* moves) {
  const absl::StatusOr<std::shared_ptr<Segment>> found = FindSegment(*impl_, name);
  if (!found.ok()) return found.status();
  const std::shared_ptr<Segment>& segment = *found;
  ReleaseWork work;
  if (segment->lease == nullptr) {
    impl_->Unlist(segment);
    return work;
  }
  if (segment->state == SegmentState::kBuilding) return NotSealed(*segment);
  if (segment->lease->session != nullptr || !segment->readers.empty()) return InUse(*impl_, *segment);
  Settlement settlement(impl_.get());
  settlement.ForRecords(now, "");
  for (std::uint32_t i = 0; i < segment->lease->count(); ++i) {
    internal::Chunk next = segment->lease->chunks[i];
    if (next.state == ChunkState::kReleased || next.ending) continue;
    next.End();
    settlement.Set(segment->lease, i, next, Evidence{});
  }
  if (absl::Status status = settlement.Commit(moves, &work); !status.ok()) return status;
  impl_->Unlist(segment);
  return work;
}

}  // namespace gpumem::core
