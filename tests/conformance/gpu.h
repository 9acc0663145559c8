// tests/conformance/gpu.h: the steps that most checks begin with. Each ends the check when the driver refuses it.
#ifndef GPUMEM_TESTS_CONFORMANCE_GPU_H_
#define GPUMEM_TESTS_CONFORMANCE_GPU_H_

#include <cstdint>

#include "base/unique_fd.h"
#include "tests/conformance/suite.h"

namespace conformance {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

void Init(Check& t);              // cuInit, and the device's VMM attributes
void InitWithContext(Check& t);   // and its primary context, current
void NeedTwoDevices(Check& t);    // skips the check
int OtherDevice(const Check& t);  // of the first two
// A size that can be created, mapped and reserved: the granularity, and at least 2 MiB.
std::uint64_t Unit(Check& t);

CUmemAllocationProp Prop(const Check& t, bool exportable = true);
CUmemGenericAllocationHandle Create(Check& t, std::uint64_t bytes, bool exportable = true);
gpumem::UniqueFd Export(Check& t, CUmemGenericAllocationHandle handle);  // close-on-exec
CUmemGenericAllocationHandle Import(Check& t, int fd);
CUdeviceptr Reserve(Check& t, std::uint64_t bytes);
void Allow(Check& t, CUdeviceptr address, std::uint64_t bytes,
           CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

// An allocation and one mapping of it.
struct Memory {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;
};
Memory MapHandle(Check& t, CUmemGenericAllocationHandle handle, std::uint64_t bytes,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
Memory CreateMapped(Check& t, std::uint64_t bytes, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
void UnmapAndFree(Check& t, const Memory& memory);  // the handle stays

inline void* AsPointer(CUdeviceptr address) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)); }
inline void* AsShareable(int fd) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd)); }
CUmemAccessDesc DeviceAccess(int device, CUmemAccess_flags flags);

// Need a context.
std::uint32_t Word(Check& t, CUdeviceptr address);
void Fill(Check& t, CUdeviceptr address, std::uint64_t bytes, std::uint32_t value);
std::uint64_t FreeBytes(Check& t);
// Waits until cuMemGetInfo shows at least so much, for some seconds; what it shows then.
std::uint64_t WaitForFree(Check& t, std::uint64_t bytes);
CUstream NewStream(Check& t, unsigned int flags = CU_STREAM_NON_BLOCKING);

// The project's kernels (cuda/kernels_ptx.h), in the current context. Launches are asynchronous.
class Kernels {
 public:
  CUresult Load();
  CUresult Store(CUstream stream, CUdeviceptr address, std::uint32_t value) const;
  // By one thread, so that it takes its time.
  CUresult SlowFill(CUstream stream, CUdeviceptr address, std::uint64_t words, std::uint32_t value) const;

 private:
  CUfunction store_ = nullptr;
  CUfunction fill_ = nullptr;
};

// A kernel stores at `address`, and the context is waited for: the first code that is not CUDA_SUCCESS.
CUresult StoreAndWait(Check& t, CUdeviceptr address, std::uint32_t value);

// Work that keeps a stream busy for some tenths of a second. How long differs by device, so a check that needs work in
// flight asks whether there still was, and tries again when there was not.
class SlowWork {
 public:
  explicit SlowWork(Check& t);
  void Start(CUstream stream);
  const Memory& memory() const { return memory_; }

 private:
  Check& t_;
  Kernels kernels_;
  Memory memory_;
  std::uint64_t words_ = 0;
  int launches_ = 1;
};

double Now();  // seconds
void Sleep(double seconds);
std::string Milliseconds(double seconds);

}  // namespace conformance

#endif  // GPUMEM_TESTS_CONFORMANCE_GPU_H_
