// client/memctl/render.h: replies of the daemon as tables and as JSON. Pure: no gRPC, no clock, no terminal. Calls the
// generated messages, nlohmann-json and format.h.
//
// JSON: field names are the proto's (proto/gpumem/v1/admin.proto, types.proto), so they are as stable as the wire
// contract. Every field is there, also when it is zero. Sizes are exact bytes, times are RFC 3339 in UTC or null, enums
// are the lower-case words of the docs ("kv-cache", "writer-faulted", "pidfd-readable"; "" when unset), optional fields
// that are unset are null. Bytes that are no UTF-8 become U+FFFD.
#ifndef GPUMEM_CLIENT_MEMCTL_RENDER_H_
#define GPUMEM_CLIENT_MEMCTL_RENDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/v1/admin.pb.h"
#include "gpumem/v1/types.pb.h"

namespace gpumem::memctl {

// Any message, over `indent` spaces (-1: one line). `next_page_token` is left out: lists are whole by then.
std::string ToJson(const google::protobuf::Message& message, int indent);

// The word of an enum value: "ROLE_KV_CACHE" → "kv-cache". "" for 0 and "unknown-N" for a number that this version does
// not know.
std::string Word(const google::protobuf::EnumDescriptor* type, int number);

// Tables: what a person looks for; JSON has every field. Columns that are nearly always empty come only when they are
// not. `now_s` is the wall clock in seconds since the epoch; ages are measured against it.
std::string ToTable(const v1::GetStatusResponse& status, std::int64_t now_s);
std::string ToTable(const v1::ListDevicesResponse& devices, std::int64_t now_s);
std::string ToTable(const v1::ListSessionsResponse& sessions, std::int64_t now_s);
std::string ToTable(const v1::ListHoldersResponse& holders, std::int64_t now_s);
std::string ToTable(const v1::ListLeasesResponse& leases, std::int64_t now_s);
std::string ToTable(const v1::ListAllSegmentsResponse& segments, std::int64_t now_s);
std::string ToTable(const v1::ListQuarantineResponse& quarantine, std::int64_t now_s);

// One line of `memctl events`, without '\n'.
std::string EventLine(const v1::Event& event);

// An error of the daemon for stderr, one line with '\n': its message, the reason in brackets, and what a retry can do.
// `retry`: "no", "later", "new" or "" when not told.
std::string ErrorLine(const std::string& message, const std::string& reason, const std::string& retry);

}  // namespace gpumem::memctl

#endif  // GPUMEM_CLIENT_MEMCTL_RENDER_H_
