// cuda/sim/device_memory.h: reading and writing device addresses, as one device may.
//
// Memory is sparse and stays so: a hole is read without filling it, and writing zeroes makes holes.
#ifndef GPUMEM_CUDA_SIM_DEVICE_MEMORY_H_
#define GPUMEM_CUDA_SIM_DEVICE_MEMORY_H_

#include <cstdint>
#include <functional>

#include "cuda/cuda_api.h"
#include "cuda/sim/vmm.h"

namespace simcuda {

// Cheap to make; thread-safe. Each operation looks its addresses up as it goes, piece by piece, so that an unmapping
// meanwhile is noticed. False: an address was not mapped or not accessible; what came before it is done.
class DeviceMemory {
 public:
  DeviceMemory(Vmm& vmm, int device) : vmm_(vmm), device_(device) {}

  bool Read(CUdeviceptr from, void* to, std::uint64_t bytes) const;
  bool Write(CUdeviceptr to, const void* from, std::uint64_t bytes) const;
  bool Copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes) const;
  bool Fill8(CUdeviceptr to, std::uint8_t value, std::uint64_t count) const;
  // `to` is a multiple of the value's size.
  bool Fill16(CUdeviceptr to, std::uint16_t value, std::uint64_t count) const;
  bool Fill32(CUdeviceptr to, std::uint32_t value, std::uint64_t count) const;
  // Calls `visit` with the parts that are not holes; a part that is left out is zero. `offset` counts from `from`.
  bool ForEachData(
      CUdeviceptr from, std::uint64_t bytes,
      const std::function<void(std::uint64_t offset, const unsigned char* data, std::uint64_t bytes)>& visit) const;

  bool Allows(CUdeviceptr address, std::uint64_t bytes, Vmm::Need need) const {
    return vmm_.Allows(address, bytes, device_, need);
  }
  int device() const { return device_; }

 private:
  template <typename Value>
  bool FillValues(CUdeviceptr to, Value value, std::uint64_t count) const;
  bool ForEachPiece(CUdeviceptr address, std::uint64_t bytes, Vmm::Need need,
                    const std::function<void(std::uint64_t offset, const Vmm::Piece& piece)>& visit) const;

  Vmm& vmm_;
  const int device_;
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_DEVICE_MEMORY_H_
