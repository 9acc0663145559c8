// daemon/core/rows.cc: snapshots of the books for operators and metrics.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/state.h"

namespace gpumem::core {

using internal::kArenaRef;
using internal::kKeeperRef;
using internal::kWorkerRef;
using internal::State;

namespace {

// Up to `most` rows of what comes after `after` in an ordered map of unique_ptr.
template <typename Row, typename Map, typename Key, typename MakeRow>
std::vector<Row> Page(const Map& map, Key after, std::uint32_t most, MakeRow make) {
  std::vector<Row> rows;
  for (auto it = map.upper_bound(after); it != map.end() && rows.size() < most; ++it) rows.push_back(make(it->second));
  return rows;
}

DeviceRow MakeDevice(const internal::Device& device) {
  const auto& total = device.account.total;
  DeviceRow row;
  row.device = device.spec.device;
  row.name = device.spec.name;
  row.state = device.state;
  row.generation = device.generation;
  row.granularity = device.spec.granularity;
  row.capacity = device.spec.capacity;
  row.headroom = device.spec.headroom;
  row.charged = Bytes(total.charged);
  row.physical = Bytes(total.physical);
  row.mapped_read_only = Bytes(total.read_only);
  row.mapped_read_write = Bytes(total.read_write);
  row.unattributed = device.unattributed;
  row.quarantined = Bytes(total.quarantined);
  row.draining = Bytes(total.draining);
  // What can be granted: nothing when the device is fuller than the books would fill it.
  const Bytes kept_free = std::max(device.spec.headroom, device.unattributed);
  const Bytes grantable = CheckedSub(device.spec.capacity, kept_free).value_or(Bytes());
  row.available = CheckedSub(grantable, row.charged).value_or(Bytes());
  row.detail = device.detail;
  return row;
}

// What the end of `chunk` still waits for.
void AddWaiting(const internal::Lease& lease, const internal::Chunk& chunk, EvidenceSet* waiting) {
  if (chunk.refs & kArenaRef) waiting->Add(Evidence::kArenaClosed);
  if (chunk.refs & kKeeperRef) waiting->Add(Evidence::kKeeperDeleted);
  const bool of_reader = lease.session == nullptr;
  if (of_reader && (chunk.refs & kWorkerRef)) waiting->Add(Evidence::kReaderDetached);
  if (of_reader || ((chunk.refs & kWorkerRef) == 0 && chunk.ending)) return;
  for (const Evidence fact : {Evidence::kPidfdReadable, Evidence::kWitnessClosed}) {
    if (!lease.session->evidence.Has(fact)) waiting->Add(fact);
  }
}

EvidenceSet WaitingFor(const State& state, const internal::Session& session) {
  EvidenceSet waiting;
  if (session.state == SessionState::kLive) return waiting;
  if (!session.ended) {
    for (const Evidence fact : {Evidence::kPidfdReadable, Evidence::kWitnessClosed}) {
      if (!session.evidence.Has(fact)) waiting.Add(fact);
    }
    return waiting;
  }
  for (const LeaseId id : session.leases) {
    const internal::Lease& lease = *state.FindLease(id);
    for (const internal::Chunk& chunk : lease.chunks) {
      if (chunk.state == ChunkState::kReserved) waiting.Add(Evidence::kDriverCreated);
      if (chunk.state != ChunkState::kReserved && chunk.state != ChunkState::kReleased) {
        AddWaiting(lease, chunk, &waiting);
      }
    }
  }
  return waiting;
}

SessionRow MakeSession(const State& state, const internal::Session& session) {
  SessionRow row;
  row.session = session.id;
  row.state = session.state;
  row.identity = session.identity;
  row.tenant = std::string(Books::kDefaultTenant);
  row.since = session.since;
  row.holders = static_cast<std::uint32_t>(session.holders.size());
  row.leases = static_cast<std::uint32_t>(session.leases.size());
  row.attachments = static_cast<std::uint32_t>(session.attachments.size());
  row.charged = Bytes(session.account.total.charged);
  row.mapped_read_only = Bytes(session.account.total.read_only);
  row.mapped_read_write = Bytes(session.account.total.read_write);
  row.fence_detail = session.fence_detail;
  row.evidence = session.evidence;
  row.waiting_for = WaitingFor(state, session);
  return row;
}

HolderRow MakeHolder(const internal::Holder& holder) {
  HolderRow row;
  row.holder = holder.id;
  row.session = holder.session->id;
  row.name = holder.name;
  row.role = holder.role;
  row.tenant = std::string(Books::kDefaultTenant);
  row.leases = holder.leases;
  row.attachments = holder.attachments;
  row.charged = Bytes(holder.account.total.charged);
  row.mapped_read_only = Bytes(holder.account.total.read_only);
  row.mapped_read_write = Bytes(holder.account.total.read_write);
  row.pid = holder.session->identity.pid;
  return row;
}

void CountInGroup(const DeviceUuid& device, const internal::Chunk& chunk, std::vector<LeaseRow::Group>* groups) {
  auto group = std::find_if(groups->begin(), groups->end(),
                            [&](const LeaseRow::Group& g) { return g.device == device && g.state == chunk.state; });
  if (group == groups->end()) group = groups->insert(group, {device, chunk.state, 0, Bytes()});
  ++group->count;
  group->bytes = Bytes(group->bytes.value() + chunk.bytes);
}

LeaseRow MakeLease(const State& state, const internal::Lease& lease) {
  LeaseRow row;
  row.lease = lease.id;
  row.kind = lease.kind;
  if (lease.session != nullptr) {
    row.session = lease.session->id;
    row.holder = lease.holder->id;
    row.holder_name = lease.holder->name;
  }
  row.tenant = std::string(Books::kDefaultTenant);
  if (lease.segment != nullptr) row.segment = lease.segment->FullName();
  row.asked = lease.asked;
  row.since = lease.since;
  std::uint64_t charged = 0;
  for (const internal::Chunk& chunk : lease.chunks) {
    if (chunk.state == ChunkState::kReleased) continue;
    charged += chunk.bytes;
    CountInGroup(state.devices[chunk.device]->spec.device, chunk, &row.groups);
  }
  row.charged = Bytes(charged);
  return row;
}

QuarantineRow MakeRecord(const State& state, const internal::QuarantineRecord& record) {
  const internal::Lease& lease = *record.lease;
  QuarantineRow row;
  row.record = record.id;
  row.generation = record.generation;
  row.reason = record.reason;
  row.lease = lease.id;
  row.device = state.devices[record.device]->spec.device;
  row.bytes = Bytes(record.bytes);
  row.chunks = record.chunks;
  row.tenant = std::string(Books::kDefaultTenant);
  if (lease.segment != nullptr) row.segment = lease.segment->FullName();
  row.detail = record.detail;
  row.since = record.since;
  row.evidence = record.evidence;
  if (lease.session != nullptr) {
    row.session = lease.session->id;
    row.pid = lease.session->identity.pid;
    row.holder = lease.holder->name;
    row.role = lease.holder->role;
    for (const Evidence fact : lease.session->evidence.ToVector()) row.evidence.Add(fact);
  }
  for (const internal::Chunk& chunk : lease.chunks) {
    if (chunk.state != ChunkState::kQuarantined || chunk.device != record.device || chunk.reason != record.reason) {
      continue;
    }
    AddWaiting(lease, chunk, &row.waiting_for);
  }
  // True of some chunks of the record only: it is not had yet.
  for (const Evidence fact : row.waiting_for.ToVector()) row.evidence.Remove(fact);
  return row;
}

}  // namespace

std::vector<DeviceRow> Books::Devices() const {
  std::vector<DeviceRow> rows;
  rows.reserve(impl_->devices.size());
  for (const auto& device : impl_->devices) rows.push_back(MakeDevice(*device));
  return rows;
}

std::optional<DeviceRow> Books::Device(const DeviceUuid& uuid) const {
  const internal::Device* device = impl_->FindDevice(uuid);
  if (device == nullptr) return std::nullopt;
  return MakeDevice(*device);
}

std::vector<TenantRow> Books::Tenants() const {
  TenantRow row;
  row.name = std::string(kDefaultTenant);
  row.limit = impl_->tenant_limit;
  for (const auto& device : impl_->devices) {
    row.uses.push_back({device->spec.device, Bytes(device->tenant.total.charged)});
  }
  return {row};
}

Counts Books::Count() const {
  Counts counts;
  counts.sessions_fenced = impl_->sessions_fenced;
  counts.sessions_live = impl_->sessions.size() - impl_->sessions_fenced;
  counts.leases = impl_->leases.size();
  counts.segments = impl_->segments.size();
  counts.quarantine_records = impl_->records.size();
  std::uint64_t quarantined = 0;  // charges of all devices together fit: see AddAuthority and AdoptUnknownKept
  for (const auto& device : impl_->devices) quarantined += device->account.total.quarantined;
  counts.quarantined = Bytes(quarantined);
  return counts;
}

std::vector<SessionRow> Books::Sessions(SessionId after, std::uint32_t most) const {
  return Page<SessionRow>(impl_->sessions, after, most,
                          [this](const auto& session) { return MakeSession(*impl_, *session); });
}

std::vector<HolderRow> Books::Holders(HolderId after, std::uint32_t most) const {
  return Page<HolderRow>(impl_->holders, after, most, [](const auto& holder) { return MakeHolder(*holder); });
}

std::vector<LeaseRow> Books::Leases(LeaseId after, std::uint32_t most) const {
  return Page<LeaseRow>(impl_->leases, after, most, [this](const auto& lease) { return MakeLease(*impl_, *lease); });
}

std::vector<QuarantineRow> Books::Quarantine(QuarantineId after, std::uint32_t most) const {
  return Page<QuarantineRow>(impl_->records, after, most,
                             [this](const auto& record) { return MakeRecord(*impl_, record); });
}

// Paths that begin with the part of `prefix` before any '@' stand together in the order of paths.
std::vector<SegmentRow> Books::Segments(std::string_view prefix) const {
  const std::string path(prefix.substr(0, prefix.find('@')));
  std::vector<SegmentRow> rows;
  for (auto it = impl_->segments.lower_bound(path); it != impl_->segments.end(); ++it) {
    if (!absl::StartsWith(it->first, path)) break;
    if (absl::StartsWith(it->second->FullName(), AbslView(prefix))) rows.push_back(impl_->Row(*it->second));
  }
  return rows;
}

}  // namespace gpumem::core
