// cuda/devices.h: the devices that this process sees, by UUID.
#ifndef GPUMEM_CUDA_DEVICES_H_
#define GPUMEM_CUDA_DEVICES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/device_uuid.h"
#include "cuda/driver.h"

namespace gpumem::cuda {

struct DeviceInfo {
  DeviceUuid uuid;
  CUdevice ordinal = 0;  // of this process only: it differs from process to process
  std::string name;
  std::string pci_bus_id;               // "0000:65:00.0"
  std::uint64_t total_bytes = 0;        // of physical memory
  std::uint64_t granularity_bytes = 0;  // of exportable physical memory (recommended); 0 without vmm_supported
  bool vmm_supported = false;           // cuMemCreate and its family
  bool posix_fd_supported = false;      // memory can be exported as a file descriptor
};

// Lists all devices; needs cuInit. On a failure returns the driver's code, leaves `*devices` as it was, and names the
// call that failed in `*failed_call`.
//
// A UUID's kind (GPU or MIG instance) is not told by the driver; a device whose name has " MIG " in it, as the driver
// names instances, is one.
CUresult ListDevices(const Driver& driver, std::vector<DeviceInfo>* devices, std::string* failed_call);

// The device with these UUID bytes (the kind is not compared), or nullopt.
std::optional<DeviceInfo> FindDevice(const std::vector<DeviceInfo>& devices, const DeviceUuid& uuid);

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_DEVICES_H_
