// cuda/sim/vmm.h: one process's view of memory: handles, reserved ranges, mappings and who may access them.
//
// The rules are the driver's (cuMemCreate and its family). Where the real driver's answer is not known, this is the
// strictest one, or what the machine's settings say (cuda/sim/answers.def). Sizes are bytes.
#ifndef GPUMEM_CUDA_SIM_VMM_H_
#define GPUMEM_CUDA_SIM_VMM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "cuda/cuda_api.h"
#include "cuda/sim/store.h"

namespace simcuda {

// Thread-safe. Lives until the process ends: what it holds then, the kernel drops.
class Vmm {
 public:
  enum class Need { kRead, kWrite };
  // A part of a device address range that lies in one mapping.
  struct Piece {
    std::shared_ptr<Object> object;  // keeps the bytes there, also when the range is unmapped meanwhile
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    unsigned char* data() const { return object->data() + offset; }
  };

  // `visible` are the process's devices by ordinal; `hidden` the machine's others. Not owned.
  Vmm(std::vector<DeviceStore*> visible, std::vector<DeviceStore*> hidden);

  CUresult Create(CUmemGenericAllocationHandle* out, std::uint64_t bytes, const CUmemAllocationProp& prop);
  CUresult Release(CUmemGenericAllocationHandle handle);
  CUresult Export(CUmemGenericAllocationHandle handle, int* fd);
  CUresult Import(int fd, CUmemGenericAllocationHandle* out);
  CUresult GetProperties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* out);
  CUresult Retain(CUdeviceptr address, CUmemGenericAllocationHandle* out);

  CUresult Reserve(CUdeviceptr* out, std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint);
  CUresult Free(CUdeviceptr address, std::uint64_t bytes);
  CUresult Map(CUdeviceptr address, std::uint64_t bytes, CUmemGenericAllocationHandle handle);
  CUresult Unmap(CUdeviceptr address, std::uint64_t bytes);
  CUresult SetAccess(CUdeviceptr address, std::uint64_t bytes, const CUmemAccessDesc* desc, std::size_t count);
  CUresult GetAccess(CUdeviceptr address, int device, unsigned long long* flags);
  // The mapping that contains `address`.
  CUresult FindMapping(CUdeviceptr address, CUdeviceptr* base, std::uint64_t* bytes);

  // Whether the address is in a reserved range: the device's, not the host's.
  bool IsReserved(CUdeviceptr address);
  // What is at an address in a reserved range; false when it is in none. `handle` is 0 where nothing is mapped.
  struct Place {
    CUdeviceptr range = 0;
    std::uint64_t range_bytes = 0;
    CUdeviceptr mapping = 0;
    std::uint64_t mapping_bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop{};
    std::vector<CUmemAccess_flags> access;  // by ordinal
  };
  bool Describe(CUdeviceptr address, Place* out);

  // The first part of [address, address + bytes) as `device` may access it; false when it may not, or nothing is there.
  bool Resolve(CUdeviceptr address, std::uint64_t bytes, int device, Need need, Piece* out);
  // Whether `device` may access all of the range.
  bool Allows(CUdeviceptr address, std::uint64_t bytes, int device, Need need);

  // The device that a call concerns, as an ordinal, or kNoOrdinal.
  static constexpr int kNoOrdinal = -1;
  int OrdinalOfHandle(CUmemGenericAllocationHandle handle);
  int OrdinalAt(CUdeviceptr address);
  int OrdinalOfFd(int fd) const;

  // fork(2) while no other thread holds this object's lock, so that the child can resolve addresses.
  pid_t ForkUnlocked();

  // cuMemAlloc and cuMemFree: a handle, a range and a mapping as one.
  CUresult AllocateLinear(int device, std::uint64_t bytes, CUdeviceptr* out);
  CUresult FreeLinear(CUdeviceptr address);

 private:
  struct Handle {
    std::shared_ptr<Object> object;
    CUmemAllocationProp prop{};
    std::uint64_t references = 0;  // 0: kept only because a mapping may be asked for it
  };
  struct Mapping {
    std::uint64_t bytes = 0;
    CUmemGenericAllocationHandle handle = 0;
    std::shared_ptr<Object> object;
    CUmemAllocationProp prop{};
    std::vector<CUmemAccess_flags> access;  // by ordinal
  };
  using Mappings = std::map<CUdeviceptr, Mapping>;

  CUmemGenericAllocationHandle AddHandle(std::shared_ptr<Object> object, const CUmemAllocationProp& prop)
      GPUMEM_EXCLUDES(mu_);
  Handle* FindHandle(CUmemGenericAllocationHandle handle) GPUMEM_REQUIRES(mu_);
  Mappings::iterator MappingAt(CUdeviceptr address) GPUMEM_REQUIRES(mu_);
  bool CoversWhole(CUdeviceptr address, std::uint64_t bytes) GPUMEM_REQUIRES(mu_);
  bool AnyMapping(CUdeviceptr address, std::uint64_t bytes) GPUMEM_REQUIRES(mu_);
  int OrdinalOf(const DeviceStore* store) const;
  bool InOneReservation(CUdeviceptr address, std::uint64_t bytes) GPUMEM_REQUIRES(mu_);

  const std::vector<DeviceStore*> visible_;
  const std::vector<DeviceStore*> hidden_;
  gpumem::Mutex mu_;
  CUmemGenericAllocationHandle last_handle_ GPUMEM_GUARDED_BY(mu_) = 0x1000;
  std::unordered_map<CUmemGenericAllocationHandle, Handle> handles_ GPUMEM_GUARDED_BY(mu_);
  std::map<CUdeviceptr, std::uint64_t> reservations_ GPUMEM_GUARDED_BY(mu_);
  Mappings mappings_ GPUMEM_GUARDED_BY(mu_);
  std::map<CUdeviceptr, std::uint64_t> linear_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_VMM_H_
