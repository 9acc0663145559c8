// cuda/kernels.cc: see the header.
#include "cuda/kernels.h"

#include <algorithm>

namespace gpumem::cuda {

CUresult Kernels::Load(const Driver& driver, std::unique_ptr<Kernels>* out) {
  std::unique_ptr<Kernels> kernels(new Kernels(driver));
  CUresult result = driver.ModuleLoadData(&kernels->module_, kKernelsPtx);
  if (result == CUDA_SUCCESS) result = driver.ModuleGetFunction(&kernels->fill_, kernels->module_, "gpumem_fill");
  if (result == CUDA_SUCCESS) {
    result = driver.ModuleGetFunction(&kernels->checksum_, kernels->module_, "gpumem_checksum");
  }
  if (result == CUDA_SUCCESS) result = driver.ModuleGetFunction(&kernels->store_, kernels->module_, "gpumem_store");
  if (result == CUDA_SUCCESS) *out = std::move(kernels);
  return result;
}

Kernels::~Kernels() {
  if (module_ != nullptr) driver_.ModuleUnload(module_);
}

CUresult Kernels::Launch(CUfunction function, std::uint64_t threads, CUstream stream, void** parameters) const {
  constexpr std::uint64_t kBlock = 256;
  constexpr std::uint64_t kMaxGrid = 2048;  // enough to fill any device; the stride does the rest
  const std::uint64_t wanted = threads / kBlock + (threads % kBlock != 0 ? 1 : 0);
  const auto grid = static_cast<unsigned int>(std::clamp<std::uint64_t>(wanted, 1, kMaxGrid));
  return driver_.LaunchKernel(function, grid, 1, 1, kBlock, 1, 1, 0, stream, parameters, nullptr);
}

CUresult Kernels::Fill(CUstream stream, CUdeviceptr address, std::uint64_t count, std::uint32_t value) const {
  void* parameters[] = {&address, &count, &value};
  return Launch(fill_, count, stream, parameters);
}

CUresult Kernels::Checksum(CUstream stream, CUdeviceptr address, std::uint64_t bytes, CUdeviceptr out) const {
  void* parameters[] = {&address, &bytes, &out};
  return Launch(checksum_, bytes / 8, stream, parameters);
}

CUresult Kernels::Store(CUstream stream, CUdeviceptr address, std::uint32_t value) const {
  void* parameters[] = {&address, &value};
  return driver_.LaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace gpumem::cuda
