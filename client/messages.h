// client/messages.h: the messages of gpumem.v1 that a worker sends and reads, as plain structs. protozero and std.
//
// Field numbers are those of proto/gpumem/v1/*.proto; a test holds each message against the generated code, both ways.
// Encoding never fails. Decoding skips fields that it does not know and returns false for bytes that are no message;
// the struct is then in no defined state. Enumerations stay numbers: a newer daemon may send more of them.
#ifndef GPUMEM_CLIENT_MESSAGES_H_
#define GPUMEM_CLIENT_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpumem::client {

inline constexpr std::string_view kVersion = "0.1.0";
inline constexpr std::string_view kUserAgent = "gpumem/0.1.0";
inline constexpr std::uint32_t kProtocolMajor = 1;

enum class DriverKind : std::int32_t { kUnspecified = 0, kCuda = 1, kSim = 2 };
enum class Outcome : std::int32_t { kUnspecified = 0, kUnmapped = 1, kStillMapped = 2, kUnknown = 3 };

// True for well-formed UTF-8: a string field with anything else would not be parsed by the daemon.
bool ValidUtf8(std::string_view text);
// `text` with every byte that is not part of well-formed UTF-8 replaced by '?'.
std::string CleanUtf8(std::string_view text);

// --- values ---------------------------------------------------------------------------------------------------------

struct Device {
  std::string uuid;
  std::string name;
  std::uint32_t state = 0;
  std::uint64_t generation = 0;
  std::uint64_t granularity_bytes = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t available_bytes = 0;
};

struct ChunkSpec {
  std::string device_uuid;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t count = 0;
};

struct Chunk {
  std::uint64_t chunk_id = 0;
  std::uint64_t generation = 0;
  std::string device_uuid;
  std::uint64_t bytes = 0;
};

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct Segment {
  std::string name;
  std::uint32_t state = 0;
  std::uint64_t lease_id = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  std::uint32_t chunks = 0;
  std::uint32_t tensors = 0;
  std::uint32_t readers = 0;
};

struct Limits {
  std::uint32_t chunks_per_lease = 0;
  std::uint32_t chunks_per_frame = 0;
  std::uint32_t unacknowledged_frames = 0;
};

// --- requests -------------------------------------------------------------------------------------------------------

struct HelloRequest {
  std::uint64_t session_id = 0;
  DriverKind driver = DriverKind::kUnspecified;
  std::string driver_version;
};
std::string Encode(const HelloRequest& request);

struct RegisterHolderRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::string name;
  std::int32_t role = 0;
};
std::string Encode(const RegisterHolderRequest& request);

struct AllocateRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t holder_id = 0;
  std::vector<ChunkSpec> specs;
};
std::string Encode(const AllocateRequest& request);

struct ReleaseRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t lease_id = 0;
  std::vector<Outcome> outcomes;
};
std::string Encode(const ReleaseRequest& request);

struct BuildSegmentRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t holder_id = 0;
  std::string name;
  std::vector<ChunkSpec> specs;
};
std::string Encode(const BuildSegmentRequest& request);

struct SealSegmentRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t lease_id = 0;
  std::vector<Outcome> outcomes;
  std::vector<Tensor> tensors;
};
std::string Encode(const SealSegmentRequest& request);

struct AttachSegmentRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t holder_id = 0;
  std::string name;
};
std::string Encode(const AttachSegmentRequest& request);

struct DetachSegmentRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::uint64_t attachment_id = 0;
  std::vector<Outcome> outcomes;
};
std::string Encode(const DetachSegmentRequest& request);

struct ListSegmentsRequest {
  std::uint64_t session_id = 0;
  std::string prefix;
};
std::string Encode(const ListSegmentsRequest& request);

struct ReportFaultRequest {
  std::uint64_t session_id = 0;
  std::uint64_t request_id = 0;
  std::int32_t cuda_error = 0;
  std::string cuda_error_name;
  std::string detail;
};
std::string Encode(const ReportFaultRequest& request);

struct WatchEventsRequest {
  std::uint64_t session_id = 0;
};
std::string Encode(const WatchEventsRequest& request);

// --- responses ------------------------------------------------------------------------------------------------------

struct HelloResponse {
  std::string instance;
  std::string daemon_version;
  std::uint32_t protocol_major = 0;
  std::int32_t driver = 0;
  std::vector<Device> devices;
  Limits limits;
  std::string tenant;
};
bool Decode(std::string_view bytes, HelloResponse* response);

struct RegisterHolderResponse {
  std::string instance;
  std::uint64_t holder_id = 0;
};
bool Decode(std::string_view bytes, RegisterHolderResponse* response);

// Of Allocate and of BuildSegment: the two have the same fields.
struct GrantResponse {
  std::string instance;
  std::uint64_t lease_id = 0;
  std::uint64_t asked_bytes = 0;
  std::uint64_t charged_bytes = 0;
  std::vector<Chunk> chunks;
  std::uint32_t pushed_chunks = 0;
};
bool Decode(std::string_view bytes, GrantResponse* response);

struct ReleaseResponse {
  std::string instance;
  std::uint64_t released_bytes = 0;
  std::uint64_t quarantined_bytes = 0;
};
bool Decode(std::string_view bytes, ReleaseResponse* response);

struct SealSegmentResponse {
  std::string instance;
  std::string name;
};
bool Decode(std::string_view bytes, SealSegmentResponse* response);

struct AttachSegmentResponse {
  std::string instance;
  std::uint64_t attachment_id = 0;
  Segment segment;
  std::vector<Chunk> chunks;
  std::vector<Tensor> tensors;
};
bool Decode(std::string_view bytes, AttachSegmentResponse* response);

struct DetachSegmentResponse {
  std::string instance;
};
bool Decode(std::string_view bytes, DetachSegmentResponse* response);

struct ListSegmentsResponse {
  std::string instance;
  std::vector<Segment> segments;
};
bool Decode(std::string_view bytes, ListSegmentsResponse* response);

struct ReportFaultResponse {
  std::string instance;
  std::uint64_t quarantined_bytes = 0;
};
bool Decode(std::string_view bytes, ReportFaultResponse* response);

// gpumem.v1.Event with its kinds laid flat.
struct Event {
  enum class Kind { kUnknown, kSessionFenced, kSessionEnded, kDeviceChanged, kSegmentChanged, kDaemonStopping };
  std::uint64_t sequence = 0;
  Kind kind = Kind::kUnknown;
  std::uint64_t session_id = 0;  // of the session fenced or ended
  std::uint64_t bytes = 0;       // quarantined or settled
  std::uint32_t state = 0;       // of the device or segment; the quarantine reason of a fence
  bool removed = false;          // of the segment
  std::string name;              // of the device or segment
  std::string detail;
};
bool Decode(std::string_view bytes, Event* event);

// The first google.rpc.ErrorInfo in a google.rpc.Status.
struct ErrorInfo {
  std::string reason;
  std::string domain;
  std::vector<std::pair<std::string, std::string>> metadata;
};
// False when there is none.
bool DecodeErrorInfo(std::string_view bytes, ErrorInfo* info);

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_MESSAGES_H_
