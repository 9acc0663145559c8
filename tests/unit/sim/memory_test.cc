// Copies and fills; access checks; sparse memory; device addresses are not CPU addresses.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cuda/checksum.h"
#include "cuda/kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::cuda::Kernels;
using gpumem::cuda::PhysicalHandle;

class MemoryTest : public MachineTest {
 protected:
  // What the machine's memory really takes on the file system.
  std::uint64_t ResidentBytes() const {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
      struct stat status {};
      if (entry.path().filename() == "memory" && ::stat(entry.path().c_str(), &status) == 0) {
        bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
      }
    }
    return bytes;
  }
};

TEST_F(MemoryTest, FreshMemoryIsZeroAndContentsArrive) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 8 * kMiB);
    std::vector<unsigned char> seen(8 * kMiB, 0xff);
    EXPECT_EQ(gpu->MemcpyDtoH(seen.data(), mapped.address(), seen.size()), CUDA_SUCCESS);
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](unsigned char c) { return c == 0; }));

    std::vector<unsigned char> data(5 * kMiB + 3);
    std::iota(data.begin(), data.end(), static_cast<unsigned char>(1));
    EXPECT_EQ(gpu->MemcpyHtoD(mapped.address() + kMiB + 1, data.data(), data.size()), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(seen.data(), mapped.address(), seen.size()), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(seen.data() + kMiB + 1, data.data(), data.size()), 0);
    EXPECT_EQ(seen[kMiB], 0);
    EXPECT_EQ(seen[kMiB + 1 + data.size()], 0);
  });
}

TEST_F(MemoryTest, OneCopyMaySpanMappings) {
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::AddressRange range;
    ASSERT_EQ(gpumem::cuda::AddressRange::Reserve(*gpu, 4 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    PhysicalHandle one = CreateHandle(gpu, 2 * kMiB);
    PhysicalHandle two = CreateHandle(gpu, 2 * kMiB);
    gpumem::cuda::Mapping first;
    gpumem::cuda::Mapping second;
    ASSERT_EQ(gpumem::cuda::Mapping::Map(*gpu, range.address(), one, &first), CUDA_SUCCESS);
    ASSERT_EQ(gpumem::cuda::Mapping::Map(*gpu, range.address() + 2 * kMiB, two, &second), CUDA_SUCCESS);
    ASSERT_EQ(first.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    const std::uint64_t value = 0x1122334455667788;
    std::uint64_t seen = 0;
    const CUdeviceptr across = range.address() + 2 * kMiB - 4;
    EXPECT_EQ(gpu->MemcpyHtoD(across, &value, 8), CUDA_ERROR_INVALID_VALUE);  // the second one has no access yet
    ASSERT_EQ(second.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyHtoD(across, &value, 8), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(&seen, across, 8), CUDA_SUCCESS);
    EXPECT_EQ(seen, value);
  });
}

TEST_F(MemoryTest, FillsAndDeviceCopies) {
  InChild([&] {
    Gpu gpu;
    Mapped from = CreateMapped(gpu, 2 * kMiB);
    Mapped to = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(gpu->MemsetD32(from.address(), 0x01020304, kMiB / 4), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD8(to.address(), 0xee, 2 * kMiB), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoD(to.address(), from.address() + kMiB / 2, kMiB), CUDA_SUCCESS);
    std::vector<unsigned char> seen(2 * kMiB);
    EXPECT_EQ(gpu->MemcpyDtoH(seen.data(), to.address(), seen.size()), CUDA_SUCCESS);
    EXPECT_EQ(seen[0], 4);
    EXPECT_EQ(seen[3], 1);
    EXPECT_EQ(seen[kMiB / 2], 0);  // the source's hole overwrote it
    EXPECT_EQ(seen[kMiB - 1], 0);
    EXPECT_EQ(seen[kMiB], 0xee);  // and no more than that
    EXPECT_EQ(gpu->MemsetD32(to.address() + 2, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemsetD32(to.address(), 1, SIZE_MAX / 2), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(MemoryTest, RefusedCopiesAreNotSticky) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 2 * kMiB, CU_MEM_ACCESS_FLAGS_PROT_READ);
    char bytes[16] = {};
    EXPECT_EQ(gpu->MemcpyHtoD(mapped.address(), bytes, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemcpyHtoDAsync(mapped.address(), bytes, 16, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemsetD8(mapped.address(), 1, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, mapped.address(), 16), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, mapped.address() + 2 * kMiB - 8, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, 0x1000, 16), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(mapped.mapping.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, mapped.address(), 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(MemoryTest, AccessOfOneDeviceIsNotAnothers) {
  InChild([&] {
    Gpu gpu;  // device 0
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    CUcontext other = nullptr;
    ASSERT_EQ(gpu->DevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    ASSERT_EQ(gpu->CtxSetCurrent(other), CUDA_SUCCESS);
    char bytes[16] = {};
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, mapped.address(), 16), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(mapped.mapping.SetAccess(1, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(bytes, mapped.address(), 16), CUDA_SUCCESS);
  });
}

TEST_F(MemoryTest, SparseMemoryStaysSparse) {
  InChild([&] {
    Gpu gpu;
    constexpr std::uint64_t kLarge = 4 * kGiB;
    Mapped mapped = CreateMapped(gpu, kLarge);
    const std::uint64_t word = 42;
    EXPECT_EQ(gpu->MemcpyHtoD(mapped.address() + kGiB, &word, 8), CUDA_SUCCESS);
    std::unique_ptr<Kernels> kernels;
    ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
    Mapped out = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(kernels->Checksum(nullptr, mapped.address(), kLarge, out.address()), CUDA_SUCCESS);
    std::uint64_t sum = 0;
    EXPECT_EQ(gpu->MemcpyDtoH(&sum, out.address(), 8), CUDA_SUCCESS);
    EXPECT_EQ(sum, gpumem::cuda::ChecksumWord(42, kGiB / 8));

    std::vector<unsigned char> seen(64 * kMiB);
    EXPECT_EQ(gpu->MemcpyDtoH(seen.data(), mapped.address() + 2 * kGiB, seen.size()), CUDA_SUCCESS);
    EXPECT_LE(ResidentBytes(), kMiB);
    EXPECT_EQ(gpu->MemsetD8(mapped.address() + 3 * kGiB, 1, 8 * kMiB), CUDA_SUCCESS);
    EXPECT_GE(ResidentBytes(), 8 * kMiB);
    EXPECT_EQ(gpu->MemsetD8(mapped.address(), 0, kLarge), CUDA_SUCCESS);
    EXPECT_LE(ResidentBytes(), kMiB);
    EXPECT_EQ(gpu->MemcpyDtoH(seen.data(), mapped.address() + 3 * kGiB, seen.size()), CUDA_SUCCESS);
    EXPECT_EQ(*std::max_element(seen.begin(), seen.end()), 0);
  });
}

TEST_F(MemoryTest, ChecksumKernelAgreesWithTheCpu) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 8 * kMiB);
    Mapped out = CreateMapped(gpu, 2 * kMiB);
    std::unique_ptr<Kernels> kernels;
    ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
    std::vector<unsigned char> data(6 * kMiB + 5);
    std::uint32_t state = 1;
    for (auto& byte : data) byte = static_cast<unsigned char>((state = state * 1664525 + 1013904223) >> 24);
    EXPECT_EQ(gpu->MemcpyHtoD(mapped.address(), data.data(), data.size()), CUDA_SUCCESS);
    for (const std::uint64_t bytes : {data.size(), data.size() - 5, std::size_t{7}, std::size_t{8}, std::size_t{0}}) {
      EXPECT_EQ(gpu->MemsetD8(out.address(), 0, 8), CUDA_SUCCESS);
      EXPECT_EQ(kernels->Checksum(nullptr, mapped.address(), bytes, out.address()), CUDA_SUCCESS);
      std::uint64_t sum = 0;
      EXPECT_EQ(gpu->MemcpyDtoH(&sum, out.address(), 8), CUDA_SUCCESS);
      EXPECT_EQ(sum, gpumem::cuda::Checksum(data.data(), bytes)) << bytes;
    }
  });
}

TEST_F(MemoryTest, FreeMemoryIsTheTruth) {
  InChild([&] {
    Gpu gpu;
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(gpu->MemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(free, 80 * kGiB);
    PhysicalHandle handle = CreateHandle(gpu, kGiB);
    EXPECT_EQ(gpu->MemGetInfo(&free, &total), CUDA_SUCCESS);
    EXPECT_EQ(free, 79 * kGiB);
    EXPECT_EQ(total, 80 * kGiB);
  });
}

TEST_F(MemoryTest, PlainAllocations) {
  InChild([&] {
    Gpu gpu;
    const auto allocate = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(gpu->FindSymbol("cuMemAlloc_v2"));
    const auto release = reinterpret_cast<CUresult (*)(CUdeviceptr)>(gpu->FindSymbol("cuMemFree_v2"));
    CUdeviceptr address = 0;
    ASSERT_EQ(allocate(&address, 100), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD8(address, 1, 100), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
    EXPECT_EQ(release(address), CUDA_SUCCESS);
    EXPECT_EQ(release(address), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(PhysicalBytes(), 0u);
    EXPECT_EQ(allocate(&address, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(allocate(&address, 81 * kGiB), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(allocate(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    void* host = nullptr;
    EXPECT_EQ(gpu->MemHostAlloc(&host, 100, 0), CUDA_SUCCESS);
    std::memset(host, 1, 100);
    EXPECT_EQ(gpu->MemFreeHost(host), CUDA_SUCCESS);
  });
}

// The address of mapped, accessible device memory, touched by the CPU.
TEST_F(MemoryTest, DeviceAddressesAreNotCpuAddresses) {
  for (const bool write : {false, true}) {
    Child child([&](int) {
      Gpu gpu;
      Mapped mapped = CreateMapped(gpu, 2 * kMiB);
      if (gpu->MemsetD8(mapped.address(), 1, 2 * kMiB) != CUDA_SUCCESS) ::_exit(0);
      ::signal(SIGSEGV, [](int) { ::_exit(77); });
      auto* const touched = reinterpret_cast<volatile char*>(static_cast<uintptr_t>(mapped.address()));
      if (write) {
        *touched = 1;
      } else {
        (void)*touched;
      }
    });
    const int status = child.Wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 77) << "the CPU could touch device memory";
  }
}

}  // namespace
}  // namespace simtest
