// daemon/core/settlement.cc: see settlement.h.
#include "daemon/core/settlement.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace gpumem::core::internal {
namespace {

bool Fits(std::uint64_t total, Wide change) {
  const Wide sum = static_cast<Wide>(total) + change;
  return sum >= 0 && sum <= static_cast<Wide>(std::numeric_limits<std::uint64_t>::max());
}

const char* FirstMisfit(const Account& account) {
  const auto& [total, planned, touched] = account;
  if (!Fits(total.charged, planned.charged)) return "charged";
  if (!Fits(total.physical, planned.physical)) return "physical";
  if (!Fits(total.quarantined, planned.quarantined)) return "quarantined";
  if (!Fits(total.draining, planned.draining)) return "draining";
  if (!Fits(total.read_only, planned.read_only)) return "mapped read-only";
  if (!Fits(total.read_write, planned.read_write)) return "mapped read-write";
  return nullptr;
}

std::uint64_t Sum(std::uint64_t total, Wide change) {
  return static_cast<std::uint64_t>(static_cast<Wide>(total) + change);
}

void AddPlanned(Account* account) {
  auto& [total, planned, touched] = *account;
  total.charged = Sum(total.charged, planned.charged);
  total.physical = Sum(total.physical, planned.physical);
  total.quarantined = Sum(total.quarantined, planned.quarantined);
  total.draining = Sum(total.draining, planned.draining);
  total.read_only = Sum(total.read_only, planned.read_only);
  total.read_write = Sum(total.read_write, planned.read_write);
}

// Sums of one call's own bytes. They are parts of totals that were checked.
void AddTo(Bytes* sum, std::uint64_t bytes) { *sum = Bytes(sum->value() + bytes); }

}  // namespace

Settlement::~Settlement() {
  for (Account* account : accounts_) {
    account->planned = {};
    account->touched = false;
  }
}

void Settlement::Set(Lease* lease, std::uint32_t index, Chunk next, Evidence evidence) {
  if (next.ending && next.refs == 0) {
    if (evidence == Evidence{}) evidence = next.last;
    next.state = ChunkState::kReleased;
  }
  if (next.state != ChunkState::kQuarantined) next.reason = {};
  Count(*lease, lease->chunks[index], -1);
  Count(*lease, next, +1);
  changes_.push_back({lease, index, evidence, next});
}

void Settlement::MapReader(Attachment* attachment, std::uint32_t index, bool mapped) {
  if (attachment->mapped[index] == mapped) return;
  const Chunk& chunk = attachment->segment->lease->chunks[index];
  const Wide bytes = mapped ? static_cast<Wide>(chunk.bytes) : -static_cast<Wide>(chunk.bytes);
  Planned(&state_->devices[chunk.device]->account).read_only += bytes;
  Planned(&attachment->session->account).read_only += bytes;
  Planned(&attachment->holder->account).read_only += bytes;
  reader_changes_.push_back({attachment, index, mapped});
}

void Settlement::GiveUpOwner(Lease* lease) {
  for (const Change& change : changes_) {
    Planned(&lease->session->account).Count(change.next, -1);
    Planned(&lease->holder->account).Count(change.next, -1);
  }
  disowned_ = lease;
}

void Settlement::Disown() {
  disowned_->session->leases.erase(disowned_->id);
  --disowned_->holder->leases;
  disowned_->session = nullptr;
  disowned_->holder = nullptr;
}

absl::Status Settlement::Commit(Transitions* moves, ReleaseWork* work) {
  if (absl::Status status = CheckTotals(); !status.ok()) return status;
  for (Account* account : accounts_) {
    AddPlanned(account);
    account->planned = {};
    account->touched = false;
  }
  accounts_.clear();
  for (const ReaderChange& change : reader_changes_) change.attachment->mapped[change.index] = change.mapped;
  if (disowned_ != nullptr) Disown();
  for (const Change& change : changes_) Apply(change, moves, work);
  return absl::OkStatus();
}

Sums<Wide>& Settlement::Planned(Account* account) {
  if (!account->touched) {
    account->touched = true;
    accounts_.push_back(account);
  }
  return account->planned;
}

void Settlement::Count(const Lease& lease, const Chunk& chunk, int sign) {
  Device* device = state_->devices[chunk.device].get();
  Planned(&device->account).Count(chunk, sign);
  Planned(&device->tenant).Count(chunk, sign);
  if (lease.session == nullptr) return;
  Planned(&lease.session->account).Count(chunk, sign);
  Planned(&lease.holder->account).Count(chunk, sign);
}

absl::Status Settlement::CheckTotals() const {
  for (const Account* account : accounts_) {
    if (const char* misfit = FirstMisfit(*account); misfit != nullptr) {
      return Defect(
          absl::StrCat("a total of ", misfit, " bytes would fall below zero or pass 64 bits",
                       changes_.empty() ? "" : absl::StrCat(" by a change of lease ", changes_[0].lease->id.value())));
    }
  }
  return absl::OkStatus();
}

void Settlement::Apply(const Change& change, Transitions* moves, ReleaseWork* work) {
  Lease* const lease = change.lease;
  const Chunk& next = change.next;
  const Chunk old = lease->chunks[change.index];
  if (old.state != next.state && moves != nullptr) {
    moves->push_back({lease->chunk_id(change.index), lease->id, state_->devices[next.device]->spec.device,
                      Bytes(next.bytes), old.state, next.state, change.evidence});
  }
  if (work != nullptr) {
    if (old.state != next.state && next.state == ChunkState::kReleased) AddTo(&work->released, next.bytes);
    if (old.state != next.state && next.state == ChunkState::kQuarantined) AddTo(&work->quarantined, next.bytes);
    if (!old.ending && next.ending && (next.refs & kArenaRef)) {
      work->close_at_arena.push_back(lease->chunk_id(change.index));
    }
    if (!old.ending && next.ending && (next.refs & kKeeperRef)) {
      work->delete_at_keeper.push_back(lease->chunk_id(change.index));
    }
  }
  UpdateReferences(change, old);
  UpdateRecords(change, old);
  lease->chunks[change.index] = next;
  if (old.state == ChunkState::kReleased && next.state != ChunkState::kReleased) ++lease->remaining;
  if (old.state != ChunkState::kReleased && next.state == ChunkState::kReleased && --lease->remaining == 0) {
    state_->RetireLease(lease);
  }
}

void Settlement::UpdateReferences(const Change& change, const Chunk& old) {
  const ChunkId id = change.lease->chunk_id(change.index);
  const int gone = old.refs & ~change.next.refs;
  const int came = change.next.refs & ~old.refs;
  absl::btree_set<ChunkId>& at_arena = state_->devices[old.device]->at_arena;
  if (gone & kArenaRef) at_arena.erase(id);
  if (came & kArenaRef) at_arena.insert(id);
  if (gone & kKeeperRef) state_->kept.erase(id);
  if (came & kKeeperRef) state_->kept.insert(id);
}

void Settlement::UpdateRecords(const Change& change, const Chunk& old) {
  const bool was = old.state == ChunkState::kQuarantined;
  const bool is = change.next.state == ChunkState::kQuarantined;
  if (was && !is) LeaveRecord(*change.lease, old);
  if (!was && is) JoinRecord(change);
  if (was && is) {
    const QuarantineId id = state_->record_index.at({change.lease->id, old.device, old.reason});
    if (change.evidence != Evidence{}) state_->records.at(id).evidence.Add(change.evidence);
  }
}

void Settlement::JoinRecord(const Change& change) {
  const Chunk& chunk = change.next;
  const auto [it, added] = state_->record_index.try_emplace(RecordKey{change.lease->id, chunk.device, chunk.reason});
  if (added) {
    it->second = state_->Draw<QuarantineId>();
    QuarantineRecord& opened = state_->records[it->second];
    opened.id = it->second;
    opened.generation = state_->Draw<Generation>();
    opened.reason = chunk.reason;
    opened.lease = change.lease;
    opened.device = chunk.device;
    opened.detail = std::string(detail_);
    opened.since = now_;
  }
  QuarantineRecord& record = state_->records[it->second];
  if (change.evidence != Evidence{}) record.evidence.Add(change.evidence);
  record.bytes += chunk.bytes;
  ++record.chunks;
}

void Settlement::LeaveRecord(const Lease& lease, const Chunk& old) {
  const auto it = state_->record_index.find({lease.id, old.device, old.reason});
  const auto record = state_->records.find(it->second);
  record->second.bytes -= old.bytes;
  if (--record->second.chunks > 0) return;
  state_->records.erase(record);
  state_->record_index.erase(it);
}

}  // namespace gpumem::core::internal
