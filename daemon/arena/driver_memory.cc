#include "daemon/arena/driver_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "cuda/resources.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;

// What one driver call may open at a time, generously.
constexpr int kDescriptorsOfOneCall = 8;

constexpr char kNvmlName[] = "libnvidia-ml.so.1";

const char* KindName(bool simulated) { return simulated ? "sim" : "cuda"; }

}  // namespace

absl::StatusOr<OpenedDriver> OpenDriver(const std::string& kind, const std::string& libcuda) {
  if (kind != "auto" && kind != "cuda" && kind != "sim") {
    return core::Error(Reason::INVALID_ARGUMENT, absl::StrCat("--driver=", kind, " is none of auto, cuda, sim"));
  }
  OpenedDriver opened;
  std::string error;
  opened.driver = cuda::Driver::Load(libcuda.c_str(), &error);
  if (!opened.driver) return core::Error(Reason::NO_DRIVER, error);
  const cuda::Driver& driver = *opened.driver;
  if (kind != "auto" && kind != KindName(driver.is_simulated())) {
    return core::Error(Reason::DRIVER_MISMATCH,
                       absl::StrCat("--driver=", kind, " was asked for, but ", driver.path(), " is a driver of kind ",
                                    KindName(driver.is_simulated()), "; name another library with --libcuda"));
  }
  if (const CUresult result = driver.Init(0); result != CUDA_SUCCESS) {
    return core::Error(Reason::DRIVER_FAILED, absl::StrCat("cuInit: ", driver.DescribeError(result)));
  }
  std::string call;
  if (const CUresult result = cuda::ListDevices(driver, &opened.devices, &call); result != CUDA_SUCCESS) {
    return core::Error(Reason::DRIVER_FAILED, absl::StrCat(call, ": ", driver.DescribeError(result)));
  }
  return opened;
}

std::unique_ptr<cuda::Nvml> OpenNvml(const cuda::Driver& driver, std::string* why) {
  std::string path;
  if (driver.is_simulated()) {
    // The real NVML knows nothing of simulated devices.
    const std::size_t slash = driver.path().rfind('/');
    path = slash == std::string::npos ? kNvmlName : driver.path().substr(0, slash + 1) + kNvmlName;
  }
  return cuda::Nvml::Load(path.c_str(), why);
}

absl::Status DriverMemory::Failed(const std::string& call, CUresult error, std::uint64_t bytes) const {
  const std::string words =
      absl::StrCat(call, " of ", bytes, " bytes on ", device_.uuid.ToString(), ": ", driver_->DescribeError(error));
  // Which code the driver gives for a full descriptor table is not documented, so the kernel is asked.
  if (DescriptorsExhausted(kDescriptorsOfOneCall)) {
    return core::Error(Reason::DESCRIPTORS,
                       absl::StrCat("the arena process is out of file descriptors; raise LimitNOFILE. ", words));
  }
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return core::Error(Reason::DRIVER_OUT_OF_MEMORY, words);
  return core::Error(Reason::DRIVER_FAILED, words);
}

absl::StatusOr<UniqueFd> DriverMemory::Create(std::uint64_t bytes) {
  cuda::PhysicalHandle handle;
  CUresult result = cuda::PhysicalHandle::Create(*driver_, device_.ordinal, bytes, /*exportable=*/true, &handle);
  if (result != CUDA_SUCCESS) return Failed("cuMemCreate", result, bytes);
  UniqueFd fd;
  absl::Status exported;
  result = handle.Export(&fd);
  if (result != CUDA_SUCCESS) exported = Failed("cuMemExportToShareableHandle", result, bytes);
  result = handle.Release();
  if (result != CUDA_SUCCESS) {
    return core::Error(Reason::INTERNAL,
                       absl::StrCat("cuMemRelease of ", bytes, " bytes on ", device_.uuid.ToString(), ": ",
                                    driver_->DescribeError(result), "; the arena must end to free them"));
  }
  if (!exported.ok()) return exported;
  return fd;
}

absl::StatusOr<MemoryReading> DriverMemory::Memory() {
  if (nvml_ == nullptr) {
    return core::Error(Reason::DRIVER_FAILED, absl::StrCat("memory in use is not known: ", why_no_nvml_));
  }
  cuda::Nvml::Memory memory;
  const nvmlReturn_t result = nvml_->GetMemory(device_.uuid, &memory);
  if (result != NVML_SUCCESS) {
    return core::Error(Reason::DRIVER_FAILED,
                       absl::StrCat("memory in use is not known: nvmlDeviceGetMemoryInfo of ", device_.uuid.ToString(),
                                    ": ", nvml_->DescribeError(result)));
  }
  return MemoryReading{memory.total_bytes, memory.used_bytes};
}

}  // namespace gpumem::arena
