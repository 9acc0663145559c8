// daemon/service/status_map.cc: see status_map.h.
#include "daemon/service/status_map.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace gpumem::service {
namespace {

using core::Reason;

grpc::StatusCode CodeOf(Reason reason) {
  switch (reason) {
#define GPUMEM_REASON(name, number, code, retry, text) \
  case Reason::name:                                   \
    return grpc::StatusCode::code;
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  }
  return grpc::StatusCode::INTERNAL;
}

// Length of the UTF-8 character at the front of `text`; 0 when there is none (RFC 3629: no overlong forms, surrogates
// or values above U+10FFFF).
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f)) return 0;
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f)) return 0;
  return length;
}

}  // namespace

std::string CleanUtf8(std::string_view text, std::size_t most) {
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = Utf8Length(text);
    if (clean.size() + std::max<std::size_t>(length, 1) > most) break;
    if (length == 0) {
      clean.push_back('?');
    } else {
      clean.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return clean;
}

std::string_view RetryOf(Reason reason) {
  enum class Retry { NO, LATER, NEW };
  Retry retry = Retry::NO;
  switch (reason) {
#define GPUMEM_REASON(name, number, code, retry_kind, text) \
  case Reason::name:                                        \
    retry = Retry::retry_kind;                              \
    break;
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  }
  return retry == Retry::NO ? "no" : retry == Retry::LATER ? "later" : "new";
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const Reason reason = core::ReasonOf(status);
  google::rpc::ErrorInfo info;
  info.set_reason(core::ToString(reason));
  info.set_domain(std::string(kErrorDomain));
  auto& metadata = *info.mutable_metadata();
  for (const auto& [key, value] : core::DetailsOf(status)) {
    if (metadata.size() + 1 >= kMaxMetadataEntries) break;
    metadata[CleanUtf8(key, kMaxMetadataValueBytes)] = CleanUtf8(value, kMaxMetadataValueBytes);
  }
  metadata["retry"] = std::string(RetryOf(reason));

  const std::string message = CleanUtf8(std::string(status.message()), kMaxMessageBytes);
  google::rpc::Status details;
  details.set_code(CodeOf(reason));
  details.set_message(message);
  details.add_details()->PackFrom(info);
  return grpc::Status(CodeOf(reason), message, details.SerializeAsString());
}

std::optional<WireError> ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (!any.UnpackTo(&info)) continue;
    return WireError{info.reason(), info.domain(), {info.metadata().begin(), info.metadata().end()}};
  }
  return std::nullopt;
}

}  // namespace gpumem::service
