// daemon/core/state.cc: finding records, and their coming and going.
#include "daemon/core/state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/core/format.h"

namespace gpumem::core::internal {

std::string Segment::FullName() const { return was_sealed ? absl::StrCat(path, "@", version) : path; }

absl::Status Defect(std::string_view what) {
  return Error(Reason::INTERNAL, absl::StrCat("defect in the books: ", AbslView(what), "; nothing was changed"));
}

std::string Name(const Device& device) {
  const std::string uuid = device.spec.device.ToString();
  return device.spec.name.empty() ? absl::StrCat("device ", uuid)
                                  : absl::StrCat("device ", uuid, " (", device.spec.name, ")");
}

std::string Name(const Session& session) {
  return absl::StrCat("session ", session.id.value(), " (pid ", session.identity.pid, ", ",
                      Quoted(session.identity.comm), ")");
}

Device* State::FindDevice(const DeviceUuid& uuid) {
  const auto it = device_index.find(uuid);
  return it == device_index.end() ? nullptr : devices[it->second].get();
}

Session* State::FindSession(SessionId id) const {
  const auto it = sessions.find(id);
  return it == sessions.end() ? nullptr : it->second.get();
}

Lease* State::FindLease(LeaseId id) const {
  const auto it = leases.find(id);
  return it == leases.end() ? nullptr : it->second.get();
}

// A lease's chunks have the ids after its own, so the lease is the last one whose id is below the chunk's.
ChunkRef State::FindChunk(ChunkId id) const {
  auto it = leases.lower_bound(LeaseId(id.value()));
  if (it == leases.begin()) return {};
  Lease* lease = std::prev(it)->second.get();
  const std::uint64_t index = id.value() - lease->id.value() - 1;
  if (index >= lease->count()) return {};
  if (lease->chunks[index].state == ChunkState::kReleased) return {};
  return {lease, static_cast<std::uint32_t>(index)};
}

absl::StatusOr<Session*> State::LiveSession(SessionId id) const {
  Session* session = FindSession(id);
  if (session == nullptr) {
    return Error(Reason::UNKNOWN_SESSION,
                 absl::StrCat("session ", id.value(), " is not known in this daemon's life; open a new one"),
                 {{"session_id", absl::StrCat(id.value())}});
  }
  if (session->state != SessionState::kLive) {
    return Error(Reason::SESSION_FENCED,
                 absl::StrCat(Name(*session), " is fenced (", ToString(session->fence_reason),
                              session->fence_detail.empty() ? "" : ": ", session->fence_detail,
                              "): nothing new is granted to it; replace the process and open a new session"),
                 {{"session_id", absl::StrCat(id.value())}, {"fence_reason", ToString(session->fence_reason)}});
  }
  return session;
}

absl::StatusOr<Holder*> State::HolderOf(const Session& session, HolderId id) const {
  const auto it = holders.find(id);
  if (it == holders.end() || it->second->session != &session) {
    return Error(Reason::UNKNOWN_HOLDER,
                 absl::StrCat("holder ", id.value(), " is not one of ", Name(session), "; register a holder first"),
                 {{"holder_id", absl::StrCat(id.value())}});
  }
  return it->second.get();
}

absl::StatusOr<Lease*> State::OwnedLease(const Session& session, LeaseId id) const {
  Lease* lease = FindLease(id);
  if (lease == nullptr) {
    return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", id.value(), " is not known, or it was released"),
                 LeaseDetails(id));
  }
  if (lease->segment != nullptr && lease->segment->was_sealed) {
    return Error(Reason::ALREADY_SEALED,
                 absl::StrCat("lease ", id.value(), " is the sealed segment ", lease->segment->FullName(),
                              " and cannot change; attach it to read it, or have an operator remove it"),
                 LeaseDetails(id));
  }
  if (lease->session != &session) {
    return Error(Reason::FOREIGN_LEASE,
                 absl::StrCat("lease ", id.value(), " belongs to another session than ", session.id.value()),
                 LeaseDetails(id));
  }
  return lease;
}

Attachment* State::ReaderOf(const Lease& lease, SessionId session) const {
  if (lease.segment == nullptr) return nullptr;
  const auto it = lease.segment->readers.find(session);
  return it == lease.segment->readers.end() ? nullptr : attachments.at(it->second).get();
}

ChunkView State::View(const Lease& lease, std::uint32_t index) const {
  const Chunk& chunk = lease.chunks[index];
  ChunkView view;
  view.chunk = lease.chunk_id(index);
  view.generation = Generation(chunk.generation);
  view.lease = lease.id;
  view.index = index;
  view.device = devices[chunk.device]->spec.device;
  view.bytes = Bytes(chunk.bytes);
  view.state = chunk.state;
  view.at_arena = (chunk.refs & kArenaRef) != 0;
  view.at_keeper = (chunk.refs & kKeeperRef) != 0;
  view.at_worker = (chunk.refs & kWorkerRef) != 0;
  return view;
}

std::vector<ChunkView> State::Views(const Lease& lease, std::uint32_t first, std::uint32_t count) const {
  std::vector<ChunkView> views;
  views.reserve(count);
  for (std::uint32_t i = first; i < first + count; ++i) views.push_back(View(lease, i));
  return views;
}

SegmentRow State::Row(const Segment& segment) const {
  SegmentRow row;
  row.name = segment.FullName();
  row.state = segment.state;
  row.lease = segment.lease_id;
  row.generation = segment.generation;
  row.tenant = std::string(Books::kDefaultTenant);
  row.bytes = segment.bytes;
  row.chunks = segment.chunks;
  row.tensors = static_cast<std::uint32_t>(segment.manifest.size());
  row.readers = static_cast<std::uint32_t>(segment.readers.size());
  row.sealed_at = segment.sealed_at;
  return row;
}

std::uint64_t State::NextVersion(const std::string& path) const {
  const auto it = given_versions_.find(path);
  return (it == given_versions_.end() ? version_floor_ : std::max(version_floor_, it->second)) + 1;
}

void State::Unlist(const std::shared_ptr<Segment>& segment) {
  const auto it = segments.find(segment->path);
  if (it == segments.end() || it->second != segment) return;
  segments.erase(it);
  segment->manifest.clear();
  segment->manifest.shrink_to_fit();
  if (!segment->was_sealed) return;
  if (given_versions_.size() >= limits.segments && !given_versions_.contains(segment->path)) {
    for (const auto& [path, version] : given_versions_) version_floor_ = std::max(version_floor_, version);
    given_versions_.clear();
  }
  given_versions_[segment->path] = segment->version;
}

void State::EraseAttachment(Attachment* attachment) {
  attachment->segment->readers.erase(attachment->session->id);
  attachment->session->attachments.erase(attachment->id);
  --attachment->holder->attachments;
  attachments.erase(attachment->id);
}

void State::ForgetIfDone(Session* session) {
  if (!session->ended || !session->leases.empty()) return;
  for (const HolderId holder : session->holders) holders.erase(holder);
  --sessions_fenced;  // an ended session was fenced first
  sessions.erase(session->id);
}

void State::RetireLease(Lease* lease) {
  Session* const session = lease->session;
  if (session != nullptr) {
    session->leases.erase(lease->id);
    --lease->holder->leases;
  }
  if (const std::shared_ptr<Segment> segment = lease->segment; segment != nullptr) {
    segment->lease = nullptr;
    // A segment that was sealed and is lost stays in the list to say so, until it is removed or built again.
    if (!(segment->was_sealed && segment->state == SegmentState::kLost)) Unlist(segment);
  }
  leases.erase(lease->id);
  if (session != nullptr) ForgetIfDone(session);
}

absl::Status CheckOutcomes(const std::vector<Outcome>& outcomes, std::uint32_t chunks) {
  if (outcomes.size() != 1 && outcomes.size() != chunks) {
    return Error(Reason::INVALID_ARGUMENT,
                 absl::StrCat(outcomes.size(), " outcomes for ", chunks, " chunks; give one for each, or one for all"),
                 {{"asked", absl::StrCat(outcomes.size())}, {"limit", absl::StrCat(chunks)}});
  }
  for (const Outcome outcome : outcomes) {
    if (outcome < Outcome::kUnmapped || outcome > Outcome::kUnknown) {
      return Error(Reason::INVALID_ARGUMENT, absl::StrCat("outcome ", static_cast<int>(outcome), " does not exist"));
    }
  }
  return absl::OkStatus();
}

ErrorDetails LeaseDetails(LeaseId lease) { return {{"lease_id", absl::StrCat(lease.value())}}; }

absl::Status CheckNoneMapped(const std::vector<Outcome>& outcomes, absl::FunctionRef<std::string()> thing) {
  const auto mapped = std::find(outcomes.begin(), outcomes.end(), Outcome::kStillMapped);
  if (mapped == outcomes.end()) return absl::OkStatus();
  return Error(Reason::STILL_MAPPED,
               absl::StrCat(thing(), ": chunk ", mapped - outcomes.begin(),
                            " is still mapped; unmap it and let its handle go, then release"),
               {{"chunk_index", absl::StrCat(mapped - outcomes.begin())}});
}

absl::Status CheckRange(std::uint32_t first, std::uint32_t count, std::uint32_t chunks) {
  if (count != 0 && first < chunks && count <= chunks - first) return absl::OkStatus();
  return Error(Reason::INVALID_ARGUMENT,
               absl::StrCat("chunks ", first, " to ", std::uint64_t{first} + count, " (", count,
                            " of them) were asked for, but the lease has ", chunks, ", numbered from 0"),
               {{"first", absl::StrCat(first)}, {"count", absl::StrCat(count)}, {"limit", absl::StrCat(chunks)}});
}

}  // namespace gpumem::core::internal
