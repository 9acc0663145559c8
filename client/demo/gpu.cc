#include "client/demo/gpu.h"

namespace gpumem::demo {

std::unique_ptr<Gpu> Gpu::Open(const cuda::Driver& driver, int ordinal, std::string* error) {
  std::unique_ptr<Gpu> gpu(new Gpu(driver));
  const char* call = "cuDeviceGet";
  CUdevice device = 0;
  CUresult result = driver.DeviceGet(&device, ordinal);
  if (result == CUDA_SUCCESS) {
    call = "cuDevicePrimaryCtxRetain";
    result = driver.DevicePrimaryCtxRetain(&gpu->context_, device);
  }
  if (result == CUDA_SUCCESS) {
    call = "cuCtxSetCurrent";
    result = driver.CtxSetCurrent(gpu->context_);
  }
  if (result == CUDA_SUCCESS) {
    call = "cuModuleLoadData";
    result = cuda::Kernels::Load(driver, &gpu->kernels_);
  }
  if (result == CUDA_SUCCESS) return gpu;
  *error = std::string(call) + " failed: " + driver.DescribeError(result);
  return nullptr;
}

CUresult Gpu::CopyIn(CUdeviceptr to, std::span<const std::byte> from) {
  const CUresult result = driver_.CtxSetCurrent(context_);
  return result == CUDA_SUCCESS ? driver_.MemcpyHtoD(to, from.data(), from.size()) : result;
}

CUresult Gpu::CopyOut(std::span<std::byte> to, CUdeviceptr from) {
  const CUresult result = driver_.CtxSetCurrent(context_);
  return result == CUDA_SUCCESS ? driver_.MemcpyDtoH(to.data(), from, to.size()) : result;
}

CUresult Gpu::Fill(CUdeviceptr address, std::uint64_t words, std::uint32_t value) {
  CUresult result = driver_.CtxSetCurrent(context_);
  if (result == CUDA_SUCCESS) result = kernels_->Fill(nullptr, address, words, value);
  return result == CUDA_SUCCESS ? driver_.CtxSynchronize() : result;
}

CUresult Gpu::Checksum(CUdeviceptr address, std::uint64_t bytes, CUdeviceptr scratch, std::uint64_t* sum) {
  CUresult result = driver_.CtxSetCurrent(context_);
  if (result == CUDA_SUCCESS) result = driver_.MemsetD32(scratch, 0, 2);
  if (result == CUDA_SUCCESS) result = kernels_->Checksum(nullptr, address, bytes, scratch);
  if (result == CUDA_SUCCESS) result = driver_.MemcpyDtoH(sum, scratch, sizeof *sum);
  return result;
}

CUresult Gpu::Store(CUdeviceptr address, std::uint32_t value) {
  CUresult result = driver_.CtxSetCurrent(context_);
  if (result == CUDA_SUCCESS) result = kernels_->Store(nullptr, address, value);
  return result == CUDA_SUCCESS ? driver_.CtxSynchronize() : result;
}

CUresult Gpu::Synchronize() {
  const CUresult result = driver_.CtxSetCurrent(context_);
  return result == CUDA_SUCCESS ? driver_.CtxSynchronize() : result;
}

}  // namespace gpumem::demo
