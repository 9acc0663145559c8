// daemon/manager/sessions.cc: sessions opened, fenced and ended.
#include <utility>

#include "daemon/manager/impl.h"
#include "daemon/text.h"

namespace gpumem::manager {

using core::Error;
using core::Evidence;
using core::QuarantineReason;
using core::Reason;

absl::StatusOr<SessionId> Manager::Impl::OpenSession(const core::SessionIdentity& identity) {
  if (context.draining) {
    return Error(Reason::DRAINING,
                 "the daemon is stopping and opens no session; connect to the daemon that follows it");
  }
  const absl::StatusOr<SessionId> session = context.books.OpenSession(identity, context.Now());
  if (!session.ok()) return session;
  sessions_.emplace(*session, std::make_shared<SessionRecord>(*session, context.options.remembered_requests));
  context.Info(Cat("session ", session->value(), " opened by ", identity.comm, " (pid ", identity.pid, ", uid ",
                   identity.uid, ")"));
  return session;
}

void Manager::Impl::PublishFenced(SessionId session, QuarantineReason reason, const core::Transitions& moves,
                                  const std::string& detail) {
  Tally tally;
  tally.Add(moves);
  context.Warn(Cat("session ", session.value(), " is fenced (", core::ToString(reason), "): ", detail, "; ",
                   core::FormatBytes(tally.quarantined()), " quarantined until its process has ended"));
  context.Publish(SessionFencedEvent{session, reason, tally.quarantined(), detail});
}

void Manager::Impl::Observe(SessionId session, Evidence fact) {
  const SessionPtr record = Find(session);
  if (record == nullptr) return;
  const bool was_live = context.books.CheckLive(session).ok();
  const std::string detail = fact == Evidence::kSocketClosed    ? "its socket closed"
                             : fact == Evidence::kPidfdReadable ? "its process ended"
                                                                : "its witness pipe closed";
  if (was_live && fact == Evidence::kWitnessClosed) {
    // The process may live: then it hears why its socket closes. When it does not, the send fails and nobody minds.
    (void)context.ports.channels->SendFenced(session, QuarantineReason::kWriterDied, detail);
  }
  // Before any charge may end: no further fd can reach the process. One that is queued already dies with its end of
  // the socket, so the process's proven end covers it.
  context.ports.channels->Close(session);
  record->unacknowledged.clear();
  core::Transitions moves;
  absl::StatusOr<core::Books::EndResult> result = context.books.Observe(session, fact, context.Now(), &moves);
  context.Expect(result.status(), Cat("session ", session.value(), ": ", detail));
  if (!result.ok()) return;
  if (was_live) PublishFenced(session, QuarantineReason::kWriterDied, moves, detail);
  Tally tally;
  tally.Add(moves);
  if (!result->ended) {
    context.RecordOnly(std::move(moves));
    errands.RunOnly(result->work, QuarantineReason::kReleaseFailed);
    return;
  }
  sessions_.erase(session);
  context.Record(std::move(moves),
                 [this, session, work = std::move(result->work), tally](const absl::Status& recorded) {
                   context.Expect(recorded, "recording a session's end in the journal");
                   End(session, work, tally);
                 });
}

// The process is proven to be gone: what is left are our own references.
void Manager::Impl::End(SessionId session, core::ReleaseWork work, Tally tally) {
  errands.Run(work, QuarantineReason::kReleaseFailed, std::move(tally), [this, session](const Tally& settled) {
    context.Info(Cat("session ", session.value(), " ended: ", core::FormatBytes(settled.released()), " settled"));
    context.Publish(SessionEndedEvent{session, settled.released()});
    context.ports.channels->Forget(session);
  });
}

void Manager::Impl::ReportFault(const SessionPtr& session, std::uint64_t request_id, const FaultReport& fault) {
  if (context.books.Exists(session->id) && !context.books.CheckLive(session->id).ok()) {
    return AnswerSoon(session, request_id, absl::StatusOr<Bytes>(Bytes()));  // fenced before
  }
  constexpr std::size_t kMostDetail = 400;
  std::string detail = Cat(fault.cuda_error_name, " (", fault.cuda_error, ")");
  if (!fault.device_uuid.empty()) detail += Cat(" on ", fault.device_uuid);
  if (!fault.detail.empty()) detail += Cat(": ", fault.detail);
  if (detail.size() > kMostDetail) detail.resize(kMostDetail);
  core::Transitions moves;
  absl::StatusOr<core::ReleaseWork> work = context.books.Fence(session->id, QuarantineReason::kWriterFaulted,
                                                               Evidence::kFaultReported, detail, context.Now(), &moves);
  if (!work.ok()) return AnswerSoon(session, request_id, absl::StatusOr<Bytes>(work.status()));
  const absl::Status told = context.ports.channels->SendFenced(session->id, QuarantineReason::kWriterFaulted, detail);
  if (!told.ok()) context.Debug(Cat("session ", session->id.value(), " was not told: ", told.message()));
  PublishFenced(session->id, QuarantineReason::kWriterFaulted, moves, detail);
  Tally tally;
  tally.Add(moves);
  context.Record(std::move(moves),
                 [session, request_id, quarantined = tally.quarantined()](const absl::Status& status) {
                   session->requests.Finish<Bytes>(
                       request_id, status.ok() ? absl::StatusOr<Bytes>(quarantined) : absl::StatusOr<Bytes>(status));
                 });
  errands.RunOnly(*work, QuarantineReason::kReleaseFailed);
}

}  // namespace gpumem::manager
