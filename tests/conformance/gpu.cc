// tests/conformance/gpu.cc: see the header.
#include "tests/conformance/gpu.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "cuda/kernels_ptx.h"

namespace conformance {

using gpumem::UniqueFd;

void Init(Check& t) {
  MUST(cu.Init(0));
  int count = 0;
  MUST(cu.DeviceGetCount(&count));
  if (t.device() >= count) t.Skip("there is no device " + std::to_string(t.device()));
  int supported = 0;
  MUST(cu.DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, t.device()));
  if (supported == 0) t.Skip("the device has no virtual memory management");
  MUST(cu.DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, t.device()));
  if (supported == 0) t.Skip("the device's memory cannot be exported as a file descriptor");
}

void InitWithContext(Check& t) {
  Init(t);
  CUcontext context = nullptr;
  MUST(cu.PrimaryCtxRetain(&context, t.device()));
  MUST(cu.CtxSetCurrent(context));
}

void NeedTwoDevices(Check& t) {
  int count = 0;
  MUST(cu.DeviceGetCount(&count));
  if (count < 2) t.Skip("needs two devices");
}

int OtherDevice(const Check& t) { return t.device() == 0 ? 1 : 0; }

std::uint64_t Unit(Check& t) {
  const CUmemAllocationProp prop = Prop(t);
  size_t granularity = 0;
  MUST(cu.MemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return std::max<std::uint64_t>(granularity, 2 * kMiB);
}

CUmemAllocationProp Prop(const Check& t, bool exportable) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, t.device()};
  if (exportable) prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

CUmemGenericAllocationHandle Create(Check& t, std::uint64_t bytes, bool exportable) {
  const CUmemAllocationProp prop = Prop(t, exportable);
  CUmemGenericAllocationHandle handle = 0;
  MUST(cu.MemCreate(&handle, bytes, &prop, 0));
  return handle;
}

UniqueFd Export(Check& t, CUmemGenericAllocationHandle handle) {
  int fd = -1;
  MUST(cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

CUmemGenericAllocationHandle Import(Check& t, int fd) {
  CUmemGenericAllocationHandle handle = 0;
  MUST(cu.MemImport(&handle, AsShareable(fd), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

CUdeviceptr Reserve(Check& t, std::uint64_t bytes) {
  CUdeviceptr address = 0;
  MUST(cu.MemAddressReserve(&address, bytes, 0, 0, 0));
  return address;
}

CUmemAccessDesc DeviceAccess(int device, CUmemAccess_flags flags) {
  return CUmemAccessDesc{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

void Allow(Check& t, CUdeviceptr address, std::uint64_t bytes, CUmemAccess_flags flags) {
  const CUmemAccessDesc desc = DeviceAccess(t.device(), flags);
  MUST(cu.MemSetAccess(address, bytes, &desc, 1));
}

Memory MapHandle(Check& t, CUmemGenericAllocationHandle handle, std::uint64_t bytes, CUmemAccess_flags flags) {
  const Memory memory{handle, Reserve(t, bytes), bytes};
  MUST(cu.MemMap(memory.address, bytes, 0, handle, 0));
  if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) Allow(t, memory.address, bytes, flags);
  return memory;
}

Memory CreateMapped(Check& t, std::uint64_t bytes, CUmemAccess_flags flags) {
  return MapHandle(t, Create(t, bytes), bytes, flags);
}

void UnmapAndFree(Check& t, const Memory& memory) {
  MUST(cu.MemUnmap(memory.address, memory.bytes));
  MUST(cu.MemAddressFree(memory.address, memory.bytes));
}

std::uint32_t Word(Check& t, CUdeviceptr address) {
  std::uint32_t word = 0;
  MUST(cu.MemcpyDtoH(&word, address, sizeof word));
  return word;
}

void Fill(Check& t, CUdeviceptr address, std::uint64_t bytes, std::uint32_t value) {
  MUST(cu.MemsetD32(address, value, bytes / sizeof value));
  MUST(cu.CtxSynchronize());
}

std::uint64_t FreeBytes(Check& t) {
  size_t free = 0;
  size_t total = 0;
  MUST(cu.MemGetInfo(&free, &total));
  return free;
}

std::uint64_t WaitForFree(Check& t, std::uint64_t bytes) {
  constexpr double kLongest = 6;  // for the end of a process, and for scrubbing
  const double end = Now() + kLongest;
  std::uint64_t free = FreeBytes(t);
  while (free < bytes && Now() < end) {
    Sleep(0.005);
    free = FreeBytes(t);
  }
  return free;
}

CUstream NewStream(Check& t, unsigned int flags) {
  CUstream stream = nullptr;
  MUST(cu.StreamCreate(&stream, flags));
  return stream;
}

CUresult Kernels::Load() {
  CUmodule module = nullptr;
  CUresult result = cu.ModuleLoadData(&module, gpumem::cuda::kKernelsPtx);
  if (result == CUDA_SUCCESS) result = cu.ModuleGetFunction(&store_, module, "gpumem_store");
  if (result == CUDA_SUCCESS) result = cu.ModuleGetFunction(&fill_, module, "gpumem_fill");
  return result;
}

CUresult Kernels::Store(CUstream stream, CUdeviceptr address, std::uint32_t value) const {
  void* parameters[] = {&address, &value};
  return cu.LaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUresult Kernels::SlowFill(CUstream stream, CUdeviceptr address, std::uint64_t words, std::uint32_t value) const {
  void* parameters[] = {&address, &words, &value};
  return cu.LaunchKernel(fill_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUresult StoreAndWait(Check& t, CUdeviceptr address, std::uint32_t value) {
  Kernels kernels;
  MUST(kernels.Load());
  const CUresult launched = kernels.Store(nullptr, address, value);
  const CUresult waited = cu.CtxSynchronize();
  return launched != CUDA_SUCCESS ? launched : waited;
}

SlowWork::SlowWork(Check& t) : t_(t) {
  constexpr std::uint64_t kBytes = 16 * kMiB;
  constexpr double kOneLaunch = 0.002;
  constexpr double kAll = 0.15;
  constexpr double kMost = 400;  // a stream takes about a thousand launches before a launch waits
  MUST(kernels_.Load());
  memory_ = CreateMapped(t, (kBytes + Unit(t) - 1) / Unit(t) * Unit(t));
  const auto measure = [&] {
    const double start = Now();
    MUST(kernels_.SlowFill(nullptr, memory_.address, words_, 1));
    MUST(cu.CtxSynchronize());
    return Now() - start;
  };
  words_ = std::uint64_t{64} << 10;
  measure();  // the first launch, and the first touch of memory, take longer
  while (words_ < kBytes / 4 && measure() < kOneLaunch) words_ *= 2;
  const double took = measure();
  launches_ = static_cast<int>(std::clamp(kAll / std::max(took, 1e-6), 2.0, kMost));
}

void SlowWork::Start(CUstream stream) {
  Check& t = t_;
  for (int i = 0; i < launches_; ++i) MUST(kernels_.SlowFill(stream, memory_.address, words_, 2));
}

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Sleep(double seconds) { ::usleep(static_cast<useconds_t>(seconds * 1e6)); }

std::string Milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", seconds * 1e3);
  return text;
}

}  // namespace conformance
