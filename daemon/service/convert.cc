// daemon/service/convert.cc: see convert.h.
#include "daemon/service/convert.h"

#include <type_traits>
#include <variant>

#include "daemon/service/status_map.h"

namespace gpumem::service {
namespace {

// A process's name is at most 15 bytes (TASK_COMM_LEN); everything else is the daemon's own text.
constexpr std::size_t kMaxTextBytes = 2048;

// One line for each value that both sides have, and one for the size of each enum, so that a value added on one side
// alone does not compile.
#define GPUMEM_SAME(core_value, wire_value) \
  static_assert(static_cast<int>(core_value) == static_cast<int>(wire_value), #core_value " is not " #wire_value)
GPUMEM_SAME(core::Role::kWeights, v1::ROLE_WEIGHTS);
GPUMEM_SAME(core::Role::kKvCache, v1::ROLE_KV_CACHE);
GPUMEM_SAME(core::Role::kWorkspace, v1::ROLE_WORKSPACE);
GPUMEM_SAME(core::Role::kCommunication, v1::ROLE_COMMUNICATION);
GPUMEM_SAME(core::Role::kDraftModel, v1::ROLE_DRAFT_MODEL);
GPUMEM_SAME(core::Role::kOther, v1::ROLE_OTHER);
GPUMEM_SAME(core::Role::kOther, v1::Role_MAX);

GPUMEM_SAME(core::DeviceState::kStarting, v1::DEVICE_STATE_STARTING);
GPUMEM_SAME(core::DeviceState::kHealthy, v1::DEVICE_STATE_HEALTHY);
GPUMEM_SAME(core::DeviceState::kSuspect, v1::DEVICE_STATE_SUSPECT);
GPUMEM_SAME(core::DeviceState::kLost, v1::DEVICE_STATE_LOST);
GPUMEM_SAME(core::DeviceState::kLost, v1::DeviceState_MAX);

GPUMEM_SAME(core::SessionState::kLive, v1::SESSION_STATE_LIVE);
GPUMEM_SAME(core::SessionState::kFenced, v1::SESSION_STATE_FENCED);
GPUMEM_SAME(core::SessionState::kFenced, v1::SessionState_MAX);

GPUMEM_SAME(core::LeaseKind::kPrivate, v1::LEASE_KIND_PRIVATE);
GPUMEM_SAME(core::LeaseKind::kSegment, v1::LEASE_KIND_SEGMENT);
GPUMEM_SAME(core::LeaseKind::kSegment, v1::LeaseKind_MAX);

GPUMEM_SAME(core::ChunkState::kReserved, v1::CHUNK_STATE_RESERVED);
GPUMEM_SAME(core::ChunkState::kUndelivered, v1::CHUNK_STATE_UNDELIVERED);
GPUMEM_SAME(core::ChunkState::kLive, v1::CHUNK_STATE_LIVE);
GPUMEM_SAME(core::ChunkState::kDraining, v1::CHUNK_STATE_DRAINING);
GPUMEM_SAME(core::ChunkState::kQuarantined, v1::CHUNK_STATE_QUARANTINED);
GPUMEM_SAME(core::ChunkState::kSuspect, v1::CHUNK_STATE_SUSPECT);
GPUMEM_SAME(core::ChunkState::kDeviceLost, v1::CHUNK_STATE_DEVICE_LOST);
GPUMEM_SAME(core::ChunkState::kReleased, v1::CHUNK_STATE_RELEASED);
GPUMEM_SAME(core::ChunkState::kReleased, v1::ChunkState_MAX);

GPUMEM_SAME(core::Outcome::kUnmapped, v1::OUTCOME_UNMAPPED);
GPUMEM_SAME(core::Outcome::kStillMapped, v1::OUTCOME_STILL_MAPPED);
GPUMEM_SAME(core::Outcome::kUnknown, v1::OUTCOME_UNKNOWN);
GPUMEM_SAME(core::Outcome::kUnknown, v1::Outcome_MAX);

GPUMEM_SAME(core::SegmentState::kBuilding, v1::SEGMENT_STATE_BUILDING);
GPUMEM_SAME(core::SegmentState::kSealed, v1::SEGMENT_STATE_SEALED);
GPUMEM_SAME(core::SegmentState::kLost, v1::SEGMENT_STATE_LOST);
GPUMEM_SAME(core::SegmentState::kLost, v1::SegmentState_MAX);

GPUMEM_SAME(core::QuarantineReason::kWriterDied, v1::QUARANTINE_REASON_WRITER_DIED);
GPUMEM_SAME(core::QuarantineReason::kWriterFaulted, v1::QUARANTINE_REASON_WRITER_FAULTED);
GPUMEM_SAME(core::QuarantineReason::kOutcomeUnknown, v1::QUARANTINE_REASON_OUTCOME_UNKNOWN);
GPUMEM_SAME(core::QuarantineReason::kReleaseFailed, v1::QUARANTINE_REASON_RELEASE_FAILED);
GPUMEM_SAME(core::QuarantineReason::kRollbackFailed, v1::QUARANTINE_REASON_ROLLBACK_FAILED);
GPUMEM_SAME(core::QuarantineReason::kDeviceLost, v1::QUARANTINE_REASON_DEVICE_LOST);
GPUMEM_SAME(core::QuarantineReason::kKeptFdMissing, v1::QUARANTINE_REASON_KEPT_FD_MISSING);
GPUMEM_SAME(core::QuarantineReason::kOperator, v1::QUARANTINE_REASON_OPERATOR);
GPUMEM_SAME(core::QuarantineReason::kKeptFdUnknown, v1::QUARANTINE_REASON_KEPT_FD_UNKNOWN);
GPUMEM_SAME(core::QuarantineReason::kKeptFdUnknown, v1::QuarantineReason_MAX);

GPUMEM_SAME(core::Evidence::kDriverCreated, v1::EVIDENCE_DRIVER_CREATED);
GPUMEM_SAME(core::Evidence::kDriverFailed, v1::EVIDENCE_DRIVER_FAILED);
GPUMEM_SAME(core::Evidence::kImportAcknowledged, v1::EVIDENCE_IMPORT_ACKNOWLEDGED);
GPUMEM_SAME(core::Evidence::kOwnerUnmapped, v1::EVIDENCE_OWNER_UNMAPPED);
GPUMEM_SAME(core::Evidence::kOwnerUnknown, v1::EVIDENCE_OWNER_UNKNOWN);
GPUMEM_SAME(core::Evidence::kFaultReported, v1::EVIDENCE_FAULT_REPORTED);
GPUMEM_SAME(core::Evidence::kSocketClosed, v1::EVIDENCE_SOCKET_CLOSED);
GPUMEM_SAME(core::Evidence::kPidfdReadable, v1::EVIDENCE_PIDFD_READABLE);
GPUMEM_SAME(core::Evidence::kWitnessClosed, v1::EVIDENCE_WITNESS_CLOSED);
GPUMEM_SAME(core::Evidence::kArenaClosed, v1::EVIDENCE_ARENA_CLOSED);
GPUMEM_SAME(core::Evidence::kArenaEnded, v1::EVIDENCE_ARENA_ENDED);
GPUMEM_SAME(core::Evidence::kKeeperStored, v1::EVIDENCE_KEEPER_STORED);
GPUMEM_SAME(core::Evidence::kKeeperDeleted, v1::EVIDENCE_KEEPER_DELETED);
GPUMEM_SAME(core::Evidence::kKeeperEnded, v1::EVIDENCE_KEEPER_ENDED);
GPUMEM_SAME(core::Evidence::kReaderDetached, v1::EVIDENCE_READER_DETACHED);
GPUMEM_SAME(core::Evidence::kReaderDetached, v1::Evidence_MAX);
#undef GPUMEM_SAME

std::string Text(std::string_view text) { return CleanUtf8(text, kMaxTextBytes); }

template <typename Field>
void AddEvidence(core::EvidenceSet set, Field* field) {
  for (const core::Evidence e : set.ToVector()) field->Add(static_cast<int>(e));
}

struct KindWriter {
  v1::Event* out;

  void operator()(const manager::SessionFencedEvent& e) const {
    auto* fenced = out->mutable_session_fenced();
    fenced->set_session_id(e.session.value());
    fenced->set_reason(static_cast<v1::QuarantineReason>(e.reason));
    fenced->set_quarantined_bytes(e.quarantined.value());
    fenced->set_detail(Text(e.detail));
  }
  void operator()(const manager::SessionEndedEvent& e) const {
    out->mutable_session_ended()->set_session_id(e.session.value());
    out->mutable_session_ended()->set_settled_bytes(e.settled.value());
  }
  void operator()(const manager::DeviceChangedEvent& e) const {
    auto* changed = out->mutable_device_changed();
    changed->set_device_uuid(e.device.ToString());
    changed->set_state(static_cast<v1::DeviceState>(e.state));
    changed->set_generation(e.generation.value());
    changed->set_detail(Text(e.detail));
  }
  void operator()(const manager::SegmentChangedEvent& e) const {
    auto* changed = out->mutable_segment_changed();
    changed->set_name(Text(e.name));
    changed->set_state(static_cast<v1::SegmentState>(e.state));
    changed->set_removed(e.removed);
  }
  void operator()(const manager::DaemonStoppingEvent& e) const {
    ToProto(e.grace, out->mutable_daemon_stopping()->mutable_grace());
  }
};

// Sets a Timestamp field only when the time fits one.
template <typename Message, typename Mutable>
void SetTime(absl::Time time, Message* out, Mutable field) {
  if (time >= absl::UnixEpoch() && time < absl::FromUnixSeconds(253402300800)) ToProto(time, (out->*field)());
}

}  // namespace

void ToProto(absl::Time time, google::protobuf::Timestamp* out) {
  const std::int64_t seconds = absl::ToUnixSeconds(time);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

void ToProto(absl::Duration duration, google::protobuf::Duration* out) {
  const std::int64_t seconds = absl::ToInt64Seconds(duration);
  out->set_seconds(seconds);
  out->set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(duration - absl::Seconds(seconds))));
}

std::string InstanceText(const std::array<std::uint8_t, 16>& instance) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : instance) {
    text.push_back(kHex[byte >> 4]);
    text.push_back(kHex[byte & 0xf]);
  }
  return text;
}

void ToProto(const core::DeviceRow& row, v1::Device* out) {
  out->set_uuid(row.device.ToString());
  out->set_name(Text(row.name));
  out->set_state(static_cast<v1::DeviceState>(row.state));
  out->set_generation(row.generation.value());
  out->set_granularity_bytes(row.granularity.value());
  out->set_capacity_bytes(row.capacity.value());
  out->set_headroom_bytes(row.headroom.value());
  out->set_charged_bytes(row.charged.value());
  out->set_physical_bytes(row.physical.value());
  out->set_mapped_read_only_bytes(row.mapped_read_only.value());
  out->set_mapped_read_write_bytes(row.mapped_read_write.value());
  out->set_unattributed_bytes(row.unattributed.value());
  out->set_quarantined_bytes(row.quarantined.value());
  out->set_draining_bytes(row.draining.value());
  out->set_available_bytes(row.available.value());
  out->set_detail(Text(row.detail));
}

void ToProto(const core::TenantRow& row, v1::Tenant* out) {
  out->set_name(Text(row.name));
  if (row.limit) out->set_limit_bytes(row.limit->value());
  for (const core::TenantUse& use : row.uses) {
    auto* added = out->add_uses();
    added->set_device_uuid(use.device.ToString());
    added->set_charged_bytes(use.charged.value());
  }
}

void ToProto(const core::SessionRow& row, v1::Session* out) {
  out->set_session_id(row.session.value());
  out->set_state(static_cast<v1::SessionState>(row.state));
  out->set_pid(row.identity.pid);
  out->set_uid(row.identity.uid);
  out->set_gid(row.identity.gid);
  out->set_comm(Text(row.identity.comm));
  out->set_tenant(Text(row.tenant));
  SetTime(row.since, out, &v1::Session::mutable_since);
  out->set_holders(row.holders);
  out->set_leases(row.leases);
  out->set_attachments(row.attachments);
  out->set_charged_bytes(row.charged.value());
  out->set_mapped_read_only_bytes(row.mapped_read_only.value());
  out->set_mapped_read_write_bytes(row.mapped_read_write.value());
  out->set_fence_detail(Text(row.fence_detail));
  AddEvidence(row.evidence, out->mutable_evidence());
  AddEvidence(row.waiting_for, out->mutable_waiting_for());
}

void ToProto(const core::HolderRow& row, v1::Holder* out) {
  out->set_holder_id(row.holder.value());
  out->set_session_id(row.session.value());
  out->set_name(Text(row.name));
  out->set_role(static_cast<v1::Role>(row.role));
  out->set_tenant(Text(row.tenant));
  out->set_leases(row.leases);
  out->set_attachments(row.attachments);
  out->set_charged_bytes(row.charged.value());
  out->set_mapped_read_only_bytes(row.mapped_read_only.value());
  out->set_mapped_read_write_bytes(row.mapped_read_write.value());
  out->set_pid(row.pid);
}

void ToProto(const core::LeaseRow& row, v1::Lease* out) {
  out->set_lease_id(row.lease.value());
  out->set_kind(static_cast<v1::LeaseKind>(row.kind));
  out->set_session_id(row.session.value());
  out->set_holder_id(row.holder.value());
  out->set_holder(Text(row.holder_name));
  out->set_tenant(Text(row.tenant));
  out->set_segment(Text(row.segment));
  out->set_asked_bytes(row.asked.value());
  out->set_charged_bytes(row.charged.value());
  for (const core::LeaseRow::Group& group : row.groups) {
    auto* added = out->add_chunks();
    added->set_device_uuid(group.device.ToString());
    added->set_state(static_cast<v1::ChunkState>(group.state));
    added->set_count(group.count);
    added->set_bytes(group.bytes.value());
  }
  SetTime(row.since, out, &v1::Lease::mutable_since);
}

void ToProto(const core::SegmentRow& row, v1::Segment* out) {
  out->set_name(Text(row.name));
  out->set_state(static_cast<v1::SegmentState>(row.state));
  out->set_lease_id(row.lease.value());
  out->set_generation(row.generation.value());
  out->set_tenant(Text(row.tenant));
  out->set_bytes(row.bytes.value());
  out->set_chunks(row.chunks);
  out->set_tensors(row.tensors);
  out->set_readers(row.readers);
  SetTime(row.sealed_at, out, &v1::Segment::mutable_sealed_at);
}

void ToProto(const core::QuarantineRow& row, v1::QuarantineRecord* out) {
  out->set_record_id(row.record.value());
  out->set_generation(row.generation.value());
  out->set_reason(static_cast<v1::QuarantineReason>(row.reason));
  out->set_lease_id(row.lease.value());
  out->set_device_uuid(row.device.ToString());
  out->set_bytes(row.bytes.value());
  out->set_chunks(row.chunks);
  out->set_session_id(row.session.value());
  out->set_pid(row.pid);
  out->set_holder(Text(row.holder));
  out->set_role(static_cast<v1::Role>(row.role));
  out->set_tenant(Text(row.tenant));
  out->set_segment(Text(row.segment));
  out->set_detail(Text(row.detail));
  SetTime(row.since, out, &v1::QuarantineRecord::mutable_since);
  AddEvidence(row.evidence, out->mutable_evidence());
  AddEvidence(row.waiting_for, out->mutable_waiting_for());
}

void ToProto(const core::ChunkView& chunk, v1::Chunk* out) {
  out->set_chunk_id(chunk.chunk.value());
  out->set_generation(chunk.generation.value());
  out->set_device_uuid(chunk.device.ToString());
  out->set_bytes(chunk.bytes.value());
  out->set_state(static_cast<v1::ChunkState>(chunk.state));
}

void ToProto(const core::Manifest& manifest, v1::Manifest* out) {
  for (const core::TensorInfo& tensor : manifest) {
    auto* added = out->add_tensors();
    added->set_name(tensor.name);
    added->set_dtype(tensor.dtype);
    for (const std::uint64_t extent : tensor.shape) added->add_shape(extent);
    added->set_offset_bytes(tensor.offset.value());
    added->set_size_bytes(tensor.size.value());
  }
}

void ToProto(const manager::Event& event, v1::Event* out) {
  out->set_sequence(event.sequence);
  SetTime(event.at, out, &v1::Event::mutable_at);
  std::visit(KindWriter{out}, event.kind);
}

}  // namespace gpumem::service
