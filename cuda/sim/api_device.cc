// cuda/sim/api_device.cc: cuInit, versions, error names and devices, as exported.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>

#include "cuda/sim/api_call.h"
#include "cuda/sim/process.h"
#include "cuda/sim/sim_api.h"

using simcuda::Process;

namespace {

// The address of the machine's n-th device on its made-up bus.
void PciAddress(int machine_index, char* text, std::size_t size) {
  std::snprintf(text, size, "0000:%02x:00.0", (machine_index + 1) & 0xff);
}

void CopyText(const char* from, char* to, int size) {
  const std::size_t length = std::min(std::strlen(from), static_cast<std::size_t>(size) - 1);
  std::memcpy(to, from, length);
  to[length] = 0;
}

constexpr int kMajor = 9;
constexpr int kMinor = 0;

// Attributes by number: some have no name in older headers, and this project asks for few of them.
constexpr int kLastAttribute = 147;  // the last one of CUDA 13.0
struct AttributeValue {
  int attribute;
  int value;
};
constexpr AttributeValue kAttributes[] = {
    {1, 1024},      // threads in a block
    {2, 1024},      // and along its x
    {3, 1024},      // y
    {4, 64},        // z
    {5, INT_MAX},   // blocks of a grid along x
    {6, 65535},     // y
    {7, 65535},     // z
    {8, 48 << 10},  // shared memory of a block
    {9, 64 << 10},  // constant memory
    {10, 32},       // threads in a warp
    {11, INT_MAX},  // pitch
    {12, 65536},    // registers of a block
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {19, 1},                                // can map host memory
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0},  // default: any number of processes
    {31, 1},                                // concurrent kernels
    {36, 2619000},                          // memory clock, kHz
    {37, 5120},                             // memory bus, bits
    {38, 50 << 20},                         // level 2 cache
    {39, 2048},                             // threads in a multiprocessor
    {40, 3},                                // copy engines
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kMajor},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kMinor},
    {78, 1},          // stream priorities
    {81, 228 << 10},  // shared memory of a multiprocessor
    {82, 65536},      // registers of a multiprocessor
    {91, 1},          // registered host memory has one address for host and device
    {97, 227 << 10},  // shared memory that a block may ask for
    {99, 1},          // host memory can be registered
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {106, 32},  // blocks in a multiprocessor
    // What the project asks about and the simulation has not: remote access to mapped memory, memory pools, dma-buf,
    // fabric handles, multicast, memory on the host.
    {110, 0},
    {115, 0},
    {124, 0},
    {128, 0},
    {131, -1},  // no memory node of the host is the device's own
    {132, 0},
    {134, -1},  // nor is one the closest
    {141, 0},
    {145, 0},
};

int Attribute(CUdevice_attribute attribute, int machine_index) {
  if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) return machine_index + 1;
  for (const AttributeValue& known : kAttributes) {
    if (known.attribute == static_cast<int>(attribute)) return known.value;
  }
  return 0;  // what the simulation does not have
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned int flags) {
  SIMCUDA_CALL(cuInit);
  return flags == 0 ? Process::Init() : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = simcuda::kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(error)) {
#define SIMCUDA_ERROR(name, words) \
  case name:                       \
    *text = #name;                 \
    return CUDA_SUCCESS;
#include "cuda/sim/errors.def"
#undef SIMCUDA_ERROR
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(error)) {
#define SIMCUDA_ERROR(name, words) \
  case name:                       \
    *text = words;                 \
    return CUDA_SUCCESS;
#include "cuda/sim/errors.def"
#undef SIMCUDA_ERROR
    default:
      *text = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceGetCount(int* count) {
  SIMCUDA_CALL(cuDeviceGetCount);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(process->devices().size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  SIMCUDA_CALL(cuDeviceGet);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceGetName, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  CopyText(process->devices()[static_cast<std::size_t>(device)].store->config().name.c_str(), name, length);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceGetUuid, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto& raw = process->devices()[static_cast<std::size_t>(device)].store->config().uuid.raw();
  std::memcpy(uuid->bytes, raw.data(), raw.size());
  return CUDA_SUCCESS;
}

// The older ABI, which the toolkit's header no longer names; it differs for parts of devices, which there are none of.
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  SIMCUDA_CALL(cuDeviceComputeCapability);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = kMajor;
  *minor = kMinor;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceGetAttribute, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (value == nullptr || static_cast<int>(attribute) <= 0 || static_cast<int>(attribute) > kLastAttribute) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = Attribute(attribute, process->devices()[static_cast<std::size_t>(device)].machine_index);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceGetPCIBusId, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (id == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  char address[16];
  PciAddress(process->devices()[static_cast<std::size_t>(device)].machine_index, address, sizeof address);
  CopyText(address, id, length);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  SIMCUDA_CALL(cuDeviceGetByPCIBusId);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (device == nullptr || id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < process->devices().size(); ++i) {
    char address[16];
    PciAddress(process->devices()[i].machine_index, address, sizeof address);
    if (std::strcmp(address, id) != 0) continue;
    *device = static_cast<CUdevice>(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceTotalMem, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = process->devices()[static_cast<std::size_t>(device)].store->config().capacity_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  SIMCUDA_CALL(cuDeviceCanAccessPeer);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!process->IsDevice(device) || !process->IsDevice(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // extern "C"
