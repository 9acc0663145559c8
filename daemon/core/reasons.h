// daemon/core/reasons.h: errors with a stable reason.
//
// Inside the daemon an error is an absl::Status that carries a Reason and, where there are numbers, key/value details
// as payloads. daemon/service maps it, in one place, to a gRPC status with ErrorInfo. The table is
// proto/gpumem/v1/reasons.def.
#ifndef GPUMEM_DAEMON_CORE_REASONS_H_
#define GPUMEM_DAEMON_CORE_REASONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace gpumem::core {

enum class Reason : std::uint32_t {
#define GPUMEM_REASON(name, number, code, retry, text) name = number,
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
};

// "QUOTA" for Reason::QUOTA.
const char* ToString(Reason reason);

using ErrorDetails = std::map<std::string, std::string>;

// A status of the reason's canonical code. `details` are numbers a program can act on: "asked_bytes", "limit_bytes", …
absl::Status Error(Reason reason, std::string_view message, const ErrorDetails& details = {});

// The reason of a status made by Error(); Reason::INTERNAL for any other error.
Reason ReasonOf(const absl::Status& status);
ErrorDetails DetailsOf(const absl::Status& status);

}  // namespace gpumem::core

#endif  // GPUMEM_DAEMON_CORE_REASONS_H_
