// proto/gpumem/v1/handle_frames.h: the frames of handles.sock, byte by byte. Shared by daemon and client; std only.
//
// handles.sock is SOCK_SEQPACKET: one sendmsg is one frame with its fds (SCM_RIGHTS), so frames never split or merge.
// All fields are in host byte order: both ends are on one machine. Each frame is a FrameHeader and a fixed body for its
// type; `body_bytes` must equal that size exactly. A frame that is truncated (MSG_TRUNC, MSG_CTRUNC), or whose
// `fd_count` is not the number of fds that came, fails, and every fd that came with it is closed.
//
//   worker                                   daemon
//   connect
//   Open + 1 fd (witness pipe, read end) ──►
//                                        ◄── Welcome (session id, resume token)   or Refused, then close
//                                        ◄── Handles + fds (pushed for a grant, or the answer to a Fetch)
//   Acknowledge (of one Handles frame)   ──►
//   Fetch                                ──►
//                                        ◄── Handles + fds, or FetchRefused
//   Mapping (changed later)              ──►
//                                        ◄── Fenced (nothing more is granted)
//
// The open socket is the session's lifeline. Growing the protocol: a new frame type, or a new version of a body with a
// larger size; a receiver refuses a version it does not know and says which it speaks.
#ifndef GPUMEM_PROTO_HANDLE_FRAMES_H_
#define GPUMEM_PROTO_HANDLE_FRAMES_H_

#include <cstddef>
#include <cstdint>

namespace gpumem::wire {

inline constexpr std::uint32_t kFrameMagic = 0x484d5047;  // "GPMH" in memory on little-endian machines
inline constexpr std::uint16_t kFrameVersion = 1;

// SCM_MAX_FD of Linux: sendmsg with 254 fds is EINVAL.
inline constexpr std::uint32_t kMaxFdsPerFrame = 253;
inline constexpr std::size_t kFrameBitmapBytes = 32;  // one bit for each chunk of a Handles frame
static_assert(kFrameBitmapBytes * 8 >= kMaxFdsPerFrame);

enum class FrameType : std::uint16_t {
  kOpen = 1,
  kWelcome = 2,
  kRefused = 3,
  kHandles = 4,
  kAcknowledge = 5,
  kFetch = 6,
  kFetchRefused = 7,
  kMapping = 8,
  kFenced = 9,
};

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  std::uint16_t version = kFrameVersion;
  FrameType type{};
  std::uint64_t sequence = 0;  // rises by one for each frame of one direction, from 1
  // Handles: of the grant or the Fetch it answers; FetchRefused: of the Fetch; Fetch: chosen by the client; else 0.
  std::uint64_t request_id = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t fd_count = 0;
};
static_assert(sizeof(FrameHeader) == 32);

struct OpenBody {
  std::uint32_t min_version = kFrameVersion;
  std::uint32_t max_version = kFrameVersion;
  char client_name[64] = {};  // for displays only; NUL-padded
};
static_assert(sizeof(OpenBody) == 72);

struct WelcomeBody {
  std::uint64_t session_id = 0;
  std::uint8_t resume_token[16] = {};
  std::uint8_t instance[16] = {};  // the daemon instance; its hex form is `instance` in gRPC replies
  std::uint32_t unacknowledged_frames = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(WelcomeBody) == 48);

// Why a connection or a fetch was refused: a number from reasons.def and a sentence, NUL-terminated.
struct RefusedBody {
  std::uint32_t reason = 0;
  std::uint32_t reserved = 0;
  char message[504] = {};
};
static_assert(sizeof(RefusedBody) == 512);

struct HandleEntry {
  std::uint64_t chunk_id = 0;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  std::uint32_t index = 0;  // of the chunk in its lease
  std::uint32_t reserved = 0;
};
static_assert(sizeof(HandleEntry) == 32);

// The first fd_count entries are used, in the order of the fds.
struct HandlesBody {
  std::uint64_t lease_id = 0;
  std::uint64_t reserved = 0;
  HandleEntry entries[kMaxFdsPerFrame];
};
static_assert(sizeof(HandlesBody) == 16 + 32 * kMaxFdsPerFrame);

enum class MappedAccess : std::uint32_t { kNone = 0, kReadOnly = 1, kReadWrite = 2 };

// Answers one Handles frame. Bit i of `imported`: entry i was imported by the driver in this process. A chunk whose bit
// is clear stays undelivered and can be fetched again.
struct AcknowledgeBody {
  std::uint64_t handles_sequence = 0;
  MappedAccess access = MappedAccess::kNone;
  std::uint32_t reserved = 0;
  std::uint8_t imported[kFrameBitmapBytes] = {};
};
static_assert(sizeof(AcknowledgeBody) == 48);

struct FetchBody {
  std::uint64_t lease_id = 0;
  std::uint32_t first = 0;  // index of the first chunk wanted
  std::uint32_t count = 0;  // 1..kMaxFdsPerFrame; the answer may be shorter, never empty
};
static_assert(sizeof(FetchBody) == 16);

// The worker mapped, remapped or unmapped chunks that it keeps imported: for the books' `mapped` counts.
struct MappingBody {
  std::uint64_t lease_id = 0;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  MappedAccess access = MappedAccess::kNone;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(MappingBody) == 24);

struct FencedBody {
  std::uint32_t quarantine_reason = 0;  // gpumem.v1.QuarantineReason
  std::uint32_t reserved = 0;
  char message[504] = {};
};
static_assert(sizeof(FencedBody) == 512);

// The body size of a frame type; 0 for a type that this version does not know.
constexpr std::size_t BodyBytes(FrameType type) {
  switch (type) {
    case FrameType::kOpen:
      return sizeof(OpenBody);
    case FrameType::kWelcome:
      return sizeof(WelcomeBody);
    case FrameType::kRefused:
    case FrameType::kFetchRefused:
      return sizeof(RefusedBody);
    case FrameType::kHandles:
      return sizeof(HandlesBody);
    case FrameType::kAcknowledge:
      return sizeof(AcknowledgeBody);
    case FrameType::kFetch:
      return sizeof(FetchBody);
    case FrameType::kMapping:
      return sizeof(MappingBody);
    case FrameType::kFenced:
      return sizeof(FencedBody);
  }
  return 0;
}

inline constexpr std::size_t kMaxFrameBytes = sizeof(FrameHeader) + sizeof(HandlesBody);

}  // namespace gpumem::wire

#endif  // GPUMEM_PROTO_HANDLE_FRAMES_H_
