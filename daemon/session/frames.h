// daemon/session/frames.h: the frames of handles.sock between bytes and values. Pure: no socket, no state, no clock.
//
// What a frame says on its own is checked here: magic, version, type, size, fd count, numbers in their ranges, reserved
// fields zero. What depends on a session (sequence numbers, order of frames) is handle_sessions' to check. The bytes
// are a peer's and may be anything.
#ifndef GPUMEM_DAEMON_SESSION_FRAMES_H_
#define GPUMEM_DAEMON_SESSION_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::session {

enum class Direction { kToDaemon, kToWorker };

// The body's alternative is the one of header.type; a RefusedBody belongs to kRefused and to kFetchRefused.
struct Frame {
  wire::FrameHeader header;
  std::variant<wire::OpenBody, wire::WelcomeBody, wire::RefusedBody, wire::HandlesBody, wire::AcknowledgeBody,
               wire::FetchBody, wire::MappingBody, wire::FencedBody>
      body;
};

// A checked frame of `bytes`, with which `fd_count` fds came. VERSION_MISMATCH for a version that is not spoken here,
// INVALID_ARGUMENT for everything else that is wrong; the message says what.
absl::StatusOr<Frame> ParseFrame(std::span<const std::byte> bytes, std::size_t fd_count, Direction direction);

// The bytes of one frame. The header's magic, version and body size are filled in.
template <typename Body>
std::vector<std::byte> EncodeFrame(wire::FrameHeader header, const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  header.body_bytes = sizeof(Body);
  std::vector<std::byte> bytes(sizeof(header) + sizeof(body));
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), &body, sizeof(body));
  return bytes;
}

// The text of a fixed, NUL-padded field: up to the first NUL.
template <std::size_t kSize>
std::string TextOf(const char (&field)[kSize]) {
  return std::string(field, ::strnlen(field, kSize));
}

// Copies text into a fixed field, cut so that a NUL follows; never inside a UTF-8 character.
template <std::size_t kSize>
void SetText(char (&field)[kSize], std::string_view text) {
  std::size_t size = text.size() < kSize ? text.size() : kSize - 1;
  if (size < text.size()) {
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  }
  std::memset(field, 0, kSize);
  std::memcpy(field, text.data(), size);
}

// A refusal's body for a status: its reason's number and its message.
wire::RefusedBody RefusalOf(const absl::Status& why);

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_FRAMES_H_
