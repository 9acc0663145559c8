// client/demo/gpu.h: one device as a demo worker uses it: a primary context, copies, and the project's own kernels.
// Calls cuda/. Not thread-safe. Every call makes its device's context current first.
#ifndef GPUMEM_CLIENT_DEMO_GPU_H_
#define GPUMEM_CLIENT_DEMO_GPU_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cuda/driver.h"
#include "cuda/kernels.h"

namespace gpumem::demo {

class Gpu {
 public:
  // Retains the primary context of the device with this ordinal of this process, and loads the kernels. cuInit was
  // called; `driver` must outlive it. Null with one line in `*error`. The context lives as long as the process: a
  // worker that faulted cannot release it.
  static std::unique_ptr<Gpu> Open(const cuda::Driver& driver, int ordinal, std::string* error);

  // Synchronous; the driver's code. After a fault every one of them returns the fault's code.
  CUresult CopyIn(CUdeviceptr to, std::span<const std::byte> from);
  CUresult CopyOut(std::span<std::byte> to, CUdeviceptr from);
  CUresult Fill(CUdeviceptr address, std::uint64_t words, std::uint32_t value);
  // The checksum of cuda/checksum.h over `bytes` at `address`; `scratch` is 8 bytes that the device may write.
  CUresult Checksum(CUdeviceptr address, std::uint64_t bytes, CUdeviceptr scratch, std::uint64_t* sum);
  CUresult Store(CUdeviceptr address, std::uint32_t value);
  CUresult Synchronize();

 private:
  explicit Gpu(const cuda::Driver& driver) : driver_(driver) {}
  const cuda::Driver& driver_;
  CUcontext context_ = nullptr;
  std::unique_ptr<cuda::Kernels> kernels_;
};

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_GPU_H_
