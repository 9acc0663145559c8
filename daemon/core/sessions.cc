// daemon/core/sessions.cc: sessions and holders come, are fenced, and end.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/settlement.h"
#include "daemon/core/state.h"

namespace gpumem::core {

using internal::Attachment;
using internal::Defect;
using internal::Holder;
using internal::kWorkerRef;
using internal::Lease;
using internal::Segment;
using internal::Session;
using internal::Settlement;

namespace {

absl::Status CheckHolder(const Limits& limits, const Session& session, std::string_view name, Role role) {
  if (name.empty() || name.size() > limits.name_bytes) {
    return Error(
        Reason::NAME_INVALID,
        absl::StrCat("holder name ", Quoted(name), " has ", name.size(), " bytes; give it 1 to ", limits.name_bytes),
        {{"asked_bytes", absl::StrCat(name.size())}, {"limit_bytes", absl::StrCat(limits.name_bytes)}});
  }
  if (std::any_of(name.begin(), name.end(), [](char c) { return c < 0x20 || c > 0x7e; })) {
    return Error(Reason::NAME_INVALID,
                 absl::StrCat("holder name ", Quoted(name), " has bytes that are not printable ASCII; rename it"));
  }
  if (role < Role::kWeights || role > Role::kOther) {
    return Error(Reason::INVALID_ARGUMENT,
                 absl::StrCat("holder ", Quoted(name), ": role ", static_cast<int>(role), " does not exist"));
  }
  if (session.holders.size() >= limits.holders_per_session) {
    return Error(Reason::LIMIT,
                 absl::StrCat(Name(session), " has ", session.holders.size(), " holders, at most ",
                              limits.holders_per_session, " are allowed; use one that is registered"),
                 {{"limit", absl::StrCat(limits.holders_per_session)}});
  }
  return absl::OkStatus();
}

// Fences a live session: what it was granted and could still write to is quarantined.
absl::Status FenceLive(internal::State* state, Session* session, QuarantineReason reason, Evidence evidence,
                       std::string_view detail, absl::Time now, Transitions* moves, ReleaseWork* work) {
  Settlement settlement(state);
  settlement.ForRecords(now, detail);
  for (const LeaseId id : session->leases) {
    Lease* lease = state->FindLease(id);
    for (std::uint32_t i = 0; i < lease->count(); ++i) {
      internal::Chunk next = lease->chunks[i];
      if (!next.in_use()) continue;
      next.Quarantine(reason);
      settlement.Set(lease, i, next, evidence);
    }
  }
  if (absl::Status status = settlement.Commit(moves, work); !status.ok()) return status;
  session->state = SessionState::kFenced;
  session->fence_reason = reason;
  session->fence_detail = std::string(detail);
  ++state->sessions_fenced;
  return absl::OkStatus();
}

// The proven end: nothing of this process can write any more.
void PlanEndOfLeases(internal::State* state, const Session& session, Evidence fact, Settlement* settlement,
                     std::vector<std::shared_ptr<Segment>>* abandoned) {
  for (const LeaseId id : session.leases) {
    Lease* lease = state->FindLease(id);
    if (lease->segment != nullptr) abandoned->push_back(lease->segment);
    for (std::uint32_t i = 0; i < lease->count(); ++i) {
      internal::Chunk next = lease->chunks[i];
      // The answer of a creation in flight is still to come; its asker gives it back then.
      if (next.state == ChunkState::kReserved || next.state == ChunkState::kReleased) continue;
      if (next.ending && (next.refs & kWorkerRef) == 0) continue;
      next.Drop(kWorkerRef, fact);
      next.End();
      settlement->Set(lease, i, next, fact);
    }
  }
}

void PlanEndOfAttachments(internal::State* state, const Session& session, Evidence fact, Settlement* settlement) {
  for (const AttachmentId id : session.attachments) {
    Attachment* attachment = state->attachments.at(id).get();
    PlanDetach(attachment, fact, settlement);
  }
}

}  // namespace

absl::StatusOr<SessionId> Books::OpenSession(const SessionIdentity& identity, absl::Time now) {
  if (impl_->sessions.size() >= impl_->limits.sessions) {
    return Error(Reason::LIMIT,
                 absl::StrCat("there are ", impl_->sessions.size(), " sessions (", impl_->sessions_fenced,
                              " of them fenced and waiting for their processes to end), at most ",
                              impl_->limits.sessions, " are allowed; end processes that are not needed"),
                 {{"limit", absl::StrCat(impl_->limits.sessions)}});
  }
  auto session = std::make_unique<Session>();
  session->id = impl_->Draw<SessionId>();
  session->identity = identity;
  session->since = now;
  const SessionId id = session->id;
  impl_->sessions.emplace(id, std::move(session));
  return id;
}

absl::StatusOr<HolderId> Books::RegisterHolder(SessionId session_id, std::string_view name, Role role) {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  if (absl::Status status = CheckHolder(impl_->limits, **session, name, role); !status.ok()) return status;
  auto holder = std::make_unique<Holder>();
  holder->id = impl_->Draw<HolderId>();
  holder->session = *session;
  holder->name = std::string(name);
  holder->role = role;
  const HolderId id = holder->id;
  (*session)->holders.insert(id);
  impl_->holders.emplace(id, std::move(holder));
  return id;
}

absl::StatusOr<ReleaseWork> Books::Fence(SessionId session_id, QuarantineReason reason, Evidence evidence,
                                         std::string_view detail, absl::Time now, Transitions* moves) {
  Session* session = impl_->FindSession(session_id);
  if (session == nullptr) return impl_->LiveSession(session_id).status();
  ReleaseWork work;
  if (session->state == SessionState::kLive) {
    absl::Status status = FenceLive(impl_.get(), session, reason, evidence, detail, now, moves, &work);
    if (!status.ok()) return status;
  }
  if (evidence != Evidence{}) session->evidence.Add(evidence);
  return work;
}

absl::StatusOr<Books::EndResult> Books::Observe(SessionId session_id, Evidence fact, absl::Time now,
                                                Transitions* moves) {
  if (fact != Evidence::kSocketClosed && fact != Evidence::kPidfdReadable && fact != Evidence::kWitnessClosed) {
    return Defect(absl::StrCat(ToString(fact), " is not a fact about a session's process"));
  }
  Session* session = impl_->FindSession(session_id);
  if (session == nullptr) return impl_->LiveSession(session_id).status();
  EndResult result;
  if (session->state == SessionState::kLive) {
    const std::string detail = fact == Evidence::kSocketClosed ? "its socket was closed" : "its process is ending";
    absl::Status status =
        FenceLive(impl_.get(), session, QuarantineReason::kWriterDied, fact, detail, now, moves, &result.work);
    if (!status.ok()) return status;
  }
  session->evidence.Add(fact);
  const bool proven =
      session->evidence.Has(Evidence::kPidfdReadable) && session->evidence.Has(Evidence::kWitnessClosed);
  if (!proven || session->ended) return result;

  Settlement settlement(impl_.get());
  std::vector<std::shared_ptr<Segment>> abandoned;
  PlanEndOfLeases(impl_.get(), *session, fact, &settlement, &abandoned);
  PlanEndOfAttachments(impl_.get(), *session, fact, &settlement);
  if (absl::Status status = settlement.Commit(moves, &result.work); !status.ok()) return status;
  const absl::btree_set<AttachmentId> attachments = session->attachments;
  for (const AttachmentId id : attachments) impl_->EraseAttachment(impl_->attachments.at(id).get());
  for (const std::shared_ptr<Segment>& segment : abandoned) impl_->Unlist(segment);
  session->ended = true;
  result.ended = true;
  impl_->ForgetIfDone(session);
  return result;
}

}  // namespace gpumem::core
