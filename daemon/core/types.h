// daemon/core/types.h: the words of the books as types. No I/O, threads or clock; std and Abseil only.
#ifndef GPUMEM_DAEMON_CORE_TYPES_H_
#define GPUMEM_DAEMON_CORE_TYPES_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/checked.h"
#include "base/device_uuid.h"

namespace gpumem::core {

// A count of bytes. Arithmetic that could wrap returns nullopt; nothing clamps.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(std::uint64_t value) : value_(value) {}
  constexpr std::uint64_t value() const { return value_; }

  friend std::optional<Bytes> CheckedAdd(Bytes a, Bytes b) { return Wrap(gpumem::CheckedAdd(a.value_, b.value_)); }
  friend std::optional<Bytes> CheckedSub(Bytes a, Bytes b) { return Wrap(gpumem::CheckedSub(a.value_, b.value_)); }
  friend std::optional<Bytes> CheckedMul(Bytes a, std::uint64_t n) { return Wrap(gpumem::CheckedMul(a.value_, n)); }
  friend std::optional<Bytes> CheckedRoundUp(Bytes a, Bytes unit) {
    return Wrap(gpumem::CheckedRoundUp(a.value_, unit.value_));
  }
  friend constexpr auto operator<=>(Bytes a, Bytes b) = default;
  friend std::ostream& operator<<(std::ostream& os, Bytes b) { return os << b.value_; }

 private:
  static std::optional<Bytes> Wrap(std::optional<std::uint64_t> v) {
    return v ? std::optional<Bytes>(Bytes(*v)) : std::nullopt;
  }
  std::uint64_t value_ = 0;
};

// A never-reused number, typed by what it names. 0 names nothing.
template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(std::uint64_t value) : value_(value) {}
  constexpr std::uint64_t value() const { return value_; }
  constexpr bool valid() const { return value_ != 0; }
  friend constexpr auto operator<=>(Id a, Id b) = default;
  template <typename H>
  friend H AbslHashValue(H h, Id id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, Id id) { return os << id.value_; }

 private:
  std::uint64_t value_ = 0;
};

using SessionId = Id<struct SessionTag>;
using HolderId = Id<struct HolderTag>;
using LeaseId = Id<struct LeaseTag>;
using ChunkId = Id<struct ChunkTag>;
using AttachmentId = Id<struct AttachmentTag>;
using QuarantineId = Id<struct QuarantineTag>;
using RequestId = Id<struct RequestTag>;
using Generation = Id<struct GenerationTag>;

// The enums below have the numbers of their twins in proto/gpumem/v1/types.proto; daemon/service static_asserts it.
enum class Role : std::uint8_t {
  kWeights = 1,
  kKvCache = 2,
  kWorkspace = 3,
  kCommunication = 4,
  kDraftModel = 5,
  kOther = 6
};
enum class DeviceState : std::uint8_t { kStarting = 1, kHealthy = 2, kSuspect = 3, kLost = 4 };
enum class SessionState : std::uint8_t { kLive = 1, kFenced = 2 };
enum class LeaseKind : std::uint8_t { kPrivate = 1, kSegment = 2 };
enum class ChunkState : std::uint8_t {
  kReserved = 1,
  kUndelivered = 2,
  kLive = 3,
  kDraining = 4,
  kQuarantined = 5,
  kSuspect = 6,
  kDeviceLost = 7,
  kReleased = 8,
};
enum class Outcome : std::uint8_t { kUnmapped = 1, kStillMapped = 2, kUnknown = 3 };
enum class SegmentState : std::uint8_t { kBuilding = 1, kSealed = 2, kLost = 3 };
enum class QuarantineReason : std::uint8_t {
  kWriterDied = 1,
  kWriterFaulted = 2,
  kOutcomeUnknown = 3,
  kReleaseFailed = 4,
  kRollbackFailed = 5,
  kDeviceLost = 6,
  kKeptFdMissing = 7,
  kOperator = 8,
  kKeptFdUnknown = 9,
};
enum class Evidence : std::uint8_t {
  kDriverCreated = 1,
  kDriverFailed = 2,
  kImportAcknowledged = 3,
  kOwnerUnmapped = 4,
  kOwnerUnknown = 5,
  kFaultReported = 6,
  kSocketClosed = 7,
  kPidfdReadable = 8,
  kWitnessClosed = 9,
  kArenaClosed = 10,
  kArenaEnded = 11,
  kKeeperStored = 12,
  kKeeperDeleted = 13,
  kKeeperEnded = 14,
  kReaderDetached = 15,
};
enum class Access : std::uint8_t { kNone = 0, kReadOnly = 1, kReadWrite = 2 };

// Lower-case words as memctl, logs and metrics show them, e.g. "kv-cache", "writer-faulted", "pidfd-readable".
const char* ToString(Role);
const char* ToString(DeviceState);
const char* ToString(SessionState);
const char* ToString(LeaseKind);
const char* ToString(ChunkState);
const char* ToString(Outcome);
const char* ToString(SegmentState);
const char* ToString(QuarantineReason);
const char* ToString(Evidence);

// A set of Evidence values (numbers 1..31).
class EvidenceSet {
 public:
  constexpr EvidenceSet() = default;
  constexpr EvidenceSet(std::initializer_list<Evidence> list) {
    for (const Evidence e : list) Add(e);
  }
  constexpr void Add(Evidence e) { bits_ |= Bit(e); }
  constexpr void Remove(Evidence e) { bits_ &= ~Bit(e); }
  constexpr bool Has(Evidence e) const { return (bits_ & Bit(e)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  std::vector<Evidence> ToVector() const {
    std::vector<Evidence> all;
    for (std::uint32_t i = 1; i < 32; ++i) {
      if (bits_ & (1u << i)) all.push_back(static_cast<Evidence>(i));
    }
    return all;
  }
  friend constexpr bool operator==(EvidenceSet a, EvidenceSet b) = default;

 private:
  static constexpr std::uint32_t Bit(Evidence e) { return 1u << static_cast<std::uint32_t>(e); }
  std::uint32_t bits_ = 0;
};

// One move of one chunk through the table of states in docs/ARCHITECTURE.md, as a value.
struct Transition {
  ChunkId chunk;
  LeaseId lease;
  DeviceUuid device;
  Bytes bytes;
  ChunkState from = ChunkState::kReleased;
  ChunkState to = ChunkState::kReleased;
  Evidence evidence{};  // for a first reservation: unset (0)
  friend bool operator==(const Transition&, const Transition&) = default;
};
using Transitions = std::vector<Transition>;

}  // namespace gpumem::core

#endif  // GPUMEM_DAEMON_CORE_TYPES_H_
