// daemon/manager/segments.cc: leases given back, and segments sealed, attached, detached and removed.
#include <utility>

#include "daemon/manager/impl.h"
#include "daemon/text.h"

namespace gpumem::manager {

using core::Error;
using core::QuarantineReason;
using core::Reason;

namespace {

absl::Status NotGranted(LeaseId lease) {
  return Error(Reason::UNKNOWN_LEASE, Cat("lease ", lease.value(), " is not granted yet"));
}

}  // namespace

void Manager::Impl::Release(const SessionPtr& session, std::uint64_t request_id, LeaseId lease,
                            const std::vector<core::Outcome>& outcomes) {
  using Answer = absl::StatusOr<ReleaseResult>;
  if (grants.UnderWay(lease)) return AnswerSoon(session, request_id, Answer(NotGranted(lease)));
  core::Transitions moves;
  absl::StatusOr<core::ReleaseWork> work = context.books.Release(session->id, lease, outcomes, context.Now(), &moves);
  if (!work.ok()) return AnswerSoon(session, request_id, Answer(work.status()));
  Tally tally;
  tally.Add(moves);
  // In the journal as releasing, before anything is let go.
  context.Record(std::move(moves), [this, session, request_id, lease, work = *std::move(work),
                                    tally](const absl::Status& recorded) {
    errands.Run(
        work, QuarantineReason::kReleaseFailed, tally, [this, session, request_id, lease, recorded](const Tally& all) {
          context.Debug(Cat("session ", session->id.value(), ": released lease ", lease.value(), ", ",
                            core::FormatBytes(all.released()), "; ", core::FormatBytes(all.quarantined()),
                            " quarantined"));
          session->requests.Finish<ReleaseResult>(
              request_id, recorded.ok() ? Answer(ReleaseResult{all.released(), all.quarantined()}) : Answer(recorded));
        });
  });
}

void Manager::Impl::Seal(const SessionPtr& session, std::uint64_t request_id, LeaseId lease,
                         const std::vector<core::Outcome>& outcomes, core::Manifest manifest) {
  using Answer = absl::StatusOr<std::string>;
  if (grants.UnderWay(lease)) return AnswerSoon(session, request_id, Answer(NotGranted(lease)));
  core::Transitions moves;
  absl::StatusOr<core::Books::Sealed> sealed =
      context.books.Seal(session->id, lease, outcomes, std::move(manifest), context.Now(), &moves);
  if (!sealed.ok()) return AnswerSoon(session, request_id, Answer(sealed.status()));
  errands.RunOnly(sealed->work, std::nullopt);
  context.Record(std::move(moves), [this, session, request_id, name = sealed->name](const absl::Status& recorded) {
    if (recorded.ok()) {
      context.Info(Cat("session ", session->id.value(), " sealed segment '", name, "'"));
      context.Publish(SegmentChangedEvent{name, core::SegmentState::kSealed, false});
    }
    session->requests.Finish<std::string>(request_id, recorded.ok() ? Answer(name) : Answer(recorded));
  });
}

std::shared_ptr<const core::Manifest> Manager::Impl::SharedManifest(LeaseId lease, const core::Manifest& manifest) {
  std::weak_ptr<const core::Manifest>& known = manifests_[lease];
  std::shared_ptr<const core::Manifest> shared = known.lock();
  if (shared == nullptr) {
    shared = std::make_shared<const core::Manifest>(manifest);
    known = shared;
  }
  return shared;
}

void Manager::Impl::Attach(const SessionPtr& session, std::uint64_t request_id, HolderId holder,
                           const std::string& name) {
  using Answer = absl::StatusOr<AttachResult>;
  if (context.draining) {
    return AnswerSoon(session, request_id,
                      Answer(Error(Reason::DRAINING, "the daemon is stopping and attaches nothing new")));
  }
  absl::StatusOr<core::Attached> attached = context.books.Attach(session->id, holder, name);
  if (!attached.ok()) return AnswerSoon(session, request_id, Answer(attached.status()));
  // The chunks are read from the books again for a retry, and all attachments share one copy of the manifest.
  std::shared_ptr<const core::Manifest> manifest = SharedManifest(attached->segment.lease, *attached->manifest);
  RequestTable::Replay<AttachResult> answer = [this, attachment = attached->attachment, segment = attached->segment,
                                               manifest]() -> Answer {
    absl::StatusOr<std::vector<core::ChunkView>> chunks = context.books.LeaseChunks(segment.lease);
    if (!chunks.ok()) return chunks.status();
    return AttachResult{attachment, segment, *std::move(chunks), *manifest};
  };
  context.Post([session, request_id, answer = std::move(answer)] {
    session->requests.Finish<AttachResult>(request_id, answer(), answer);
  });
}

void Manager::Impl::Detach(const SessionPtr& session, std::uint64_t request_id, AttachmentId attachment,
                           const std::vector<core::Outcome>& outcomes) {
  using Answer = absl::StatusOr<std::monostate>;
  core::Transitions moves;
  const absl::Status detached = context.books.Detach(session->id, attachment, outcomes, &moves);
  if (!detached.ok()) return AnswerSoon(session, request_id, Answer(detached));
  context.Record(std::move(moves), [session, request_id](const absl::Status& recorded) {
    session->requests.Finish<std::monostate>(request_id, recorded.ok() ? Answer(std::monostate()) : Answer(recorded));
  });
}

void Manager::Impl::RemoveSegment(const std::string& asked_name, Reply<Bytes> reply) {
  std::string name = asked_name;
  core::SegmentState state = core::SegmentState::kSealed;
  LeaseId lease;
  for (const core::SegmentRow& row : context.books.Segments(asked_name)) {
    if (row.name != asked_name && row.name.rfind(asked_name + "@", 0) != 0) continue;
    name = row.name;
    state = row.state;
    lease = row.lease;
  }
  absl::Status refused;
  if (lease.valid() && !context.keeper_connected) {
    refused = Error(Reason::KEEPER_UNAVAILABLE,
                    Cat("segment '", name, "' is kept by the keeper, which is not connected now; remove it later"));
  }
  if (!refused.ok()) return context.Post([reply = std::move(reply), refused] { reply(refused); });
  core::Transitions moves;
  absl::StatusOr<core::ReleaseWork> work = context.books.RemoveSegment(asked_name, context.Now(), &moves);
  if (!work.ok()) return context.Post([reply = std::move(reply), why = work.status()] { reply(why); });
  manifests_.erase(lease);
  Tally tally;
  tally.Add(moves);
  context.Record(std::move(moves), [this, name, state, work = *std::move(work), tally,
                                    reply = std::move(reply)](const absl::Status& recorded) {
    errands.Run(work, QuarantineReason::kReleaseFailed, tally, [this, name, state, recorded, reply](const Tally& all) {
      context.Info(Cat("segment '", name, "' removed: ", core::FormatBytes(all.released()), " released, ",
                       core::FormatBytes(all.quarantined()), " quarantined"));
      context.Publish(SegmentChangedEvent{name, state, true});
      reply(recorded.ok() ? absl::StatusOr<Bytes>(all.released()) : absl::StatusOr<Bytes>(recorded));
    });
  });
}

}  // namespace gpumem::manager
