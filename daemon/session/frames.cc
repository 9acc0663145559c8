#include "daemon/session/frames.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "daemon/core/reasons.h"

namespace gpumem::session {
namespace {

using core::Reason;
using wire::FrameType;

absl::Status Malformed(const std::string& what) { return core::Error(Reason::INVALID_ARGUMENT, what); }

std::optional<Direction> DirectionOf(FrameType type) {
  switch (type) {
    case FrameType::kOpen:
    case FrameType::kAcknowledge:
    case FrameType::kFetch:
    case FrameType::kMapping:
      return Direction::kToDaemon;
    case FrameType::kWelcome:
    case FrameType::kRefused:
    case FrameType::kHandles:
    case FrameType::kFetchRefused:
    case FrameType::kFenced:
      return Direction::kToWorker;
  }
  return std::nullopt;
}

// How many fds a frame of this type must carry.
bool FdCountFits(FrameType type, std::uint32_t count) {
  if (type == FrameType::kOpen) return count == 1;
  if (type == FrameType::kHandles) return count >= 1 && count <= wire::kMaxFdsPerFrame;
  return count == 0;
}

// A request id names a Fetch, or what a Handles or FetchRefused frame answers, and is zero elsewhere.
bool RequestIdFits(FrameType type, std::uint64_t request_id) {
  const bool named = type == FrameType::kFetch || type == FrameType::kHandles || type == FrameType::kFetchRefused;
  return named == (request_id != 0);
}

absl::Status CheckHeader(const wire::FrameHeader& header, std::size_t frame_bytes, std::size_t fd_count,
                         Direction direction) {
  if (header.magic != wire::kFrameMagic) {
    return Malformed(absl::StrCat("the frame starts with ", absl::Hex(header.magic, absl::kZeroPad8), ", not with ",
                                  absl::Hex(wire::kFrameMagic, absl::kZeroPad8)));
  }
  if (header.version != wire::kFrameVersion) {
    return core::Error(Reason::VERSION_MISMATCH, absl::StrCat("the frame has version ", header.version,
                                                              "; this end speaks version ", wire::kFrameVersion));
  }
  const auto type = static_cast<std::uint32_t>(header.type);
  const std::size_t body_bytes = wire::BodyBytes(header.type);
  if (body_bytes == 0) return Malformed(absl::StrCat("frame type ", type, " is unknown"));
  if (DirectionOf(header.type) != direction) return Malformed(absl::StrCat("frame type ", type, " goes the other way"));
  if (header.body_bytes != body_bytes || frame_bytes != sizeof(header) + body_bytes) {
    return Malformed(absl::StrCat("a frame of type ", type, " has ", frame_bytes, " bytes and says it has ",
                                  header.body_bytes, " after the header; it must have ", sizeof(header), " + ",
                                  body_bytes));
  }
  if (header.fd_count != fd_count) {
    return Malformed(
        absl::StrCat("a frame of type ", type, " announces ", header.fd_count, " fds, and ", fd_count, " came"));
  }
  if (!FdCountFits(header.type, header.fd_count)) {
    return Malformed(absl::StrCat("a frame of type ", type, " cannot carry ", header.fd_count, " fds"));
  }
  if (!RequestIdFits(header.type, header.request_id)) {
    return Malformed(absl::StrCat("a frame of type ", type, " cannot have request id ", header.request_id));
  }
  return absl::OkStatus();
}

absl::Status CheckReserved(std::uint64_t reserved) {
  return reserved == 0 ? absl::OkStatus() : Malformed("a reserved field is not zero");
}

absl::Status CheckAccess(wire::MappedAccess access) {
  if (access <= wire::MappedAccess::kReadWrite) return absl::OkStatus();
  return Malformed(absl::StrCat("access ", static_cast<std::uint32_t>(access), " is unknown"));
}

absl::Status CheckRange(std::uint32_t first, std::uint32_t count, std::uint32_t most) {
  if (count == 0 || count > most) {
    return Malformed(absl::StrCat("a count of ", count, " chunks; it must be 1 to ", most));
  }
  if (first > std::numeric_limits<std::uint32_t>::max() - count) {
    return Malformed(absl::StrCat("chunks from ", first, " on, ", count, " of them, are more than 32 bits can count"));
  }
  return absl::OkStatus();
}

absl::Status CheckTerminated(char last) {
  return last == '\0' ? absl::OkStatus() : Malformed("a message has no NUL at its end");
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::OpenBody& body) {
  if (body.min_version <= body.max_version) return absl::OkStatus();
  return Malformed(absl::StrCat("versions from ", body.min_version, " to ", body.max_version, " are no range"));
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::WelcomeBody& body) { return CheckReserved(body.reserved); }

absl::Status CheckBody(const wire::FrameHeader&, const wire::RefusedBody& body) {
  if (const absl::Status status = CheckReserved(body.reserved); !status.ok()) return status;
  return CheckTerminated(body.message[sizeof(body.message) - 1]);
}

absl::Status CheckBody(const wire::FrameHeader& header, const wire::HandlesBody& body) {
  std::uint64_t reserved = body.reserved;
  for (std::uint32_t i = 0; i < header.fd_count; ++i) reserved |= body.entries[i].reserved;
  return CheckReserved(reserved);
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::AcknowledgeBody& body) {
  if (const absl::Status status = CheckReserved(body.reserved); !status.ok()) return status;
  for (std::size_t bit = wire::kMaxFdsPerFrame; bit < wire::kFrameBitmapBytes * 8; ++bit) {
    if (body.imported[bit / 8] >> (bit % 8) & 1) {
      return Malformed(absl::StrCat("bit ", bit, " is set; a frame has at most ", wire::kMaxFdsPerFrame, " chunks"));
    }
  }
  return CheckAccess(body.access);
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::FetchBody& body) {
  return CheckRange(body.first, body.count, wire::kMaxFdsPerFrame);
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::MappingBody& body) {
  if (const absl::Status status = CheckReserved(body.reserved); !status.ok()) return status;
  if (const absl::Status status = CheckAccess(body.access); !status.ok()) return status;
  return CheckRange(body.first, body.count, std::numeric_limits<std::uint32_t>::max());
}

absl::Status CheckBody(const wire::FrameHeader&, const wire::FencedBody& body) {
  if (const absl::Status status = CheckReserved(body.reserved); !status.ok()) return status;
  return CheckTerminated(body.message[sizeof(body.message) - 1]);
}

// The header was checked: `bytes` has exactly the header and a Body.
template <typename Body>
absl::StatusOr<Frame> ParseBody(const wire::FrameHeader& header, std::span<const std::byte> bytes) {
  Body body;
  std::memcpy(&body, bytes.data() + sizeof(header), sizeof(body));
  if (const absl::Status status = CheckBody(header, body); !status.ok()) return status;
  return Frame{header, body};
}

}  // namespace

absl::StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes, std::size_t fd_count, Direction direction) {
  wire::FrameHeader header;
  if (bytes.size() < sizeof(header)) {
    return Malformed(
        absl::StrCat("a frame of ", bytes.size(), " bytes is shorter than its header of ", sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (const absl::Status status = CheckHeader(header, bytes.size(), fd_count, direction); !status.ok()) return status;
  switch (header.type) {
    case FrameType::kOpen:
      return ParseBody<wire::OpenBody>(header, bytes);
    case FrameType::kWelcome:
      return ParseBody<wire::WelcomeBody>(header, bytes);
    case FrameType::kRefused:
    case FrameType::kFetchRefused:
      return ParseBody<wire::RefusedBody>(header, bytes);
    case FrameType::kHandles:
      return ParseBody<wire::HandlesBody>(header, bytes);
    case FrameType::kAcknowledge:
      return ParseBody<wire::AcknowledgeBody>(header, bytes);
    case FrameType::kFetch:
      return ParseBody<wire::FetchBody>(header, bytes);
    case FrameType::kMapping:
      return ParseBody<wire::MappingBody>(header, bytes);
    case FrameType::kFenced:
      return ParseBody<wire::FencedBody>(header, bytes);
  }
  return Malformed("the frame's type is unknown");
}

wire::RefusedBody RefusalOf(const absl::Status& why) {
  wire::RefusedBody body;
  body.reason = static_cast<std::uint32_t>(core::ReasonOf(why));
  SetText(body.message, {why.message().data(), why.message().size()});
  return body;
}

}  // namespace gpumem::session
