// daemon/arena/arena_server.h: the arena's side of the wire: a table of chunks' fds, and the loop that serves the
// front. Knows no driver: the device's memory is a seam.
#ifndef GPUMEM_DAEMON_ARENA_ARENA_SERVER_H_
#define GPUMEM_DAEMON_ARENA_ARENA_SERVER_H_

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "daemon/arena/arena_wire.h"

namespace gpumem::arena {

struct MemoryReading {
  std::uint64_t total_bytes = 0;
  std::uint64_t used_bytes = 0;
};

// The memory of the arena's one device. Calls may block in the driver: nothing else waits for this process.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Physical memory whose only reference is the fd (close-on-exec). A failure leaves nothing behind in the driver.
  // Reasons: DRIVER_OUT_OF_MEMORY, DESCRIPTORS, DRIVER_FAILED. INTERNAL: the driver would not take back what it had
  // made; only the end of this process frees it, so the server stops without an answer.
  virtual absl::StatusOr<UniqueFd> Create(std::uint64_t bytes) = 0;
  // What the driver says of the whole device; an error where it says nothing.
  virtual absl::StatusOr<MemoryReading> Memory() = 0;
};

// Single-threaded. `memory` must outlive it.
class ArenaServer {
 public:
  ArenaServer(UniqueFd socket, DeviceMemory* memory) : socket_(std::move(socket)), memory_(memory) {}

  // Says hello, then answers until the front's end of the socket is closed. OK for that; an error when the front broke
  // the protocol, the socket failed, or memory could not be put back. After an error the process must end.
  absl::Status Serve(const HelloBody& hello);

  // Tells the front why there will be no Hello.
  void SendFailed(const absl::Status& why);

 private:
  absl::Status Answer(const FixedHeader& header, std::span<const std::byte> bytes);
  absl::Status Create(std::uint64_t request, const CreateBody& asked);
  absl::Status Fetch(std::uint64_t request, const ChunksBody& asked);
  absl::Status Close(std::uint64_t request, const ChunksBody& asked);
  absl::Status Memory(std::uint64_t request);
  absl::Status CreateChunk(const CreateEntry& entry);
  template <typename Body>
  int Send(ArenaFrame type, std::uint64_t request, const Body& body, const std::vector<int>& fds = {});

  UniqueFd socket_;
  DeviceMemory* const memory_;
  // The arena's reference to each chunk. Private chunks leave it soon: when their worker acknowledged the import.
  std::unordered_map<std::uint64_t, UniqueFd> chunks_;
};

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_ARENA_SERVER_H_
