// daemon/arena/arena_wire.h: the frames between the front and an arena process, byte by byte. Std only.
//
// One SOCK_SEQPACKET socketpair per arena; the arena has its end as descriptor 3. Frames are those of
// base/fixed_frame.h: a 24-byte header, then the fixed body of the type. `request` is chosen by the front; an answer
// repeats it. The arena answers in the order asked. Both ends are the same executable, so the version must be equal.
//
//   front                                    arena
//                                        ◄── Hello (which device, how much memory; once, when the driver is ready)
//   Create (chunk ids and bytes)         ──►
//                                        ◄── Created (a result for each chunk) + fds of the first chunks
//   Fetch (chunk ids)                    ──►
//                                        ◄── Fetched (a result) + fds, all or none
//   Close (chunk ids)                    ──►
//                                        ◄── Closed (a result for each chunk)
//   Memory                               ──►
//                                        ◄── MemoryIs
//                                        ◄── Failed (why the arena ends now)
//
// A list longer than kMaxChunksPerFrame is sent as several frames by the front's handle. Results are numbers of
// proto/gpumem/v1/reasons.def, 0 for OK. Growing the protocol: a new type, or a new version with a larger body.
#ifndef GPUMEM_DAEMON_ARENA_ARENA_WIRE_H_
#define GPUMEM_DAEMON_ARENA_ARENA_WIRE_H_

#include <cstddef>
#include <cstdint>

#include "base/fixed_frame.h"
#include "base/seqpacket.h"

namespace gpumem::arena {

inline constexpr std::uint32_t kArenaMagic = 0x414d5047;  // "GPMA" in memory on little-endian machines
inline constexpr std::uint16_t kArenaVersion = 1;
inline constexpr int kArenaSocketFd = 3;

// As many as the fds of one message, so that one frame can answer with a fd for each chunk.
inline constexpr std::uint32_t kMaxChunksPerFrame = kMaxFdsPerMessage;

enum class ArenaFrame : std::uint16_t {
  kHello = 1,
  kCreate = 2,
  kCreated = 3,
  kFetch = 4,
  kFetched = 5,
  kClose = 6,
  kClosed = 7,
  kMemory = 8,
  kMemoryIs = 9,
  kFailed = 10,
};

enum class WireDriver : std::uint32_t { kCuda = 1, kSim = 2 };

struct HelloBody {
  WireDriver driver{};                // byte 0
  std::int32_t driver_version = 0;    // byte 4: cuDriverGetVersion, e.g. 12080
  std::uint8_t device_raw[16] = {};   // byte 8: the UUID's bytes
  std::uint32_t device_kind = 0;      // byte 24: DeviceUuid::Kind
  std::uint32_t memory_readings = 0;  // byte 28: 1 when the arena can answer Memory (NVML is there), else 0
  std::uint64_t total_bytes = 0;      // byte 32: cuDeviceTotalMem
  std::uint64_t granularity = 0;      // byte 40: a chunk is a multiple of it, bytes
  char name[128] = {};                // byte 48: the device's marketing name, NUL-terminated
};
static_assert(sizeof(HelloBody) == 176);

struct CreateEntry {
  std::uint64_t chunk_id = 0;  // never reused, never 0
  std::uint64_t bytes = 0;     // a multiple of the granularity
};
struct CreateBody {
  std::uint32_t count = 0;     // byte 0: 1..kMaxChunksPerFrame
  std::uint32_t want_fds = 0;  // byte 4: send the fds of the first `want_fds` chunks with the answer; <= count
  CreateEntry entries[kMaxChunksPerFrame];  // byte 8
};
static_assert(sizeof(CreateBody) == 8 + 16 * kMaxChunksPerFrame);

// The first chunk that fails ends the batch: those after it are not attempted and have its reason too. A chunk with a
// reason does not exist in the driver. fd_count is the number of good chunks among the first `want_fds`.
struct CreatedBody {
  std::uint32_t count = 0;     // byte 0
  std::uint32_t good = 0;      // byte 4: chunks 0..good-1 exist; the others do not
  std::uint32_t reason = 0;    // byte 8: why chunk `good` failed; 0 when good == count
  std::uint32_t reserved = 0;  // byte 12
  char message[496] = {};      // byte 16: the driver's own words, NUL-terminated
};
static_assert(sizeof(CreatedBody) == 512);

struct ChunksBody {                                  // Fetch and Close
  std::uint32_t count = 0;                           // byte 0: 1..kMaxChunksPerFrame
  std::uint32_t reserved = 0;                        // byte 4
  std::uint64_t chunk_ids[kMaxChunksPerFrame] = {};  // byte 8
};
static_assert(sizeof(ChunksBody) == 8 + 8 * kMaxChunksPerFrame);

struct FetchedBody {
  std::uint32_t reason = 0;    // byte 0: 0 with fds of all chunks; else none came
  std::uint32_t reserved = 0;  // byte 4
  char message[504] = {};      // byte 8
};
static_assert(sizeof(FetchedBody) == 512);

struct ClosedBody {
  std::uint32_t count = 0;                         // byte 0
  std::uint32_t reserved = 0;                      // byte 4
  std::uint32_t reasons[kMaxChunksPerFrame] = {};  // byte 8: 0 closed; HANDLE_LOST: the arena has no such chunk
  std::uint32_t padding = 0;                       // the body's size stays a multiple of 8
};
static_assert(sizeof(ClosedBody) == 8 + 4 * kMaxChunksPerFrame + 4);

struct MemoryBody {
  std::uint64_t reserved = 0;  // byte 0
};
static_assert(sizeof(MemoryBody) == 8);

// NVML's reading of the device. Where NVML cannot answer the reason says so and the numbers are 0: nothing is derived.
struct MemoryIsBody {
  std::uint64_t total_bytes = 0;  // byte 0
  std::uint64_t used_bytes = 0;   // byte 8
  std::uint32_t reason = 0;       // byte 16
  std::uint32_t reserved = 0;     // byte 20
  char message[488] = {};         // byte 24
};
static_assert(sizeof(MemoryIsBody) == 512);

struct FailedBody {
  std::uint32_t reason = 0;    // byte 0
  std::uint32_t reserved = 0;  // byte 4
  char message[1016] = {};     // byte 8
};
static_assert(sizeof(FailedBody) == 1024);

constexpr std::size_t ArenaBodyBytes(std::uint16_t type) {
  switch (static_cast<ArenaFrame>(type)) {
    case ArenaFrame::kHello:
      return sizeof(HelloBody);
    case ArenaFrame::kCreate:
      return sizeof(CreateBody);
    case ArenaFrame::kCreated:
      return sizeof(CreatedBody);
    case ArenaFrame::kFetch:
    case ArenaFrame::kClose:
      return sizeof(ChunksBody);
    case ArenaFrame::kFetched:
      return sizeof(FetchedBody);
    case ArenaFrame::kClosed:
      return sizeof(ClosedBody);
    case ArenaFrame::kMemory:
      return sizeof(MemoryBody);
    case ArenaFrame::kMemoryIs:
      return sizeof(MemoryIsBody);
    case ArenaFrame::kFailed:
      return sizeof(FailedBody);
  }
  return 0;
}

inline constexpr FrameFormat kArenaFormat{kArenaMagic, kArenaVersion, &ArenaBodyBytes};
inline constexpr std::size_t kMaxArenaFrameBytes = sizeof(FixedHeader) + sizeof(CreateBody);

template <typename Body>
std::vector<std::byte> Encode(ArenaFrame type, std::uint64_t request, std::uint32_t fd_count, const Body& body) {
  return EncodeFrame(kArenaFormat, static_cast<std::uint16_t>(type), request, fd_count, body);
}

// What the sizes cannot show: counts that lie. True when the body's counts fit the body and `fd_count`.
inline bool Plausible(const CreateBody& body) {
  return body.count >= 1 && body.count <= kMaxChunksPerFrame && body.want_fds <= body.count;
}
inline bool Plausible(const ChunksBody& body) { return body.count >= 1 && body.count <= kMaxChunksPerFrame; }
inline bool Plausible(const CreatedBody& body, const CreateBody& asked, std::uint32_t fd_count) {
  const std::uint32_t fds = body.good < asked.want_fds ? body.good : asked.want_fds;
  return body.count == asked.count && body.good <= body.count && (body.good == body.count) == (body.reason == 0) &&
         fd_count == fds;
}
inline bool Plausible(const FetchedBody& body, std::uint32_t asked, std::uint32_t fd_count) {
  return fd_count == (body.reason == 0 ? asked : 0);
}
inline bool Plausible(const ClosedBody& body, std::uint32_t asked) { return body.count == asked; }

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_ARENA_WIRE_H_
