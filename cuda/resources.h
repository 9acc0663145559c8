// cuda/resources.h: physical memory, address ranges and mappings as owned values.
//
// Each class owns one driver resource, is move-only, not thread-safe, and gives the resource back in its destructor.
// The destructor cannot report a failure: where the answer counts (a charge ends only with the driver's own answer),
// call Release, Free or Unmap and look at the result; after a failure the object still owns the resource.
// `driver` must outlive the object. Sizes are bytes. None of these calls needs a context, only cuInit.
#ifndef GPUMEM_CUDA_RESOURCES_H_
#define GPUMEM_CUDA_RESOURCES_H_

#include <cstdint>
#include <utility>

#include "base/unique_fd.h"
#include "cuda/driver.h"

namespace gpumem::cuda {

// The properties of pinned memory on `device` that can be exported as a file descriptor, or that cannot.
CUmemAllocationProp DeviceMemoryProp(CUdevice device, bool exportable);

// One reference to one physical allocation (cuMemCreate, or an import). cuMemRelease gives it back; the memory lives on
// while anything else (a mapping, an exported fd, an import elsewhere) refers to it.
class PhysicalHandle {
 public:
  PhysicalHandle() = default;
  // Takes over one reference to `handle`.
  PhysicalHandle(const Driver* driver, CUmemGenericAllocationHandle handle, std::uint64_t bytes)
      : driver_(driver), handle_(handle), bytes_(bytes) {}
  ~PhysicalHandle() { Release(); }
  PhysicalHandle(PhysicalHandle&& other) noexcept { Swap(other); }
  PhysicalHandle& operator=(PhysicalHandle&& other) noexcept {
    PhysicalHandle taken(std::move(other));
    Swap(taken);
    return *this;
  }

  // `bytes` must be a multiple of the device's granularity. `*out` is set on success only.
  static CUresult Create(const Driver& driver, CUdevice device, std::uint64_t bytes, bool exportable,
                         PhysicalHandle* out);
  // Imports what `fd` stands for; neither consumes nor closes it. A handle does not know its size: `bytes` is what the
  // exporter said, and a wrong one fails the mapping.
  static CUresult Import(const Driver& driver, int fd, std::uint64_t bytes, PhysicalHandle* out);
  // Exports it as a new close-on-exec descriptor. Closing the last copy of that is a driver call and may block.
  CUresult Export(UniqueFd* out) const;

  CUresult Release();

  CUmemGenericAllocationHandle get() const { return handle_; }
  std::uint64_t bytes() const { return bytes_; }
  bool valid() const { return driver_ != nullptr; }

 private:
  void Swap(PhysicalHandle& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(handle_, other.handle_);
    std::swap(bytes_, other.bytes_);
  }
  const Driver* driver_ = nullptr;
  CUmemGenericAllocationHandle handle_ = 0;
  std::uint64_t bytes_ = 0;
};

// A reserved range of device addresses. It must have no mapping left when it is freed.
class AddressRange {
 public:
  AddressRange() = default;
  ~AddressRange() { Free(); }
  AddressRange(AddressRange&& other) noexcept { Swap(other); }
  AddressRange& operator=(AddressRange&& other) noexcept {
    AddressRange taken(std::move(other));
    Swap(taken);
    return *this;
  }

  // `alignment` and `hint` may be 0. The driver may give another address than the hint and still succeed: compare.
  static CUresult Reserve(const Driver& driver, std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint,
                          AddressRange* out);
  CUresult Free();

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  bool valid() const { return driver_ != nullptr; }

 private:
  void Swap(AddressRange& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }
  const Driver* driver_ = nullptr;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
};

// One whole handle, mapped at one address. Unmapping does not wait for work that uses it: synchronise first.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() { Unmap(); }
  Mapping(Mapping&& other) noexcept { Swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    Mapping taken(std::move(other));
    Swap(taken);
    return *this;
  }

  // Maps all of `handle` at `address`, inside a reserved range. Nothing may access it before SetAccess.
  static CUresult Map(const Driver& driver, CUdeviceptr address, const PhysicalHandle& handle, Mapping* out);
  CUresult SetAccess(CUdevice device, CUmemAccess_flags flags) const;
  CUresult Unmap();

  CUdeviceptr address() const { return address_; }
  std::uint64_t bytes() const { return bytes_; }
  bool valid() const { return driver_ != nullptr; }

 private:
  void Swap(Mapping& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
  }
  const Driver* driver_ = nullptr;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_RESOURCES_H_
