// daemon/core/verify.cc: every total and every index, derived again from the records.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/core/books.h"
#include "daemon/core/state.h"

namespace gpumem::core {
namespace {

using internal::Chunk;
using internal::Device;
using internal::Holder;
using internal::kArenaRef;
using internal::kKeeperRef;
using internal::kWorkerRef;
using internal::Lease;
using internal::RecordKey;
using internal::Segment;
using internal::Session;
using internal::State;
using internal::Sums;
using internal::Wide;

class Verifier {
 public:
  explicit Verifier(const State& state) : state_(state), devices_(state.devices.size()), at_arena_(devices_.size()) {}

  // The first difference; empty when there is none.
  std::string Run() {
    for (const auto& [id, lease] : state_.leases) WalkLease(id, *lease);
    for (const auto& [id, attachment] : state_.attachments) WalkAttachment(id, *attachment);
    CheckDevices();
    CheckSessions();
    CheckHolders();
    CheckSegments();
    CheckRecords();
    return std::move(difference_);
  }

 private:
  struct Found {
    Sums<Wide> sums;
    std::set<LeaseId> leases;
    std::uint32_t attachments = 0;
  };
  struct FoundRecord {
    std::uint64_t bytes = 0;
    std::uint32_t chunks = 0;
  };

  template <typename... Parts>
  void Expect(bool holds, const Parts&... parts) {
    if (!holds && difference_.empty()) difference_ = absl::StrCat(parts...);
  }

  void WalkLease(LeaseId id, const Lease& lease) {
    Expect(lease.id == id && id.value() > last_id_ && lease.count() > 0, "lease ", id.value(), " overlaps another");
    last_id_ = id.value() + lease.count();
    Expect(last_id_ < state_.next_id, "lease ", id.value(), " has ids that were not drawn");
    Expect((lease.session == nullptr) == (lease.holder == nullptr), "lease ", id.value(), " has half an owner");
    std::uint32_t remaining = 0;
    for (std::uint32_t i = 0; i < lease.count(); ++i) {
      if (lease.chunks[i].state == ChunkState::kReleased) continue;
      ++remaining;
      WalkChunk(lease, i);
    }
    Expect(remaining == lease.remaining && remaining > 0, "lease ", id.value(), " has ", remaining,
           " chunks that are not released, its count says ", lease.remaining);
    if (lease.session != nullptr) {
      sessions_[lease.session].leases.insert(id);
      holders_[lease.holder].leases.insert(id);
    }
    if (lease.segment != nullptr) Expect(lease.segment->lease == &lease, "lease ", id.value(), " is not its segment's");
  }

  void WalkChunk(const Lease& lease, std::uint32_t index) {
    const Chunk& chunk = lease.chunks[index];
    const ChunkId id = lease.chunk_id(index);
    CheckState(lease, chunk, id);
    devices_[chunk.device].Count(chunk, 1);
    if (lease.session != nullptr) {
      sessions_[lease.session].sums.Count(chunk, 1);
      holders_[lease.holder].sums.Count(chunk, 1);
    }
    if (chunk.refs & kArenaRef) at_arena_[chunk.device].insert(id);
    if (chunk.refs & kKeeperRef) kept_.insert(id);
    if (chunk.state == ChunkState::kQuarantined) {
      FoundRecord& record = records_[{lease.id, chunk.device, chunk.reason}];
      record.bytes += chunk.bytes;
      ++record.chunks;
    }
  }

  void CheckState(const Lease& lease, const Chunk& chunk, ChunkId id) {
    const bool owned = lease.session != nullptr;
    bool sound = false;
    switch (chunk.state) {
      case ChunkState::kReserved:
        sound = owned && chunk.refs == 0 && !chunk.ending;
        break;
      case ChunkState::kUndelivered:
        sound = owned && !chunk.ending;
        break;
      case ChunkState::kLive:
        sound = !chunk.ending && (chunk.refs & (owned ? kWorkerRef : kKeeperRef)) != 0;
        break;
      case ChunkState::kDraining:
        sound = chunk.ending && chunk.refs != 0 && (chunk.refs & kWorkerRef) == 0;
        break;
      case ChunkState::kQuarantined:
        sound = (chunk.ending ? chunk.refs != 0 : owned);
        break;
      default:
        break;
    }
    Expect(sound, "chunk ", id.value(), " is ", ToString(chunk.state), " with references ", chunk.refs,
           chunk.ending ? ", ending" : ", not ending");
    Expect(chunk.mapped == Access::kNone || (owned && (chunk.refs & kWorkerRef)), "chunk ", id.value(),
           " is mapped by an owner who does not have it");
    Expect((chunk.state == ChunkState::kQuarantined) == (chunk.reason != QuarantineReason{}), "chunk ", id.value(),
           " is ", ToString(chunk.state), " for reason ", ToString(chunk.reason));
  }

  void WalkAttachment(AttachmentId id, const internal::Attachment& attachment) {
    const Segment& segment = *attachment.segment;
    const auto reader = segment.readers.find(attachment.session->id);
    Expect(reader != segment.readers.end() && reader->second == id, "attachment ", id.value(), " is not a reader");
    Expect(attachment.session->attachments.contains(id), "attachment ", id.value(), " is not its session's");
    Expect(segment.lease != nullptr, "attachment ", id.value(), " is of a segment without memory");
    if (segment.lease == nullptr) return;
    ++sessions_[attachment.session].attachments;
    ++holders_[attachment.holder].attachments;
    for (std::uint32_t i = 0; i < segment.lease->count(); ++i) {
      const Chunk& chunk = segment.lease->chunks[i];
      Expect((chunk.refs & kWorkerRef) != 0, "chunk ", segment.lease->chunk_id(i).value(), " lacks its readers");
      if (!attachment.mapped[i]) continue;
      devices_[chunk.device].read_only += chunk.bytes;
      sessions_[attachment.session].sums.read_only += chunk.bytes;
      holders_[attachment.holder].sums.read_only += chunk.bytes;
    }
  }

  static Sums<Wide> Widen(const Sums<std::uint64_t>& sums) {
    return {sums.charged, sums.physical, sums.quarantined, sums.draining, sums.read_only, sums.read_write};
  }

  void CheckDevices() {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const Device& device = *state_.devices[i];
      const std::string name = Name(device);
      Expect(Widen(device.account.total) == devices_[i], name, ": a total differs from its chunks");
      // A reader's mapping is not the tenant's: a segment is the tenant's once, however often it is mapped.
      Expect(device.tenant.total.charged == device.account.total.charged, name, ": the tenant's charge differs");
      Expect(at_arena_[i] == std::set<ChunkId>(device.at_arena.begin(), device.at_arena.end()), name,
             ": the list of chunks at the arena differs");
    }
    Expect(kept_ == std::set<ChunkId>(state_.kept.begin(), state_.kept.end()), "the list of kept chunks differs");
  }

  void CheckSessions() {
    std::uint64_t fenced = 0;
    for (const auto& [id, session] : state_.sessions) {
      const Found& found = sessions_[session.get()];
      const std::string name = absl::StrCat("session ", id.value());
      Expect(Widen(session->account.total) == found.sums, name, ": a total differs from its chunks");
      Expect(found.leases == std::set<LeaseId>(session->leases.begin(), session->leases.end()), name,
             ": its list of leases differs");
      Expect(found.attachments == session->attachments.size(), name, ": its list of attachments differs");
      Expect(!session->ended || !session->leases.empty(), name, " has ended and should be forgotten");
      if (session->state == SessionState::kFenced) ++fenced;
    }
    Expect(fenced == state_.sessions_fenced, fenced, " sessions are fenced, the count says ", state_.sessions_fenced);
    Expect(sessions_.size() == state_.sessions.size(), "a lease or attachment has a session that is gone");
  }

  void CheckHolders() {
    for (const auto& [id, holder] : state_.holders) {
      const Found& found = holders_[holder.get()];
      const std::string name = absl::StrCat("holder ", id.value());
      Expect(Widen(holder->account.total) == found.sums, name, ": a total differs from its chunks");
      Expect(found.leases.size() == holder->leases, name, ": its count of leases differs");
      Expect(found.attachments == holder->attachments, name, ": its count of attachments differs");
      Expect(holder->session->holders.contains(id), name, " is not its session's");
    }
    Expect(holders_.size() == state_.holders.size(), "a lease or attachment has a holder that is gone");
  }

  void CheckSegments() {
    for (const auto& [path, segment] : state_.segments) {
      Expect(segment->path == path, "segment ", path, " is listed under another path");
      Expect(segment->lease != nullptr || (segment->was_sealed && segment->state == SegmentState::kLost), "segment ",
             path, " has no memory and is not lost");
      Expect(segment->lease == nullptr || segment->lease->segment == segment, "segment ", path, " is not its lease's");
      for (const auto& [session, attachment] : segment->readers) {
        Expect(state_.attachments.contains(attachment), "segment ", path, " has a reader that is gone");
      }
    }
  }

  void CheckRecords() {
    Expect(records_.size() == state_.records.size() && records_.size() == state_.record_index.size(), records_.size(),
           " records are needed, there are ", state_.records.size());
    for (const auto& [key, found] : records_) {
      const auto id = state_.record_index.find(key);
      const auto record = id == state_.record_index.end() ? state_.records.end() : state_.records.find(id->second);
      if (record == state_.records.end()) {
        Expect(false, "lease ", std::get<0>(key).value(), " is quarantined without a record");
        continue;
      }
      Expect(record->second.bytes == found.bytes && record->second.chunks == found.chunks, "quarantine record ",
             record->first.value(), " differs from its chunks");
    }
  }

  const State& state_;
  std::string difference_;
  std::uint64_t last_id_ = 0;
  std::vector<Sums<Wide>> devices_;
  std::vector<std::set<ChunkId>> at_arena_;
  std::set<ChunkId> kept_;
  std::map<const Session*, Found> sessions_;
  std::map<const Holder*, Found> holders_;
  std::map<RecordKey, FoundRecord> records_;
};

}  // namespace

absl::Status Books::Verify() const {
  const std::string difference = Verifier(*impl_).Run();
  if (difference.empty()) return absl::OkStatus();
  return Error(Reason::INTERNAL, absl::StrCat("the books do not add up: ", difference));
}

}  // namespace gpumem::core
