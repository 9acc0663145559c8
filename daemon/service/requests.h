// daemon/service/requests.h: what a worker or an operator sent, as plain checked values.
//
// Decoding is the border: beyond it there is no protobuf and nothing that is larger than a named limit. A refusal names
// the field, what came, the limit and what to do, and has changed nothing. What only the books can know (whose lease it
// is, what is free) is not asked here. Pure functions, thread-safe. May call: core, proto.
#ifndef GPUMEM_DAEMON_SERVICE_REQUESTS_H_
#define GPUMEM_DAEMON_SERVICE_REQUESTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/core/books.h"
#include "daemon/manager/manager.h"
#include "gpumem/v1/admin.pb.h"
#include "gpumem/v1/memory.pb.h"

namespace gpumem::service {

// The protocol of control.sock. A worker with another major is refused; fields may be added within one.
inline constexpr std::uint32_t kProtocolMajor = 1;

// A manifest's size on the wire, at most. A tensor's entry takes some 60 bytes, so this is more than the largest
// checkpoints need, and two of them fit a message.
inline constexpr std::uint64_t kMaxManifestBytes = 7ull << 20;
inline constexpr std::size_t kMaxMessageReceiveBytes = 16u << 20;
inline constexpr int kMaxTensorDimensions = 32;
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::size_t kMaxDtypeBytes = 32;

// Texts that are only shown are cut at these, not refused: a report of a fault must not fail for its length.
inline constexpr std::size_t kMaxFaultDetailBytes = 1024;
inline constexpr std::size_t kMaxFaultNameBytes = 128;
inline constexpr std::size_t kMaxVersionBytes = 64;

// Rows on one page of an operator's list.
inline constexpr std::uint32_t kDefaultPageSize = 1000;
inline constexpr std::uint32_t kMaxPageSize = 5000;

struct HolderCall {
  std::uint64_t request_id = 0;
  std::string name;
  core::Role role = core::Role::kOther;
};
absl::StatusOr<HolderCall> Decode(const v1::RegisterHolderRequest& request, const core::Limits& limits);

struct GrantCall {
  std::uint64_t request_id = 0;
  core::HolderId holder;
  std::string segment_name;  // empty for a private lease
  std::vector<core::ChunkSpec> specs;
};
absl::StatusOr<GrantCall> Decode(const v1::AllocateRequest& request, const core::Limits& limits);
absl::StatusOr<GrantCall> Decode(const v1::BuildSegmentRequest& request, const core::Limits& limits);

struct ReleaseCall {
  std::uint64_t request_id = 0;
  core::LeaseId lease;
  std::vector<core::Outcome> outcomes;
};
absl::StatusOr<ReleaseCall> Decode(const v1::ReleaseRequest& request, const core::Limits& limits);

struct SealCall {
  std::uint64_t request_id = 0;
  core::LeaseId lease;
  std::vector<core::Outcome> outcomes;
  core::Manifest manifest;
};
absl::StatusOr<SealCall> Decode(const v1::SealSegmentRequest& request, const core::Limits& limits);

struct AttachCall {
  std::uint64_t request_id = 0;
  core::HolderId holder;
  std::string name;
};
absl::StatusOr<AttachCall> Decode(const v1::AttachSegmentRequest& request, const core::Limits& limits);

struct DetachCall {
  std::uint64_t request_id = 0;
  core::AttachmentId attachment;
  std::vector<core::Outcome> outcomes;
};
absl::StatusOr<DetachCall> Decode(const v1::DetachSegmentRequest& request, const core::Limits& limits);

struct FaultCall {
  std::uint64_t request_id = 0;
  manager::FaultReport report;
};
absl::StatusOr<FaultCall> Decode(const v1::ReportFaultRequest& request);

// OK, VERSION_MISMATCH or DRIVER_MISMATCH.
absl::Status CheckHello(const v1::HelloRequest& request, v1::DriverKind daemon_driver);

// A prefix of segment names: empty, or at most limits.name_bytes.
absl::StatusOr<std::string> DecodePrefix(const std::string& prefix, const core::Limits& limits);
absl::StatusOr<std::string> Decode(const v1::RemoveSegmentRequest& request, const core::Limits& limits);

// 0 asks for the default; more than the largest page gets the largest page.
std::uint32_t PageSize(std::uint32_t asked);

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_REQUESTS_H_
