// cuda/sim/vmm.cc: see the header.
#include "cuda/sim/vmm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/faults.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace simcuda {
namespace {

using gpumem::MutexLock;
using Outcome = DeviceStore::Outcome;

// Addresses come in steps of 2 MiB whatever the device's granularity, as on hardware.
constexpr std::uint64_t kAddressUnit = std::uint64_t{2} << 20;

CUresult Unknown(Question question) { return static_cast<CUresult>(AnswerTo(question)); }

CUresult FromOutcome(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return CUDA_SUCCESS;
    case Outcome::kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Outcome::kNotOurs:
      return Unknown(Question::kForeignFd);
    case Outcome::kNoFd:
      return Unknown(Question::kExportNoFd);
    case Outcome::kSystem:
      return CUDA_ERROR_OPERATING_SYSTEM;
  }
  return CUDA_ERROR_UNKNOWN;
}

bool IsPowerOfTwo(std::uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

CUresult CheckProp(const CUmemAllocationProp& prop, std::size_t devices) {
  if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (prop.win32HandleMetaData != nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const unsigned char byte : prop.allocFlags.reserved) {
    if (byte != 0) return Unknown(Question::kReservedField);
  }
  if (prop.allocFlags.gpuDirectRDMACapable != 0) return CUDA_ERROR_NOT_SUPPORTED;  // as the attribute says
  const auto types = static_cast<unsigned>(prop.requestedHandleTypes);
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return Unknown(Question::kFabric);  // no channel to a fabric
  if ((types & ~static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  // Memory of the host as such is never exportable.
  if (prop.location.type == CU_MEM_LOCATION_TYPE_HOST && types != 0) return CUDA_ERROR_INVALID_VALUE;
  if (prop.location.type == CU_MEM_LOCATION_TYPE_HOST || prop.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (prop.location.id < 0 || static_cast<std::size_t>(prop.location.id) >= devices) {
    return Unknown(Question::kDeviceOutOfRange);
  }
  return CUDA_SUCCESS;
}

// A range of addresses that the CPU cannot touch. 0 when there is none.
CUdeviceptr ReserveAddresses(std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (hint != 0 && !SIMCUDA_BREAK("hint-ignored")) {
    // A hint that is taken is not an error: the driver gives another range.
    void* const wanted = reinterpret_cast<void*>(static_cast<std::uintptr_t>(hint));
    void* const got = ::mmap(wanted, bytes, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == wanted) return hint;
    if (got != MAP_FAILED) ::munmap(got, bytes);  // an old kernel takes the flag for a mere hint
    if (SIMCUDA_BREAK("hint-taken-refused")) return 0;
    if (SIMCUDA_BREAK("ranges-overlap")) return hint;
  }
  const auto padded = gpumem::CheckedAdd(bytes, alignment);
  if (!padded) return 0;
  void* const got = ::mmap(nullptr, *padded, PROT_NONE, kFlags, -1, 0);
  if (got == MAP_FAILED) return 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(got);
  const std::uintptr_t aligned = (begin + alignment - 1) & ~(alignment - 1);
  if (aligned > begin) ::munmap(got, aligned - begin);
  const std::uintptr_t end = begin + *padded;
  if (end > aligned + bytes) ::munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  return aligned;
}

bool Permits(CUmemAccess_flags flags, Vmm::Need need) {
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && SIMCUDA_BREAK("access-not-needed")) return true;
  if (flags == CU_MEM_ACCESS_FLAGS_PROT_READ && SIMCUDA_BREAK("read-only-writable")) return true;
  return need == Vmm::Need::kRead ? flags != CU_MEM_ACCESS_FLAGS_PROT_NONE
                                  : flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

}  // namespace

Vmm::Vmm(std::vector<DeviceStore*> visible, std::vector<DeviceStore*> hidden)
    : visible_(std::move(visible)), hidden_(std::move(hidden)) {}

CUmemGenericAllocationHandle Vmm::AddHandle(std::shared_ptr<Object> object, const CUmemAllocationProp& prop) {
  const MutexLock lock(&mu_);
  const CUmemGenericAllocationHandle handle = ++last_handle_;  // never reused, so a stale one is always found out
  handles_[handle] = Handle{std::move(object), prop, 1};
  return handle;
}

Vmm::Handle* Vmm::FindHandle(CUmemGenericAllocationHandle handle) {
  const auto found = handles_.find(handle);
  return found != handles_.end() ? &found->second : nullptr;
}

Vmm::Mappings::iterator Vmm::MappingAt(CUdeviceptr address) {
  auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return mappings_.end();
  --next;
  return address - next->first < next->second.bytes ? next : mappings_.end();
}

// Whether the range is made of whole mappings, without holes.
bool Vmm::CoversWhole(CUdeviceptr address, std::uint64_t bytes) {
  if (bytes == 0) return false;
  if (AnyMapping(address, bytes) && SIMCUDA_BREAK("ranges-with-holes")) return true;
  for (auto at = mappings_.find(address); at != mappings_.end(); at = mappings_.find(address)) {
    if (at->second.bytes > bytes) return false;
    address += at->second.bytes;
    bytes -= at->second.bytes;
    if (bytes == 0) return true;
  }
  return false;
}

bool Vmm::AnyMapping(CUdeviceptr address, std::uint64_t bytes) {
  if (MappingAt(address) != mappings_.end()) return true;
  const auto next = mappings_.lower_bound(address);
  return next != mappings_.end() && next->first - address < bytes;
}

bool Vmm::InOneReservation(CUdeviceptr address, std::uint64_t bytes) {
  auto next = reservations_.upper_bound(address);
  if (next == reservations_.begin()) return false;
  --next;
  const std::uint64_t offset = address - next->first;
  return offset < next->second && bytes <= next->second - offset;
}

CUresult Vmm::Create(CUmemGenericAllocationHandle* out, std::uint64_t bytes, const CUmemAllocationProp& prop) {
  if (const CUresult result = CheckProp(prop, visible_.size()); result != CUDA_SUCCESS) return result;
  DeviceStore& store = *visible_[static_cast<std::size_t>(prop.location.id)];
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes % store.config().granularity_bytes != 0 && !SIMCUDA_BREAK("size-not-checked")) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Object> object;
  const Outcome outcome = store.Create(bytes, &object);
  if (outcome != Outcome::kOk) return FromOutcome(outcome);
  *out = AddHandle(std::move(object), prop);
  if (SIMCUDA_BREAK("reference-too-many")) {
    const MutexLock lock(&mu_);
    ++FindHandle(*out)->references;
  }
  return CUDA_SUCCESS;
}

CUresult Vmm::Release(CUmemGenericAllocationHandle handle) {
  std::shared_ptr<Object> dropped;  // outlives the lock: the last reference takes the device's lock
  const MutexLock lock(&mu_);
  Handle* const entry = FindHandle(handle);
  if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--entry->references > 0) return CUDA_SUCCESS;
  if (SIMCUDA_BREAK("release-unmaps")) {
    for (auto at = mappings_.begin(); at != mappings_.end();) {
      at = at->second.handle == handle ? mappings_.erase(at) : std::next(at);
    }
  }
  if (SIMCUDA_BREAK("stale-handle-accepted")) return CUDA_SUCCESS;
  dropped = std::move(entry->object);
  handles_.erase(handle);
  return CUDA_SUCCESS;
}

CUresult Vmm::Export(CUmemGenericAllocationHandle handle, int* fd) {
  std::shared_ptr<Object> object;
  {
    const MutexLock lock(&mu_);
    const Handle* const entry = FindHandle(handle);
    if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (entry->prop.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        !SIMCUDA_BREAK("export-without-type")) {
      return Unknown(Question::kExportType);
    }
    object = entry->object;
  }
  const Outcome outcome = object->store().Export(*object, fd);
  if (outcome == Outcome::kOk && AnswerTo(Question::kExportCloexec) != 0) ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  return FromOutcome(outcome);
}

CUresult Vmm::Import(int fd, CUmemGenericAllocationHandle* out) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  std::shared_ptr<Object> object;
  for (std::size_t i = 0; i < visible_.size(); ++i) {
    const Outcome outcome = visible_[i]->Import(fd, &object);
    if (outcome == Outcome::kNotOurs) continue;
    if (outcome != Outcome::kOk) return FromOutcome(outcome);
    prop.location.id = SIMCUDA_BREAK("import-location-fixed") ? 0 : static_cast<int>(i);
    if (SIMCUDA_BREAK("import-copies")) {
      std::shared_ptr<Object> copy;
      if (visible_[i]->Create(object->bytes(), &copy) != Outcome::kOk) return CUDA_ERROR_OUT_OF_MEMORY;
      std::memcpy(copy->data(), object->data(), object->bytes());
      object = std::move(copy);
    }
    if (SIMCUDA_BREAK("import-closes-the-descriptor")) ::close(fd);
    *out = AddHandle(std::move(object), prop);
    return CUDA_SUCCESS;
  }
  for (DeviceStore* const store : hidden_) {
    if (!store->Owns(fd)) continue;
    // Of another instance of the same GPU: the driver knows it, and refuses.
    const auto& gpu = store->config().gpu;
    for (const DeviceStore* const ours : visible_) {
      const bool same_gpu = gpu && ours->config().gpu == gpu;
      if (same_gpu && !SIMCUDA_BREAK("instance-is-another-gpu")) return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (SIMCUDA_BREAK("hidden-device-is-foreign")) break;
    return Unknown(Question::kHiddenDevice);
  }
  if (SIMCUDA_BREAK("foreign-descriptor-accepted") &&
      visible_[0]->Create(visible_[0]->config().granularity_bytes, &object) == Outcome::kOk) {
    *out = AddHandle(std::move(object), prop);
    return CUDA_SUCCESS;
  }
  return Unknown(Question::kForeignFd);
}

int Vmm::OrdinalOf(const DeviceStore* store) const {
  const auto found = std::find(visible_.begin(), visible_.end(), store);
  return found != visible_.end() ? static_cast<int>(found - visible_.begin()) : kNoOrdinal;
}

int Vmm::OrdinalOfHandle(CUmemGenericAllocationHandle handle) {
  const MutexLock lock(&mu_);
  const Handle* const entry = FindHandle(handle);
  return entry != nullptr ? OrdinalOf(&entry->object->store()) : kNoOrdinal;
}

int Vmm::OrdinalAt(CUdeviceptr address) {
  const MutexLock lock(&mu_);
  const auto at = MappingAt(address);
  return at != mappings_.end() ? OrdinalOf(&at->second.object->store()) : kNoOrdinal;
}

int Vmm::OrdinalOfFd(int fd) const {
  for (const DeviceStore* const store : visible_) {
    if (store->Owns(fd)) return OrdinalOf(store);
  }
  return kNoOrdinal;
}

CUresult Vmm::GetProperties(CUmemGenericAllocationHandle handle, CUmemAllocationProp* out) {
  const MutexLock lock(&mu_);
  const Handle* const entry = FindHandle(handle);
  if (entry == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = entry->prop;
  return CUDA_SUCCESS;
}

CUresult Vmm::Retain(CUdeviceptr address, CUmemGenericAllocationHandle* out) {
  const MutexLock lock(&mu_);
  const auto at = MappingAt(address);
  if (at == mappings_.end()) return Unknown(Question::kRetainUnmapped);
  if (SIMCUDA_BREAK("retain-does-not-count") && handles_.count(at->second.handle) != 0) {
    *out = at->second.handle;
    return CUDA_SUCCESS;
  }
  // Also after the handle's last release: the mapping brings the same value back to life.
  Handle& entry = handles_[at->second.handle];
  if (entry.references == 0) {
    entry.object = at->second.object;
    entry.prop = at->second.prop;
  }
  ++entry.references;
  *out = at->second.handle;
  return CUDA_SUCCESS;
}

CUresult Vmm::Reserve(CUdeviceptr* out, std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint) {
  if (bytes == 0 || bytes % kAddressUnit != 0) return Unknown(Question::kUnalignedReserve);
  if (alignment != 0 && !IsPowerOfTwo(alignment)) return Unknown(Question::kUnalignedReserve);
  alignment = std::max(alignment, kAddressUnit);
  if (hint % alignment != 0) return Unknown(Question::kUnalignedReserve);
  const CUdeviceptr address = ReserveAddresses(bytes, alignment, hint);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const MutexLock lock(&mu_);
  reservations_[address] = bytes;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult Vmm::Free(CUdeviceptr address, std::uint64_t bytes) {
  {
    const MutexLock lock(&mu_);
    const auto found = reservations_.find(address);
    if (found == reservations_.end()) return CUDA_ERROR_INVALID_VALUE;
    if (found->second != bytes && !SIMCUDA_BREAK("free-in-part")) return CUDA_ERROR_INVALID_VALUE;
    if (AnyMapping(address, bytes) && !SIMCUDA_BREAK("free-while-mapped")) return Unknown(Question::kFreeWhileMapped);
    reservations_.erase(found);
  }
  ::munmap(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes);
  return CUDA_SUCCESS;
}

CUresult Vmm::Map(CUdeviceptr address, std::uint64_t bytes, CUmemGenericAllocationHandle handle) {
  const MutexLock lock(&mu_);
  const Handle* const entry = FindHandle(handle);
  if (entry == nullptr || address == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes < entry->object->bytes() && !SIMCUDA_BREAK("map-in-part")) return Unknown(Question::kMapSize);
  if (bytes > entry->object->bytes() && !SIMCUDA_BREAK("map-beyond")) return Unknown(Question::kMapSize);
  if (address % entry->object->store().config().granularity_bytes != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!InOneReservation(address, bytes) && !SIMCUDA_BREAK("map-unreserved")) return Unknown(Question::kMapUnreserved);
  if (AnyMapping(address, bytes) && !SIMCUDA_BREAK("map-over")) return Unknown(Question::kMapOverMapped);
  Mapping& mapping = mappings_[address];
  mapping.bytes = bytes;
  mapping.handle = handle;
  mapping.object = entry->object;
  mapping.prop = entry->prop;
  mapping.access.assign(visible_.size(), SIMCUDA_BREAK("map-gives-access") ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                           : CU_MEM_ACCESS_FLAGS_PROT_NONE);
  if (SIMCUDA_BREAK("memory-cpu-visible")) {
    ::mprotect(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes, PROT_READ | PROT_WRITE);
  }
  return CUDA_SUCCESS;
}

CUresult Vmm::Unmap(CUdeviceptr address, std::uint64_t bytes) {
  std::vector<std::shared_ptr<Object>> dropped;  // outlives the lock, as in Release
  const MutexLock lock(&mu_);
  const auto part = MappingAt(address);
  if (part != mappings_.end() && bytes < part->second.bytes && SIMCUDA_BREAK("unmap-in-part")) {
    dropped.push_back(std::move(part->second.object));
    mappings_.erase(part);
    return CUDA_SUCCESS;
  }
  if (!CoversWhole(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first - address < bytes;) {
    if (SIMCUDA_BREAK("unmap-clears")) std::memset(at->second.object->data(), 0, at->second.bytes);
    dropped.push_back(std::move(at->second.object));
    at = mappings_.erase(at);
  }
  return CUDA_SUCCESS;
}

CUresult Vmm::SetAccess(CUdeviceptr address, std::uint64_t bytes, const CUmemAccessDesc* desc, std::size_t count) {
  if (desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (count == 0) return Unknown(Question::kAccessCountZero);
  for (std::size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (desc[i].location.id < 0 || static_cast<std::size_t>(desc[i].location.id) >= visible_.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const CUmemAccess_flags flags = desc[i].flags;
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const MutexLock lock(&mu_);
  if (!CoversWhole(address, bytes) && !(MappingAt(address) != mappings_.end() && SIMCUDA_BREAK("access-in-part"))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (auto at = mappings_.find(address); at != mappings_.end() && at->first - address < bytes; ++at) {
    for (std::size_t i = 0; i < count; ++i) {
      at->second.access[static_cast<std::size_t>(desc[i].location.id)] = desc[i].flags;
      if (SIMCUDA_BREAK("access-for-all-devices")) at->second.access.assign(visible_.size(), desc[i].flags);
    }
  }
  return CUDA_SUCCESS;
}

CUresult Vmm::GetAccess(CUdeviceptr address, int device, unsigned long long* flags) {
  if (device < 0 || static_cast<std::size_t>(device) >= visible_.size()) return CUDA_ERROR_INVALID_DEVICE;
  const MutexLock lock(&mu_);
  const auto at = MappingAt(address);
  if (at == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
  *flags = at->second.access[static_cast<std::size_t>(device)];
  return CUDA_SUCCESS;
}

CUresult Vmm::FindMapping(CUdeviceptr address, CUdeviceptr* base, std::uint64_t* bytes) {
  const MutexLock lock(&mu_);
  const auto at = MappingAt(address);
  if (at == mappings_.end()) return CUDA_ERROR_NOT_FOUND;
  *base = at->first;
  *bytes = at->second.bytes;
  return CUDA_SUCCESS;
}

bool Vmm::IsReserved(CUdeviceptr address) {
  const MutexLock lock(&mu_);
  return InOneReservation(address, 1);
}

bool Vmm::Describe(CUdeviceptr address, Place* out) {
  const MutexLock lock(&mu_);
  if (!InOneReservation(address, 1)) return false;
  const auto range = std::prev(reservations_.upper_bound(address));
  out->range = range->first;
  out->range_bytes = range->second;
  const auto at = MappingAt(address);
  if (at == mappings_.end()) return true;
  out->mapping = at->first;
  out->mapping_bytes = at->second.bytes;
  out->handle = at->second.handle;
  out->prop = at->second.prop;
  out->access = at->second.access;
  return true;
}

bool Vmm::Resolve(CUdeviceptr address, std::uint64_t bytes, int device, Need need, Piece* out) {
  const MutexLock lock(&mu_);
  const auto at = MappingAt(address);
  if (at == mappings_.end()) return false;
  if (!Permits(at->second.access[static_cast<std::size_t>(device)], need)) return false;
  out->object = at->second.object;
  out->offset = address - at->first;
  out->bytes = std::min(bytes, at->second.bytes - out->offset);
  return true;
}

bool Vmm::Allows(CUdeviceptr address, std::uint64_t bytes, int device, Need need) {
  while (bytes > 0) {
    Piece piece;
    if (!Resolve(address, bytes, device, need, &piece)) return false;
    address += piece.bytes;
    bytes -= piece.bytes;
  }
  return true;
}

pid_t Vmm::ForkUnlocked() {
  const MutexLock lock(&mu_);
  return ::fork();
}

CUresult Vmm::AllocateLinear(int device, std::uint64_t bytes, CUdeviceptr* out) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  const std::uint64_t unit =
      std::max(kAddressUnit, visible_[static_cast<std::size_t>(device)]->config().granularity_bytes);
  const auto rounded = gpumem::CheckedRoundUp(bytes, unit);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!rounded) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult result = Create(&handle, *rounded, prop); result != CUDA_SUCCESS) return result;
  CUdeviceptr address = 0;
  CUresult result = Reserve(&address, *rounded, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = Map(address, *rounded, handle);
    const CUmemAccessDesc desc{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (result == CUDA_SUCCESS) result = SetAccess(address, *rounded, &desc, 1);
  }
  Release(handle);
  if (result != CUDA_SUCCESS) return result;
  const MutexLock lock(&mu_);
  linear_[address] = *rounded;
  *out = address;
  return CUDA_SUCCESS;
}

CUresult Vmm::FreeLinear(CUdeviceptr address) {
  std::uint64_t bytes = 0;
  {
    const MutexLock lock(&mu_);
    const auto found = linear_.find(address);
    if (found == linear_.end()) return CUDA_ERROR_INVALID_VALUE;
    bytes = found->second;
    linear_.erase(found);
  }
  const CUresult result = Unmap(address, bytes);
  return result == CUDA_SUCCESS ? Free(address, bytes) : result;
}

}  // namespace simcuda
