// The rules of virtual memory management.
#include <fcntl.h>

#include <cstring>

#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::UniqueFd;
using gpumem::cuda::AddressRange;
using gpumem::cuda::DeviceMemoryProp;
using gpumem::cuda::Mapping;
using gpumem::cuda::PhysicalHandle;

class VmmTest : public MachineTest {};

CUmemAccessDesc Access(int device, CUmemAccess_flags flags) {
  return CUmemAccessDesc{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

TEST_F(VmmTest, CreateChecksItsArguments) {
  InChild([&] {
    Gpu gpu(false);
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp good = DeviceMemoryProp(0, true);
    EXPECT_EQ(gpu->MemCreate(&handle, 0, &good, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB + 4096, &good, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(&handle, kMiB, &good, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &good, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(nullptr, 2 * kMiB, &good, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
    CUmemAllocationProp prop = good;
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = good;
    prop.location.id = 2;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop.location.id = -1;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    prop.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    prop = good;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
    prop = good;
    prop.win32HandleMetaData = &prop;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    prop = good;
    prop.allocFlags.reserved[3] = 1;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemCreate(&handle, 82 * kGiB, &good, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
}

TEST_F(VmmTest, GranularityIsAsked) {
  InChild([&] {
    Gpu gpu(false);
    const CUmemAllocationProp prop = DeviceMemoryProp(0, true);
    size_t granularity = 0;
    EXPECT_EQ(gpu->MemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
    EXPECT_EQ(granularity, 2 * kMiB);
    EXPECT_EQ(gpu->MemGetAllocationGranularity(nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(
        gpu->MemGetAllocationGranularity(&granularity, &prop, static_cast<CUmemAllocationGranularity_flags>(0xff)),
        CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(VmmTest, MemoryWithoutTheHandleTypeIsNeverExportable) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB, /*exportable=*/false);
    UniqueFd fd;
    EXPECT_EQ(handle.Export(&fd), CUDA_ERROR_INVALID_VALUE);
    PhysicalHandle exportable = CreateHandle(gpu, 2 * kMiB);
    int raw = -1;
    EXPECT_EQ(gpu->MemExportToShareableHandle(nullptr, exportable.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemExportToShareableHandle(&raw, exportable.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemExportToShareableHandle(&raw, exportable.get(), CU_MEM_HANDLE_TYPE_WIN32, 0),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(raw, -1);
    // The driver's own descriptor is inheritable here, so that nobody relies on the opposite.
    EXPECT_EQ(gpu->MemExportToShareableHandle(&raw, exportable.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    UniqueFd owned(raw);
    EXPECT_EQ(::fcntl(raw, F_GETFD), 0);
    EXPECT_EQ(exportable.Export(&fd), CUDA_SUCCESS);
    EXPECT_EQ(::fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  });
}

TEST_F(VmmTest, HandlesCountReferences) {
  InChild([&] {
    Gpu gpu(false);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    CUmemGenericAllocationHandle retained = 0;
    const auto inside = reinterpret_cast<void*>(static_cast<uintptr_t>(mapped.address() + kMiB));
    EXPECT_EQ(gpu->MemRetainAllocationHandle(&retained, inside), CUDA_SUCCESS);
    EXPECT_EQ(retained, mapped.handle.get());
    EXPECT_EQ(gpu->MemRelease(retained), CUDA_SUCCESS);
    EXPECT_EQ(mapped.handle.Release(), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemRelease(retained), CUDA_ERROR_INVALID_VALUE);  // stale
    // A mapping brings back the handle that it was made with.
    CUmemGenericAllocationHandle again = 0;
    EXPECT_EQ(gpu->MemRetainAllocationHandle(&again, inside), CUDA_SUCCESS);
    EXPECT_EQ(again, retained);
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
    EXPECT_EQ(gpu->MemRetainAllocationHandle(&retained, inside), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemRelease(again), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
}

TEST_F(VmmTest, PropertiesTravelWithTheHandle) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle;
    ASSERT_EQ(PhysicalHandle::Create(*gpu, 1, 2 * kMiB, true, &handle), CUDA_SUCCESS);
    UniqueFd fd;
    ASSERT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    PhysicalHandle imported;
    ASSERT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &imported), CUDA_SUCCESS);
    CUmemAllocationProp prop{};
    EXPECT_EQ(gpu->MemGetAllocationPropertiesFromHandle(&prop, imported.get()), CUDA_SUCCESS);
    EXPECT_EQ(prop.location.id, 1);
    EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_EQ(gpu->MemGetAllocationPropertiesFromHandle(&prop, 12345), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(PhysicalBytes(0), 0u);
    EXPECT_EQ(PhysicalBytes(1), 2 * kMiB);
  });
}

TEST_F(VmmTest, ReserveChecksItsArguments) {
  InChild([&] {
    Gpu gpu(false);
    CUdeviceptr address = 0;
    EXPECT_EQ(gpu->MemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(&address, kMiB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(&address, 2 * kMiB, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(&address, 2 * kMiB, 0, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(&address, 2 * kMiB, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(nullptr, 2 * kMiB, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressReserve(&address, std::uint64_t{1} << 47, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(address, 0u);
    AddressRange aligned;
    EXPECT_EQ(AddressRange::Reserve(*gpu, 2 * kMiB, kGiB, 0, &aligned), CUDA_SUCCESS);
    EXPECT_EQ(aligned.address() % kGiB, 0u);
    AddressRange large;
    EXPECT_EQ(AddressRange::Reserve(*gpu, std::uint64_t{1} << 38, 0, 0, &large), CUDA_SUCCESS);
  });
}

TEST_F(VmmTest, HintsAreHonouredWhenFreeAndElsewhereOtherwise) {
  InChild([&] {
    Gpu gpu(false);
    AddressRange space;
    ASSERT_EQ(AddressRange::Reserve(*gpu, kGiB, 0, 0, &space), CUDA_SUCCESS);
    const CUdeviceptr hint = space.address() + kGiB / 2;  // in the middle: nothing is put there by chance
    AddressRange elsewhere;
    EXPECT_EQ(AddressRange::Reserve(*gpu, 64 * kMiB, 0, hint, &elsewhere), CUDA_SUCCESS);
    EXPECT_NE(elsewhere.address(), hint);
    EXPECT_NE(elsewhere.address(), 0u);
    EXPECT_EQ(space.Free(), CUDA_SUCCESS);
    AddressRange there;
    EXPECT_EQ(AddressRange::Reserve(*gpu, 64 * kMiB, 0, hint, &there), CUDA_SUCCESS);
    EXPECT_EQ(there.address(), hint);
  });
}

TEST_F(VmmTest, FreeTakesExactlyOneReservationWithNothingMapped) {
  InChild([&] {
    Gpu gpu(false);
    AddressRange range;
    ASSERT_EQ(AddressRange::Reserve(*gpu, 8 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    const CUdeviceptr at = range.address();
    EXPECT_EQ(gpu->MemAddressFree(at, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressFree(at, 16 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemAddressFree(at + 2 * kMiB, 6 * kMiB), CUDA_ERROR_INVALID_VALUE);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    Mapping mapping;
    ASSERT_EQ(Mapping::Map(*gpu, at + 6 * kMiB, handle, &mapping), CUDA_SUCCESS);
    EXPECT_EQ(range.Free(), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(mapping.Unmap(), CUDA_SUCCESS);
    EXPECT_EQ(range.Free(), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemAddressFree(at, 8 * kMiB), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(VmmTest, OnlyWholeHandlesAreMappedIntoFreeReservedRanges) {
  InChild([&] {
    Gpu gpu(false);
    AddressRange range;
    ASSERT_EQ(AddressRange::Reserve(*gpu, 16 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    const CUdeviceptr at = range.address();
    PhysicalHandle handle = CreateHandle(gpu, 4 * kMiB);
    const auto map = [&](CUdeviceptr address, size_t bytes, size_t offset) {
      return gpu->MemMap(address, bytes, offset, handle.get(), 0);
    };
    EXPECT_EQ(map(at, 2 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);         // part
    EXPECT_EQ(map(at, 2 * kMiB, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);  // the other part
    EXPECT_EQ(map(at, 8 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);         // more than there is
    EXPECT_EQ(map(at, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(map(0, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(map(at + kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);       // unaligned
    EXPECT_EQ(map(at + 14 * kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);  // out of the reservation
    EXPECT_EQ(map(at - 2 * kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemMap(at, 4 * kMiB, 0, handle.get(), 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemMap(at, 4 * kMiB, 0, 77, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(map(at + 4 * kMiB, 4 * kMiB, 0), CUDA_SUCCESS);
    EXPECT_EQ(map(at + 4 * kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);  // there already
    EXPECT_EQ(map(at + 2 * kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);  // overlaps its beginning
    EXPECT_EQ(map(at + 6 * kMiB, 4 * kMiB, 0), CUDA_ERROR_INVALID_VALUE);  // and its end
    EXPECT_EQ(map(at + 8 * kMiB, 4 * kMiB, 0), CUDA_SUCCESS);              // an alias beside it
    EXPECT_EQ(gpu->MemUnmap(at + 4 * kMiB, 8 * kMiB), CUDA_SUCCESS);       // several at once
  });
}

TEST_F(VmmTest, OnlyWholeMappingsAreUnmapped) {
  InChild([&] {
    Gpu gpu(false);
    AddressRange range;
    ASSERT_EQ(AddressRange::Reserve(*gpu, 16 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    const CUdeviceptr at = range.address();
    PhysicalHandle handle = CreateHandle(gpu, 4 * kMiB);
    for (const std::uint64_t offset : {std::uint64_t{0}, 4 * kMiB, 12 * kMiB}) {
      ASSERT_EQ(gpu->MemMap(at + offset, 4 * kMiB, 0, handle.get(), 0), CUDA_SUCCESS);
    }
    EXPECT_EQ(gpu->MemUnmap(at, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at + 2 * kMiB, 2 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at, 6 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(0, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at, 16 * kMiB), CUDA_ERROR_INVALID_VALUE);  // a hole in it
    unsigned long long flags = 9;
    const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(gpu->MemGetAccess(&flags, &device, at + kMiB), CUDA_SUCCESS);  // nothing was unmapped by the failures
    EXPECT_EQ(gpu->MemUnmap(at, 8 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemUnmap(at, 4 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at + 12 * kMiB, 4 * kMiB), CUDA_SUCCESS);
  });
}

TEST_F(VmmTest, AccessIsPerDeviceAndOverWholeMappings) {
  InChild([&] {
    Gpu gpu(false);
    AddressRange range;
    ASSERT_EQ(AddressRange::Reserve(*gpu, 8 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    const CUdeviceptr at = range.address();
    PhysicalHandle one = CreateHandle(gpu, 2 * kMiB);
    PhysicalHandle two = CreateHandle(gpu, 4 * kMiB);
    ASSERT_EQ(gpu->MemMap(at, 2 * kMiB, 0, one.get(), 0), CUDA_SUCCESS);
    ASSERT_EQ(gpu->MemMap(at + 2 * kMiB, 4 * kMiB, 0, two.get(), 0), CUDA_SUCCESS);
    const auto access_of = [&](int device, CUdeviceptr address) {
      const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
      unsigned long long flags = 99;
      EXPECT_EQ(gpu->MemGetAccess(&flags, &location, address), CUDA_SUCCESS);
      return flags;
    };
    EXPECT_EQ(access_of(0, at), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    const CUmemAccessDesc both[] = {Access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                                    Access(1, CU_MEM_ACCESS_FLAGS_PROT_READ)};
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, both, 2), CUDA_SUCCESS);
    EXPECT_EQ(access_of(0, at + 5 * kMiB), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    EXPECT_EQ(access_of(1, at + 5 * kMiB), CU_MEM_ACCESS_FLAGS_PROT_READ);

    const CUmemAccessDesc none = Access(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    EXPECT_EQ(gpu->MemSetAccess(at + 2 * kMiB, 2 * kMiB, &none, 1), CUDA_ERROR_INVALID_VALUE);  // a part
    EXPECT_EQ(gpu->MemSetAccess(at, 8 * kMiB, &none, 1), CUDA_ERROR_INVALID_VALUE);             // a hole at the end
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, &none, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    const CUmemAccessDesc nowhere = Access(2, CU_MEM_ACCESS_FLAGS_PROT_READ);
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, &nowhere, 1), CUDA_ERROR_INVALID_DEVICE);
    const CUmemAccessDesc odd = Access(0, static_cast<CUmemAccess_flags>(2));
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, &odd, 1), CUDA_ERROR_INVALID_VALUE);
    CUmemAccessDesc host = Access(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
    host.location.type = CU_MEM_LOCATION_TYPE_HOST;
    EXPECT_EQ(gpu->MemSetAccess(at, 6 * kMiB, &host, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(access_of(0, at), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

    // Mapping anew starts without access.
    EXPECT_EQ(gpu->MemUnmap(at, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemMap(at, 2 * kMiB, 0, one.get(), 0), CUDA_SUCCESS);
    EXPECT_EQ(access_of(0, at), CU_MEM_ACCESS_FLAGS_PROT_NONE);
    unsigned long long flags = 0;
    const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(gpu->MemGetAccess(&flags, &device, at + 7 * kMiB), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemUnmap(at, 6 * kMiB), CUDA_SUCCESS);
  });
}

TEST_F(VmmTest, ImportsAliasOneMemoryWithAccessOfTheirOwn) {
  InChild([&] {
    Gpu gpu;
    Mapped writer = CreateMapped(gpu, 2 * kMiB);
    UniqueFd fd;
    ASSERT_EQ(writer.handle.Export(&fd), CUDA_SUCCESS);
    PhysicalHandle imported;
    ASSERT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &imported), CUDA_SUCCESS);
    Mapped reader = MapHandle(gpu, std::move(imported), CU_MEM_ACCESS_FLAGS_PROT_READ);
    const std::uint32_t word = 0x600dcafe;
    EXPECT_EQ(gpu->MemcpyHtoD(writer.address() + 4096, &word, 4), CUDA_SUCCESS);
    std::uint32_t seen = 0;
    EXPECT_EQ(gpu->MemcpyDtoH(&seen, reader.address() + 4096, 4), CUDA_SUCCESS);
    EXPECT_EQ(seen, word);
    EXPECT_EQ(gpu->MemcpyHtoD(reader.address() + 4096, &word, 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(VmmTest, AWrongSizeFailsTheImportersMap) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 4 * kMiB);
    UniqueFd fd;
    ASSERT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    PhysicalHandle imported;
    ASSERT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &imported), CUDA_SUCCESS);
    AddressRange range;
    ASSERT_EQ(AddressRange::Reserve(*gpu, 4 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    Mapping mapping;
    EXPECT_EQ(Mapping::Map(*gpu, range.address(), imported, &mapping), CUDA_ERROR_INVALID_VALUE);
    EXPECT_FALSE(mapping.valid());
  });
}

TEST_F(VmmTest, AnotherProcessSeesTheContents) {
  Child writer([&](int socket) {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const char text[] = "kept while referenced";
    EXPECT_EQ(gpu->MemcpyHtoD(mapped.address() + 100, text, sizeof text), CUDA_SUCCESS);
    UniqueFd fd;
    EXPECT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
  });
  UniqueFd fd = Receive(writer.socket());
  EXPECT_EQ(writer.Wait(), 0);
  InChild([&] {
    Gpu gpu;
    PhysicalHandle handle;
    ASSERT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    Mapped mapped = MapHandle(gpu, std::move(handle), CU_MEM_ACCESS_FLAGS_PROT_READ);
    char seen[22] = {};
    EXPECT_EQ(gpu->MemcpyDtoH(seen, mapped.address() + 100, sizeof seen), CUDA_SUCCESS);
    EXPECT_STREQ(seen, "kept while referenced");
  });
}

}  // namespace
}  // namespace simtest
