#include "tests/e2e/worker_gpu.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

namespace gpumem::e2e {

std::string WorkerGpu::Failed(const char* what, CUresult error) const {
  return std::string("err CUDA ") + what + ": " + driver_->DescribeError(error);
}

std::string WorkerGpu::Prepare() {
  if (kernels_ != nullptr) return {};
  std::string error;
  driver_ = cuda::Driver::Load(std::getenv("GPUMEM_LIBCUDA"), &error);
  if (driver_ == nullptr) return "err CUDA " + error;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUresult result = driver_->Init(0);
  if (result == CUDA_SUCCESS) result = driver_->DeviceGet(&device, 0);
  if (result == CUDA_SUCCESS) result = driver_->DevicePrimaryCtxRetain(&context, device);
  if (result == CUDA_SUCCESS) result = driver_->CtxSetCurrent(context);
  if (result == CUDA_SUCCESS) result = cuda::Kernels::Load(*driver_, &kernels_);
  return result == CUDA_SUCCESS ? std::string() : Failed("preparing a context", result);
}

std::string WorkerGpu::Fill(std::uint64_t address, std::uint64_t bytes, std::uint32_t value) {
  if (std::string error = Prepare(); !error.empty()) return error;
  CUresult result = kernels_->Fill(nullptr, address, bytes / 4, value);
  if (result == CUDA_SUCCESS) result = driver_->CtxSynchronize();
  return result == CUDA_SUCCESS ? "ok" : Failed("fill", result);
}

std::string WorkerGpu::Check(std::uint64_t address, std::uint64_t bytes, std::uint32_t value) {
  if (std::string error = Prepare(); !error.empty()) return error;
  std::vector<std::uint32_t> words(1 << 20);
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t part = std::min<std::uint64_t>(bytes - at, words.size() * 4);
    const CUresult result = driver_->MemcpyDtoH(words.data(), address + at, part);
    if (result != CUDA_SUCCESS) return Failed("copy", result);
    for (std::uint64_t i = 0; i < part / 4; ++i) {
      if (words[i] != value) {
        return "err CONTENT at byte " + std::to_string(at + i * 4) + ": " + std::to_string(words[i]) + ", wanted " +
               std::to_string(value);
      }
    }
    at += part;
  }
  return "ok";
}

int WorkerGpu::Store(std::uint64_t address, std::uint32_t value) {
  if (!Prepare().empty()) return -1;
  const CUresult launched = kernels_->Store(nullptr, address, value);
  return launched != CUDA_SUCCESS ? launched : driver_->CtxSynchronize();
}

bool WaitForInput(int fd) {
  pollfd poll_fd{fd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 60000) > 0;
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count - 1;  // less the one that lists them
}

}  // namespace gpumem::e2e
