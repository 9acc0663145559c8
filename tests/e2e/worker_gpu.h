// tests/e2e/worker_gpu.h: the GPU work of the test worker: a context on the first device and the project's kernels.
#ifndef GPUMEM_TESTS_E2E_WORKER_GPU_H_
#define GPUMEM_TESTS_E2E_WORKER_GPU_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/driver.h"
#include "cuda/kernels.h"

namespace gpumem::e2e {

// Made on first use. Answers are the worker's: "ok", or "err CUDA …" and "err CONTENT …".
class WorkerGpu {
 public:
  std::string Fill(std::uint64_t address, std::uint64_t bytes, std::uint32_t value);
  std::string Check(std::uint64_t address, std::uint64_t bytes, std::uint32_t value);
  // The CUresult of the launch or of the synchronisation after it.
  int Store(std::uint64_t address, std::uint32_t value);

 private:
  std::string Prepare();
  std::string Failed(const char* what, CUresult error) const;

  std::unique_ptr<cuda::Driver> driver_;
  std::unique_ptr<cuda::Kernels> kernels_;
};

// True when `fd` became readable within a minute.
bool WaitForInput(int fd);
int OpenDescriptors();

}  // namespace gpumem::e2e

#endif  // GPUMEM_TESTS_E2E_WORKER_GPU_H_
