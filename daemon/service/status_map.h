// daemon/service/status_map.h: the one place where the daemon's errors become gRPC's, and back for tests and tools.
//
// On the wire an error is a gRPC status whose binary details (grpc-status-details-bin) are a google.rpc.Status with one
// google.rpc.ErrorInfo: reason = the name in proto/gpumem/v1/reasons.def, domain = "gpumem", metadata = the numbers of
// the error and "retry" (no, later, new). Thread-safe: pure functions. May call: core's reasons, grpc++, proto.
#ifndef GPUMEM_DAEMON_SERVICE_STATUS_MAP_H_
#define GPUMEM_DAEMON_SERVICE_STATUS_MAP_H_

#include <grpcpp/support/status.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "daemon/core/reasons.h"

namespace gpumem::service {

inline constexpr std::string_view kErrorDomain = "gpumem";

// Status and details travel as HTTP/2 trailers, and peers refuse more than 8 KiB of those by default. So a message is
// cut at this many bytes, a metadata value at the next number, and entries past the last are left out.
inline constexpr std::size_t kMaxMessageBytes = 1024;
inline constexpr std::size_t kMaxMetadataValueBytes = 200;
inline constexpr std::size_t kMaxMetadataEntries = 12;

// OK stays OK. An error that core::Error() did not make is a defect and travels as INTERNAL with its message.
grpc::Status ToGrpc(const absl::Status& status);

struct WireError {
  std::string reason;
  std::string domain;
  std::map<std::string, std::string> metadata;
};
// The ErrorInfo of a status; nullopt when it has none.
std::optional<WireError> ErrorInfoOf(const grpc::Status& status);

// "no", "later" or "new" (reasons.def).
std::string_view RetryOf(core::Reason reason);

// `text` as valid UTF-8 of at most `most` bytes: protobuf strings must be UTF-8, and a process's name need not be.
// Bytes that are no UTF-8 become '?'; a cut never splits a character.
std::string CleanUtf8(std::string_view text, std::size_t most);

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_STATUS_MAP_H_
