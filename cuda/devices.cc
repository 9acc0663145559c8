// cuda/devices.cc: see the header.
#include "cuda/devices.h"

#include <cstring>
#include <utility>

#include "cuda/resources.h"

namespace gpumem::cuda {
namespace {

struct Step {
  const Driver& driver;
  std::string* failed_call;
  CUresult result = CUDA_SUCCESS;

  // Remembers the first failure; later steps are skipped by the && of the caller.
  bool Ok(const char* call, CUresult r) {
    if (r == CUDA_SUCCESS) return true;
    result = r;
    *failed_call = call;
    return false;
  }
};

bool Describe(Step* step, int index, DeviceInfo* info) {
  const Driver& driver = step->driver;
  char name[256] = {};
  char pci[32] = {};
  CUuuid uuid{};
  size_t total = 0;
  int vmm = 0;
  int posix_fd = 0;
  const bool ok =
      step->Ok("cuDeviceGet", driver.DeviceGet(&info->ordinal, index)) &&
      step->Ok("cuDeviceGetName", driver.DeviceGetName(name, sizeof name - 1, info->ordinal)) &&
      step->Ok("cuDeviceGetUuid", driver.DeviceGetUuid(&uuid, info->ordinal)) &&
      step->Ok("cuDeviceGetPCIBusId", driver.DeviceGetPCIBusId(pci, sizeof pci - 1, info->ordinal)) &&
      step->Ok("cuDeviceTotalMem", driver.DeviceTotalMem(&total, info->ordinal)) &&
      step->Ok(
          "cuDeviceGetAttribute(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)",
          driver.DeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, info->ordinal)) &&
      step->Ok("cuDeviceGetAttribute(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)",
               driver.DeviceGetAttribute(&posix_fd, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                                         info->ordinal));
  if (!ok) return false;
  info->name = name;
  info->pci_bus_id = pci;
  info->total_bytes = total;
  info->vmm_supported = vmm != 0;
  info->posix_fd_supported = posix_fd != 0;
  DeviceUuid::Raw raw{};
  std::memcpy(raw.data(), uuid.bytes, raw.size());
  const bool is_mig = std::strstr(name, " MIG ") != nullptr;
  info->uuid = DeviceUuid(is_mig ? DeviceUuid::Kind::kMig : DeviceUuid::Kind::kGpu, raw);
  if (!info->vmm_supported) return true;

  const CUmemAllocationProp prop = DeviceMemoryProp(info->ordinal, info->posix_fd_supported);
  size_t granularity = 0;
  if (!step->Ok("cuMemGetAllocationGranularity",
                driver.MemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))) {
    return false;
  }
  info->granularity_bytes = granularity;
  return true;
}

}  // namespace

CUresult ListDevices(const Driver& driver, std::vector<DeviceInfo>* devices, std::string* failed_call) {
  Step step{driver, failed_call};
  int count = 0;
  if (!step.Ok("cuDeviceGetCount", driver.DeviceGetCount(&count))) return step.result;
  std::vector<DeviceInfo> found;
  for (int i = 0; i < count; ++i) {
    DeviceInfo info;
    if (!Describe(&step, i, &info)) return step.result;
    found.push_back(std::move(info));
  }
  *devices = std::move(found);
  return CUDA_SUCCESS;
}

std::optional<DeviceInfo> FindDevice(const std::vector<DeviceInfo>& devices, const DeviceUuid& uuid) {
  for (const DeviceInfo& device : devices) {
    if (device.uuid.raw() == uuid.raw()) return device;
  }
  return std::nullopt;
}

}  // namespace gpumem::cuda
