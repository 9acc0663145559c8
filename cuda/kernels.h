// cuda/kernels.h: the project's own small kernels, for tests, demos and workers that verify what they mapped.
//
// A real driver compiles them from the PTX text; the simulated one runs functions of the same names. No daemon process
// launches anything: only a worker, which has a context, uses this.
#ifndef GPUMEM_CUDA_KERNELS_H_
#define GPUMEM_CUDA_KERNELS_H_

#include <cstdint>
#include <memory>

#include "cuda/driver.h"
#include "cuda/kernels_ptx.h"

namespace gpumem::cuda {

// The loaded module. Belongs to the context that was current at Load, which must be current at every call and at
// destruction. Calls are asynchronous: a bad address shows as an error of a later call.
class Kernels {
 public:
  // `*out` is set on success only. `driver` must outlive it.
  static CUresult Load(const Driver& driver, std::unique_ptr<Kernels>* out);
  ~Kernels();
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  CUresult Fill(CUstream stream, CUdeviceptr address, std::uint64_t count, std::uint32_t value) const;
  // The u64 at `out` must be set to 0 first.
  CUresult Checksum(CUstream stream, CUdeviceptr address, std::uint64_t bytes, CUdeviceptr out) const;
  CUresult Store(CUstream stream, CUdeviceptr address, std::uint32_t value) const;

 private:
  explicit Kernels(const Driver& driver) : driver_(driver) {}
  CUresult Launch(CUfunction function, std::uint64_t threads, CUstream stream, void** parameters) const;

  const Driver& driver_;
  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr;
  CUfunction checksum_ = nullptr;
  CUfunction store_ = nullptr;
};

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_KERNELS_H_
