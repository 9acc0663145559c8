// base/fixed_frame.h: the header that the daemon's own process-to-process frames share. Std only.
//
// A frame is one SOCK_SEQPACKET message: a FixedHeader, then the one fixed body of its type, with its fds beside it.
// All fields are in host byte order: both ends are on one machine. Who uses it: daemon/arena/arena_wire.h and
// daemon/keeper/keeper_wire.h, each with a magic, a version and types of its own. (handles.sock, which workers speak,
// has its own header in proto/gpumem/v1/handle_frames.h.)
#ifndef GPUMEM_BASE_FIXED_FRAME_H_
#define GPUMEM_BASE_FIXED_FRAME_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gpumem {

struct FixedHeader {
  std::uint32_t magic = 0;    // byte 0
  std::uint16_t version = 0;  // byte 4
  std::uint16_t type = 0;     // byte 6
  std::uint64_t request = 0;  // byte 8: chosen by the asking side, repeated in the answer; 0: no answer belongs to it
  std::uint32_t body_bytes = 0;  // byte 16: exactly the size of the type's body
  std::uint32_t fd_count = 0;    // byte 20: fds that travel beside this frame
};
static_assert(sizeof(FixedHeader) == 24);

enum class FrameCheck : std::uint8_t {
  kGood,
  // The bytes are whole but fds are missing: the receiver is out of descriptors. The request fails, the peer is fine.
  kFdsLost,
  // The peer broke the protocol; nothing of the frame may be believed.
  kBroken,
};

// One protocol that is made of such frames.
struct FrameFormat {
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  std::size_t (*body_bytes)(std::uint16_t type) = nullptr;  // 0 for an unknown type
};

// Checks what ReceiveFrame got (`fds`: how many came, `truncated`: its flag) and fills `header`. `why` is set, in a
// sentence for a log, unless the frame is good.
inline FrameCheck CheckFrame(const FrameFormat& format, std::span<const std::byte> bytes, std::size_t fds,
                             bool truncated, FixedHeader* header, std::string* why) {
  if (bytes.size() < sizeof(FixedHeader)) {
    *why = "a frame of " + std::to_string(bytes.size()) + " bytes is shorter than its header";
    return FrameCheck::kBroken;
  }
  std::memcpy(header, bytes.data(), sizeof(FixedHeader));
  if (header->magic != format.magic) {
    *why = "a frame does not begin with the protocol's magic number";
    return FrameCheck::kBroken;
  }
  if (header->version != format.version) {
    *why = "a frame has version " + std::to_string(header->version) + "; this end speaks version " +
           std::to_string(format.version);
    return FrameCheck::kBroken;
  }
  const std::size_t body = format.body_bytes(header->type);
  if (body == 0) {
    *why = "a frame has the unknown type " + std::to_string(header->type);
    return FrameCheck::kBroken;
  }
  if (header->body_bytes != body || bytes.size() != sizeof(FixedHeader) + body) {
    *why = "a frame of type " + std::to_string(header->type) + " says " + std::to_string(header->body_bytes) +
           " and has " + std::to_string(bytes.size() - sizeof(FixedHeader)) + " body bytes; it must have " +
           std::to_string(body);
    return FrameCheck::kBroken;
  }
  if (truncated && fds < header->fd_count) {
    *why = std::to_string(fds) + " of the " + std::to_string(header->fd_count) +
           " descriptors of a frame arrived: this process is out of descriptors";
    return FrameCheck::kFdsLost;
  }
  if (truncated || fds != header->fd_count) {
    *why = "a frame says that it carries " + std::to_string(header->fd_count) + " descriptors and " +
           std::to_string(fds) + " came";
    return FrameCheck::kBroken;
  }
  return FrameCheck::kGood;
}

template <typename Body>
std::vector<std::byte> EncodeFrame(const FrameFormat& format, std::uint16_t type, std::uint64_t request,
                                   std::uint32_t fd_count, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  FixedHeader header;
  header.magic = format.magic;
  header.version = format.version;
  header.type = type;
  header.request = request;
  header.body_bytes = sizeof(Body);
  header.fd_count = fd_count;
  std::vector<std::byte> bytes(sizeof(header) + sizeof(Body));
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &body, sizeof(Body));
  return bytes;
}

// The body of a frame that CheckFrame found good (or kFdsLost) and whose type has this body.
template <typename Body>
Body DecodeBody(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<Body>);
  Body body;
  std::memcpy(&body, bytes.data() + sizeof(FixedHeader), sizeof(Body));
  return body;
}

// Texts in bodies: NUL-terminated, cut to fit.
template <std::size_t N>
void SetText(char (&field)[N], std::string_view text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::memset(field, 0, N);
  std::memcpy(field, text.data(), size);
}
template <std::size_t N>
std::string GetText(const char (&field)[N]) {
  return std::string(field, ::strnlen(field, N));
}

}  // namespace gpumem

#endif  // GPUMEM_BASE_FIXED_FRAME_H_
