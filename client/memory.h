// client/memory.h: the chunks of one lease or segment in this process: imported, mapped, let go. Calls cuda/.
//
// What was done is known chunk by chunk, so a failure anywhere undoes exactly that and nothing else; a chunk whose undo
// the driver refused stays in the state that it has. No call needs a CUDA context. Not thread-safe: the owner gives
// turns.
#ifndef GPUMEM_CLIENT_MEMORY_H_
#define GPUMEM_CLIENT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/messages.h"
#include "client/status.h"
#include "cuda/driver.h"
#include "cuda/resources.h"

namespace gpumem::client {

// CUDA, with the call and the driver's words; CUDA_FATAL when the code means that this process must be replaced.
Status DriverError(const cuda::Driver& driver, const std::string& call, CUresult result);

// While it lives, this thread's driver calls do not disturb a stream capture of the process, and none disturbs them.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const cuda::Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const cuda::Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Refuses with CAPTURING while one of the streams is capturing; else waits for all of them. CUDA or CUDA_FATAL when the
// driver fails.
Status WaitForStreams(const cuda::Driver& driver, const std::vector<CUstream>& streams);

class Memory {
 public:
  struct Place {
    CUdevice device = 0;  // in this process
    std::uint64_t bytes = 0;
  };

  // PROTOCOL when the sizes add up to more than 64 bits hold. `driver` must outlive the object.
  static Status Make(const cuda::Driver* driver, const std::vector<Place>& places, Memory* memory);
  Memory() = default;
  // Undoes what was done, as far as the driver lets it.
  ~Memory();
  Memory(Memory&&) = default;
  Memory& operator=(Memory&&) = default;

  std::size_t chunk_count() const { return chunks_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t chunk_bytes(std::size_t index) const { return chunks_[index].bytes; }
  bool imported(std::size_t index) const { return chunks_[index].handle.valid(); }
  bool all_imported() const;
  bool reserved() const { return range_.valid(); }  // mapped, or an undo of mapping is not complete
  CUdeviceptr address() const { return range_.address(); }

  // Imports the chunk from its fd, which stays the caller's. It must not be imported yet.
  Status Import(std::size_t index, int fd);

  // Maps all chunks end to end, each accessible to its own device: at `wanted`, or anywhere for 0. All or nothing. All
  // must be imported and nothing reserved. ADDRESS_TAKEN when the driver gives another address than `wanted`.
  Status Map(CUdeviceptr wanted, CUmemAccess_flags access, CUdeviceptr* address);

  // Unmaps all chunks and frees the addresses. What used them has ended. On failure what is left can be tried again.
  Status Unmap();

  // Lets every handle go and says what became of each chunk: kUnmapped, also for one that was never imported; kUnknown
  // when the driver refused. Nothing is mapped.
  std::vector<Outcome> LetGo();

  // Forgets everything without a driver call, for a process whose driver must not be called again. The kernel ends it
  // with the process.
  void Abandon();

 private:
  struct Chunk {
    CUdevice device = 0;
    std::uint64_t bytes = 0;
    cuda::PhysicalHandle handle;
    cuda::Mapping mapping;
  };
  Status MapChunk(std::size_t index, CUdeviceptr address, CUmemAccess_flags access);

  const cuda::Driver* driver_ = nullptr;
  std::uint64_t bytes_ = 0;
  // In this order the members' destructors release handles only after mappings and addresses are gone (~Memory).
  std::vector<Chunk> chunks_;
  cuda::AddressRange range_;
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_MEMORY_H_
