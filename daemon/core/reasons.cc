// daemon/core/reasons.cc: reasons as payloads of absl::Status.
//
// The reason is one payload (its number in decimal); each detail is one payload whose type URL ends in the detail's
// key. Payloads never leave the daemon: daemon/service reads them with ReasonOf and DetailsOf.
#include "daemon/core/reasons.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/core/format.h"

namespace gpumem::core {
namespace {

constexpr absl::string_view kReasonUrl = "gpumem/reason";
constexpr absl::string_view kDetailUrl = "gpumem/detail/";

// The table's words for gRPC's canonical codes.
namespace codes {
constexpr absl::StatusCode INVALID_ARGUMENT = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode NOT_FOUND = absl::StatusCode::kNotFound;
constexpr absl::StatusCode UNAUTHENTICATED = absl::StatusCode::kUnauthenticated;
constexpr absl::StatusCode PERMISSION_DENIED = absl::StatusCode::kPermissionDenied;
constexpr absl::StatusCode FAILED_PRECONDITION = absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode ABORTED = absl::StatusCode::kAborted;
constexpr absl::StatusCode ALREADY_EXISTS = absl::StatusCode::kAlreadyExists;
constexpr absl::StatusCode DATA_LOSS = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode RESOURCE_EXHAUSTED = absl::StatusCode::kResourceExhausted;
constexpr absl::StatusCode INTERNAL = absl::StatusCode::kInternal;
constexpr absl::StatusCode UNAVAILABLE = absl::StatusCode::kUnavailable;
constexpr absl::StatusCode DEADLINE_EXCEEDED = absl::StatusCode::kDeadlineExceeded;
constexpr absl::StatusCode CANCELLED = absl::StatusCode::kCancelled;
}  // namespace codes

absl::StatusCode CodeOf(Reason reason) {
  switch (reason) {
#define GPUMEM_REASON(name, number, code, retry, text) \
  case Reason::name:                                   \
    return codes::code;
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  }
  return absl::StatusCode::kInternal;
}

bool IsKnown(std::uint32_t number) {
  switch (static_cast<Reason>(number)) {
#define GPUMEM_REASON(name, num, code, retry, text) \
  case Reason::name:                                \
    return true;
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  }
  return false;
}

}  // namespace

const char* ToString(Reason reason) {
  switch (reason) {
#define GPUMEM_REASON(name, number, code, retry, text) \
  case Reason::name:                                   \
    return #name;
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  }
  return "INTERNAL";
}

absl::Status Error(Reason reason, std::string_view message, const ErrorDetails& details) {
  absl::Status status(CodeOf(reason), AbslView(message));
  status.SetPayload(kReasonUrl, absl::Cord(absl::StrCat(static_cast<std::uint32_t>(reason))));
  for (const auto& [key, value] : details) status.SetPayload(absl::StrCat(kDetailUrl, key), absl::Cord(value));
  return status;
}

Reason ReasonOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonUrl);
  std::uint32_t number = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &number) || !IsKnown(number)) return Reason::INTERNAL;
  return static_cast<Reason>(number);
}

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details;
  status.ForEachPayload([&details](absl::string_view url, const absl::Cord& value) {
    if (absl::StartsWith(url, kDetailUrl))
      details.emplace(std::string(url.substr(kDetailUrl.size())), std::string(value));
  });
  return details;
}

}  // namespace gpumem::core
