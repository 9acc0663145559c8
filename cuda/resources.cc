// cuda/resources.cc: see the header.
#include "cuda/resources.h"

#include <fcntl.h>

namespace gpumem::cuda {

CUmemAllocationProp DeviceMemoryProp(CUdevice device, bool exportable) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  return prop;
}

CUresult PhysicalHandle::Create(const Driver& driver, CUdevice device, std::uint64_t bytes, bool exportable,
                                PhysicalHandle* out) {
  const CUmemAllocationProp prop = DeviceMemoryProp(device, exportable);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = driver.MemCreate(&handle, bytes, &prop, 0);
  if (result == CUDA_SUCCESS) *out = PhysicalHandle(&driver, handle, bytes);
  return result;
}

CUresult PhysicalHandle::Import(const Driver& driver, int fd, std::uint64_t bytes, PhysicalHandle* out) {
  CUmemGenericAllocationHandle handle = 0;
  // The descriptor itself travels in the pointer argument, not its address.
  void* const shareable = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
  const CUresult result =
      driver.MemImportFromShareableHandle(&handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (result == CUDA_SUCCESS) *out = PhysicalHandle(&driver, handle, bytes);
  return result;
}

CUresult PhysicalHandle::Export(UniqueFd* out) const {
  int fd = -1;
  const CUresult result =
      driver_->MemExportToShareableHandle(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result != CUDA_SUCCESS) return result;
  // Whether the driver sets it is not documented, and an inherited descriptor pins the memory.
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  out->reset(fd);
  return CUDA_SUCCESS;
}

CUresult PhysicalHandle::Release() {
  if (driver_ == nullptr) return CUDA_SUCCESS;
  const CUresult result = driver_->MemRelease(handle_);
  if (result == CUDA_SUCCESS) driver_ = nullptr;
  return result;
}

CUresult AddressRange::Reserve(const Driver& driver, std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint,
                               AddressRange* out) {
  AddressRange range;
  const CUresult result = driver.MemAddressReserve(&range.address_, bytes, alignment, hint, 0);
  if (result != CUDA_SUCCESS) return result;
  range.driver_ = &driver;
  range.bytes_ = bytes;
  *out = std::move(range);
  return CUDA_SUCCESS;
}

CUresult AddressRange::Free() {
  if (driver_ == nullptr) return CUDA_SUCCESS;
  const CUresult result = driver_->MemAddressFree(address_, bytes_);
  if (result == CUDA_SUCCESS) driver_ = nullptr;
  return result;
}

CUresult Mapping::Map(const Driver& driver, CUdeviceptr address, const PhysicalHandle& handle, Mapping* out) {
  const CUresult result = driver.MemMap(address, handle.bytes(), 0, handle.get(), 0);
  if (result != CUDA_SUCCESS) return result;
  Mapping mapping;
  mapping.driver_ = &driver;
  mapping.address_ = address;
  mapping.bytes_ = handle.bytes();
  *out = std::move(mapping);
  return CUDA_SUCCESS;
}

CUresult Mapping::SetAccess(CUdevice device, CUmemAccess_flags flags) const {
  CUmemAccessDesc desc{};
  desc.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  desc.location.id = device;
  desc.flags = flags;
  return driver_->MemSetAccess(address_, bytes_, &desc, 1);
}

CUresult Mapping::Unmap() {
  if (driver_ == nullptr) return CUDA_SUCCESS;
  const CUresult result = driver_->MemUnmap(address_, bytes_);
  if (result == CUDA_SUCCESS) driver_ = nullptr;
  return result;
}

}  // namespace gpumem::cuda
