// daemon/core/types.cc: the words of the enums.
#include "daemon/core/types.h"

namespace gpumem::core {

const char* ToString(Role role) {
  switch (role) {
    case Role::kWeights:
      return "weights";
    case Role::kKvCache:
      return "kv-cache";
    case Role::kWorkspace:
      return "workspace";
    case Role::kCommunication:
      return "communication";
    case Role::kDraftModel:
      return "draft-model";
    case Role::kOther:
      return "other";
  }
  return "unknown";
}

const char* ToString(DeviceState state) {
  switch (state) {
    case DeviceState::kStarting:
      return "starting";
    case DeviceState::kHealthy:
      return "healthy";
    case DeviceState::kSuspect:
      return "suspect";
    case DeviceState::kLost:
      return "lost";
  }
  return "unknown";
}

const char* ToString(SessionState state) {
  switch (state) {
    case SessionState::kLive:
      return "live";
    case SessionState::kFenced:
      return "fenced";
  }
  return "unknown";
}

const char* ToString(LeaseKind kind) {
  switch (kind) {
    case LeaseKind::kPrivate:
      return "private";
    case LeaseKind::kSegment:
      return "segment";
  }
  return "unknown";
}

const char* ToString(ChunkState state) {
  switch (state) {
    case ChunkState::kReserved:
      return "reserved";
    case ChunkState::kUndelivered:
      return "undelivered";
    case ChunkState::kLive:
      return "live";
    case ChunkState::kDraining:
      return "draining";
    case ChunkState::kQuarantined:
      return "quarantined";
    case ChunkState::kSuspect:
      return "suspect";
    case ChunkState::kDeviceLost:
      return "device-lost";
    case ChunkState::kReleased:
      return "released";
  }
  return "unknown";
}

const char* ToString(Outcome outcome) {
  switch (outcome) {
    case Outcome::kUnmapped:
      return "unmapped";
    case Outcome::kStillMapped:
      return "still-mapped";
    case Outcome::kUnknown:
      return "unknown";
  }
  return "unknown";
}

const char* ToString(SegmentState state) {
  switch (state) {
    case SegmentState::kBuilding:
      return "building";
    case SegmentState::kSealed:
      return "sealed";
    case SegmentState::kLost:
      return "lost";
  }
  return "unknown";
}

const char* ToString(QuarantineReason reason) {
  switch (reason) {
    case QuarantineReason::kWriterDied:
      return "writer-died";
    case QuarantineReason::kWriterFaulted:
      return "writer-faulted";
    case QuarantineReason::kOutcomeUnknown:
      return "outcome-unknown";
    case QuarantineReason::kReleaseFailed:
      return "release-failed";
    case QuarantineReason::kRollbackFailed:
      return "rollback-failed";
    case QuarantineReason::kDeviceLost:
      return "device-lost";
    case QuarantineReason::kKeptFdMissing:
      return "kept-fd-missing";
    case QuarantineReason::kOperator:
      return "operator";
    case QuarantineReason::kKeptFdUnknown:
      return "kept-fd-unknown";
  }
  return "unknown";
}

const char* ToString(Evidence evidence) {
  switch (evidence) {
    case Evidence::kDriverCreated:
      return "driver-created";
    case Evidence::kDriverFailed:
      return "driver-failed";
    case Evidence::kImportAcknowledged:
      return "import-acknowledged";
    case Evidence::kOwnerUnmapped:
      return "owner-unmapped";
    case Evidence::kOwnerUnknown:
      return "owner-unknown";
    case Evidence::kFaultReported:
      return "fault-reported";
    case Evidence::kSocketClosed:
      return "socket-closed";
    case Evidence::kPidfdReadable:
      return "pidfd-readable";
    case Evidence::kWitnessClosed:
      return "witness-closed";
    case Evidence::kArenaClosed:
      return "arena-closed";
    case Evidence::kArenaEnded:
      return "arena-ended";
    case Evidence::kKeeperStored:
      return "keeper-stored";
    case Evidence::kKeeperDeleted:
      return "keeper-deleted";
    case Evidence::kKeeperEnded:
      return "keeper-ended";
    case Evidence::kReaderDetached:
      return "reader-detached";
  }
  return "none";
}

}  // namespace gpumem::core
