// cuda/sim/plain_memory.h: which addresses are those of a plain allocation: cuMemAlloc's, pinned host memory, and host
// memory that a program registered. It knows of them only; their bytes are elsewhere.
#ifndef GPUMEM_CUDA_SIM_PLAIN_MEMORY_H_
#define GPUMEM_CUDA_SIM_PLAIN_MEMORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/sim_api.h"

namespace simcuda {

struct PlainRange {
  enum class Kind { kDevice, kPinnedHost, kRegisteredHost };
  Kind kind = Kind::kDevice;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  // as asked for, unrounded
  CUcontext context = nullptr;
  int device = 0;
  unsigned flags = 0;    // of cuMemHostAlloc or cuMemHostRegister
  std::uint64_t id = 0;  // set by Add: never reused in this process

  bool is_host() const { return kind != Kind::kDevice; }
};

// Thread-safe.
class PlainMemory {
 public:
  static PlainMemory& All();

  // False when a part of it is there already.
  bool Add(PlainRange range);
  // The range that contains the address.
  std::optional<PlainRange> Find(std::uint64_t address);
  // Takes out the range of that kind that begins there.
  std::optional<PlainRange> Remove(std::uint64_t begin, PlainRange::Kind kind);
  // Takes out everything of one context.
  std::vector<PlainRange> RemoveAll(CUcontext context);

 private:
  gpumem::Mutex mu_;
  std::uint64_t last_id_ GPUMEM_GUARDED_BY(mu_) = std::uint64_t{1} << 40;  // apart from allocation handles
  std::map<std::uint64_t, PlainRange> ranges_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_PLAIN_MEMORY_H_
