// Plain memory of the device and of the host, what an address is, copies that find that out, and attributes.
#include <array>
#include <fstream>

#include "cuda/sim/sim_api.h"
#include "tests/unit/sim/own_kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

class PlainMemoryTest : public MachineTest {};

template <typename T>
CUresult Attribute(const Gpu& gpu, CUpointer_attribute attribute, CUdeviceptr address, T* value) {
  return Entry<void*, CUpointer_attribute, CUdeviceptr>(gpu, "cuPointerGetAttribute")(value, attribute, address);
}

// The attribute's value; the test fails when there is none.
template <typename T>
T ValueOf(const Gpu& gpu, CUpointer_attribute attribute, CUdeviceptr address) {
  T value{};
  EXPECT_EQ(Attribute(gpu, attribute, address, &value), CUDA_SUCCESS) << attribute;
  return value;
}

CUdeviceptr Allocate(const Gpu& gpu, size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ((Entry<CUdeviceptr*, size_t>(gpu, "cuMemAlloc_v2")(&address, bytes)), CUDA_SUCCESS);
  return address;
}
CUdeviceptr AddressOf(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

TEST_F(PlainMemoryTest, AttributesOfMappedMemory) {
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    gpumem::cuda::AddressRange range;
    ASSERT_EQ(gpumem::cuda::AddressRange::Reserve(*gpu, 8 * kMiB, 0, 0, &range), CUDA_SUCCESS);
    gpumem::cuda::Mapping mapping;
    const CUdeviceptr base = range.address() + 2 * kMiB;
    const CUdeviceptr at = base + 100;
    int zero = 99;
    // A reserved range with nothing there.
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at), range.address());
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, at), 0);
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &zero), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(gpumem::cuda::Mapping::Map(*gpu, base, handle, &mapping), CUDA_SUCCESS);

    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, at), 1);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, base + 2 * kMiB), 0);
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at), range.address());
    EXPECT_EQ(ValueOf<size_t>(gpu, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at), 8 * kMiB);
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at), base);
    EXPECT_EQ(ValueOf<size_t>(gpu, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at), 2 * kMiB);
    EXPECT_EQ(ValueOf<unsigned>(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at), 0);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 0);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_IS_MANAGED, at), 0);
    EXPECT_EQ(ValueOf<unsigned long long>(gpu, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at),
              static_cast<unsigned long long>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUcontext context = gpu.context;
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_CONTEXT, at, &context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);  // it is of none
    void* host = nullptr;
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_HOST_POINTER, at, &host), CUDA_ERROR_INVALID_VALUE);

    CUdeviceptr device = 0;
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at, &device), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(ValueOf<unsigned>(gpu, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at), 0u);
    ASSERT_EQ(mapping.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at), at);
    EXPECT_EQ(ValueOf<unsigned>(gpu, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, at), 1u);
    EXPECT_EQ(gpu->CtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at, &device), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, at), 1);  // needs no context

    const auto id = ValueOf<unsigned long long>(gpu, CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
    Mapped other = CreateMapped(gpu, 2 * kMiB);
    EXPECT_NE(ValueOf<unsigned long long>(gpu, CU_POINTER_ATTRIBUTE_BUFFER_ID, other.address()), id);
    EXPECT_EQ(Attribute(gpu, static_cast<CUpointer_attribute>(500), at, &device), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Attribute<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, at, nullptr), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(PlainMemoryTest, AttributesOfPlainMemory) {
  InChild([&] {
    Gpu gpu;
    const CUdeviceptr at = Allocate(gpu, 100);
    EXPECT_EQ(ValueOf<CUcontext>(gpu, CU_POINTER_ATTRIBUTE_CONTEXT, at + 99), gpu.context);
    EXPECT_EQ(ValueOf<unsigned>(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 99), at);
    EXPECT_EQ(ValueOf<size_t>(gpu, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 99), 100u);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 1);
    EXPECT_EQ(ValueOf<unsigned long long>(gpu, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at), 0u);
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at), at);
    const auto range = Entry<CUdeviceptr*, size_t*, CUdeviceptr>(gpu, "cuMemGetAddressRange_v2");
    CUdeviceptr base = 0;
    size_t bytes = 0;
    EXPECT_EQ(range(&base, &bytes, at + 50), CUDA_SUCCESS);
    EXPECT_EQ(base, at);
    EXPECT_EQ(bytes, 100u);

    EXPECT_EQ(Entry<CUdeviceptr>(gpu, "cuMemFree_v2")(at), CUDA_SUCCESS);
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at, &base), CUDA_ERROR_INVALID_VALUE);

    void* pinned = nullptr;
    ASSERT_EQ(gpu->MemHostAlloc(&pinned, 1000, 1), CUDA_SUCCESS);
    const CUdeviceptr host = AddressOf(pinned);
    EXPECT_EQ(ValueOf<unsigned>(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host), unsigned{CU_MEMORYTYPE_HOST});
    EXPECT_EQ(ValueOf<void*>(gpu, CU_POINTER_ATTRIBUTE_HOST_POINTER, host), pinned);
    EXPECT_EQ(ValueOf<CUdeviceptr>(gpu, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, host), host);
    EXPECT_EQ(ValueOf<CUcontext>(gpu, CU_POINTER_ATTRIBUTE_CONTEXT, host), gpu.context);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, host), 0);
    EXPECT_EQ(ValueOf<int>(gpu, CU_POINTER_ATTRIBUTE_MAPPED, host), 1);
    unsigned type = 99;
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host + 1000, &type), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->MemFreeHost(pinned), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Attribute(gpu, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host, &type), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(type, 99u);
  });
}

TEST_F(PlainMemoryTest, ManyAttributesAtOnceNeverFailForTheAddress) {
  InChild([&] {
    Gpu gpu;
    const auto get = Entry<unsigned, CUpointer_attribute*, void**, CUdeviceptr>(gpu, "cuPointerGetAttributes");
    int ipc = 99;
    unsigned long long types = 99;
    unsigned type = 99;
    void* host = &ipc;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* values[] = {&ipc, &types, &type, &host};
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(get(4, attributes, values, mapped.address()), CUDA_SUCCESS);
    EXPECT_EQ(ipc, 0);
    EXPECT_EQ(types, 1u);
    EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(host, nullptr);
    int local = 0;
    EXPECT_EQ(get(4, attributes, values, AddressOf(&local)), CUDA_SUCCESS);
    EXPECT_EQ(types, 0u);
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(get(0, attributes, values, mapped.address()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get(4, nullptr, values, mapped.address()), CUDA_ERROR_INVALID_VALUE);
    attributes[1] = static_cast<CUpointer_attribute>(500);
    EXPECT_EQ(get(4, attributes, values, mapped.address()), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(PlainMemoryTest, HostMemoryIsRegisteredOnceAndWhole) {
  InChild([&] {
    Gpu gpu;
    const auto add = Entry<void*, size_t, unsigned>(gpu, "cuMemHostRegister_v2");
    const auto remove = Entry<void*>(gpu, "cuMemHostUnregister");
    const auto device_pointer = Entry<CUdeviceptr*, void*, unsigned>(gpu, "cuMemHostGetDevicePointer_v2");
    std::array<char, 8192> memory{};
    CUdeviceptr address = 0;
    EXPECT_EQ(add(nullptr, 100, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(memory.data(), 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(memory.data(), 100, 16), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(memory.data(), 100, 4), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(device_pointer(&address, memory.data(), 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(add(memory.data() + 1000, 1000, 2), CUDA_SUCCESS);
    EXPECT_EQ(add(memory.data() + 1999, 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(add(memory.data() + 900, 101, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(add(memory.data() + 900, 100, 0), CUDA_SUCCESS);
    EXPECT_EQ(add(memory.data() + 2000, 100, 0), CUDA_SUCCESS);
    EXPECT_EQ(device_pointer(&address, memory.data() + 1500, 0), CUDA_SUCCESS);
    EXPECT_EQ(address, AddressOf(memory.data() + 1500));
    EXPECT_EQ(device_pointer(&address, memory.data() + 1500, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(remove(memory.data() + 1500), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EXPECT_EQ(remove(memory.data() + 1000), CUDA_SUCCESS);
    EXPECT_EQ(remove(memory.data() + 1000), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EXPECT_EQ(gpu->MemFreeHost(memory.data() + 900), CUDA_ERROR_INVALID_VALUE);  // it is not the driver's to free
    void* pinned = nullptr;
    EXPECT_EQ((Entry<void**, size_t>(gpu, "cuMemAllocHost_v2")(&pinned, 64)), CUDA_SUCCESS);
    EXPECT_EQ(remove(pinned), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EXPECT_EQ(add(pinned, 64, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(gpu->MemFreeHost(pinned), CUDA_SUCCESS);
  });
}

TEST_F(PlainMemoryTest, CopiesFindOutWhatAnAddressIs) {
  InChild([&] {
    Gpu gpu;
    const auto copy = Entry<CUdeviceptr, CUdeviceptr, size_t>(gpu, "cuMemcpy");
    const auto copy_async = Entry<CUdeviceptr, CUdeviceptr, size_t, CUstream>(gpu, "cuMemcpyAsync");
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    std::uint32_t from = 11;
    std::uint32_t to = 0;
    std::uint32_t third = 0;
    const CUstream stream = NewStream(gpu);
    EXPECT_EQ(copy(at, AddressOf(&from), 4), CUDA_SUCCESS);
    EXPECT_EQ(copy_async(at + 64, at, 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(copy_async(AddressOf(&to), at + 64, 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(to, 11u);
    EXPECT_EQ(copy(AddressOf(&third), AddressOf(&to), 4), CUDA_SUCCESS);
    EXPECT_EQ(third, 11u);
    EXPECT_EQ(copy(0, AddressOf(&to), 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(copy(at + 2 * kMiB - 2, AddressOf(&from), 4), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(PlainMemoryTest, FillsOfTwoBytes) {
  InChild([&] {
    Gpu gpu;
    const auto fill = Entry<CUdeviceptr, unsigned short, size_t>(gpu, "cuMemsetD16_v2");
    const auto fill_async = Entry<CUdeviceptr, unsigned short, size_t, CUstream>(gpu, "cuMemsetD16Async");
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    EXPECT_EQ(fill(at, 0xabcd, 3), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at), 0xabcdabcdu);
    EXPECT_EQ(Word(gpu, at + 4), 0x0000abcdu);
    EXPECT_EQ(fill_async(at, 0x1234, kMiB, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at + 2 * kMiB - 4), 0x12341234u);
    EXPECT_EQ(fill(at, 0, kMiB), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at + kMiB), 0u);
    EXPECT_EQ(fill(at + 1, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(fill(at, 1, kMiB + 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(fill(at, 1, SIZE_MAX / 2 + 1), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(PlainMemoryTest, LegacyIpcAndDmaBufAreRefused) {
  InChild([&] {
    Gpu gpu;
    const auto get = Entry<CUipcMemHandle*, CUdeviceptr>(gpu, "cuIpcGetMemHandle");
    const auto open = Entry<CUdeviceptr*, CUipcMemHandle, unsigned>(gpu, "cuIpcOpenMemHandle_v2");
    const auto close = Entry<CUdeviceptr>(gpu, "cuIpcCloseMemHandle");
    const auto dma_buf = Entry<void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long>(
        gpu, "cuMemGetHandleForAddressRange");
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    CUipcMemHandle handle{};
    CUdeviceptr address = 0;
    int fd = -1;
    EXPECT_EQ(get(&handle, mapped.address()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get(&handle, Allocate(gpu, 100)), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(open(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);  // the flag is required
    EXPECT_EQ(open(&address, handle, 1), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(close(mapped.address()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(dma_buf(&fd, mapped.address(), 2 * kMiB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
              CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(fd, -1);
  });
}

TEST_F(PlainMemoryTest, DevicesTellWhatTheyCan) {
  InChild([&] {
    Gpu gpu(false);
    const auto value = [&](int attribute) {
      int answer = 99;
      EXPECT_EQ(gpu->DeviceGetAttribute(&answer, static_cast<CUdevice_attribute>(attribute), 0), CUDA_SUCCESS);
      return answer;
    };
    EXPECT_EQ(value(1), 1024);
    EXPECT_EQ(value(10), 32);
    EXPECT_EQ(value(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED), 1);
    EXPECT_EQ(value(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1);
    EXPECT_EQ(value(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), 0);
    for (const int absent : {110, 115, 124, 128, 132, 141, 145}) EXPECT_EQ(value(absent), 0) << absent;
    EXPECT_EQ(value(134), -1);
    int answer = 0;
    EXPECT_EQ(gpu->DeviceGetAttribute(&answer, static_cast<CUdevice_attribute>(0), 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->DeviceGetAttribute(&answer, static_cast<CUdevice_attribute>(5000), 0), CUDA_ERROR_INVALID_VALUE);
    int major = 0;
    int minor = -1;
    EXPECT_EQ((Entry<int*, int*, CUdevice>(gpu, "cuDeviceComputeCapability")(&major, &minor, 0)), CUDA_SUCCESS);
    EXPECT_EQ(major, value(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    EXPECT_EQ(minor, value(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    CUuuid one{};
    CUuuid two{};
    EXPECT_EQ((Entry<CUuuid*, CUdevice>(gpu, "cuDeviceGetUuid")(&one, 0)), CUDA_SUCCESS);
    EXPECT_EQ(gpu->DeviceGetUuid(&two, 0), CUDA_SUCCESS);
    EXPECT_EQ(std::memcmp(&one, &two, sizeof one), 0);
  });
}

TEST_F(PlainMemoryTest, ModulesFromFilesAndFunctionsThatTellOfThemselves) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    const std::string path = dir_ + "/kernels.ptx";
    std::ofstream(path) << kOwnPtx;
    CUmodule module = nullptr;
    const auto load = Entry<CUmodule*, const char*>(gpu, "cuModuleLoad");
    const auto load_ex = Entry<CUmodule*, const void*, unsigned, CUjit_option*, void**>(gpu, "cuModuleLoadDataEx");
    EXPECT_EQ(load(&module, (dir_ + "/no such file").c_str()), CUDA_ERROR_FILE_NOT_FOUND);
    ASSERT_EQ(load(&module, path.c_str()), CUDA_SUCCESS);
    CUfunction function = nullptr;
    EXPECT_EQ(gpu->ModuleGetFunction(&function, module, "add_bytes"), CUDA_SUCCESS);
    EXPECT_EQ(load_ex(&module, kOwnPtx, 0, nullptr, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(load_ex(&module, kOwnPtx, 1, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    const auto attribute = Entry<int*, CUfunction_attribute, CUfunction>(gpu, "cuFuncGetAttribute");
    int value = 0;
    EXPECT_EQ(attribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function), CUDA_SUCCESS);
    EXPECT_EQ(value, 1024);
    EXPECT_EQ(attribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function), CUDA_SUCCESS);
    EXPECT_EQ(value, 0);
    EXPECT_EQ(attribute(&value, static_cast<CUfunction_attribute>(99), function), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(attribute(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, nullptr), CUDA_ERROR_INVALID_HANDLE);
  });
}

}  // namespace
}  // namespace simtest
