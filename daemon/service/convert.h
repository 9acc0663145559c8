// daemon/service/convert.h: rows of the books as messages of the wire contract.
//
// Pure functions, thread-safe. The core's enums have the numbers of their twins on the wire; convert.cc asserts it, so
// a cast is the conversion. May call: core's types, manager's values, proto.
#ifndef GPUMEM_DAEMON_SERVICE_CONVERT_H_
#define GPUMEM_DAEMON_SERVICE_CONVERT_H_

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <array>
#include <string>

#include "absl/time/time.h"
#include "daemon/core/books.h"
#include "daemon/manager/ports.h"
#include "gpumem/v1/admin.pb.h"
#include "gpumem/v1/memory.pb.h"
#include "gpumem/v1/types.pb.h"

namespace gpumem::service {

void ToProto(const core::DeviceRow& row, v1::Device* out);
void ToProto(const core::TenantRow& row, v1::Tenant* out);
void ToProto(const core::SessionRow& row, v1::Session* out);  // all but client_version, which the books do not know
void ToProto(const core::HolderRow& row, v1::Holder* out);
void ToProto(const core::LeaseRow& row, v1::Lease* out);
void ToProto(const core::SegmentRow& row, v1::Segment* out);
void ToProto(const core::QuarantineRow& row, v1::QuarantineRecord* out);
void ToProto(const core::ChunkView& chunk, v1::Chunk* out);
void ToProto(const core::Manifest& manifest, v1::Manifest* out);
void ToProto(const manager::Event& event, v1::Event* out);

// A time before the epoch or after year 9999 (InfinitePast, say) is left unset, as protobuf's Timestamp cannot hold it.
void ToProto(absl::Time time, google::protobuf::Timestamp* out);
void ToProto(absl::Duration duration, google::protobuf::Duration* out);

// 32 lower-case hex digits: the form of `instance` in every reply.
std::string InstanceText(const std::array<std::uint8_t, 16>& instance);

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_CONVERT_H_
