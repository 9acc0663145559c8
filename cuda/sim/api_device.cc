// cuda/sim/api_device.cc: cuInit, versions, error names and devices, as exported.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda/cuda_api.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/process.h"

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

int Attribute(CUdevice_attribute attribute, int machine_index) {
  switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return 132;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return machine_index + 1;
    default:
      return 0;  // what the simulation does not have
  }
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
  switch (error) {
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
  switch (error) {
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

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  SIMCUDA_CALL_ON(cuDeviceGetAttribute, device);
  CUresult result = CUDA_SUCCESS;
  const Process* const process = Process::EnterForQuery(&result);
  if (process == nullptr) return result;
  if (value == nullptr || static_cast<int>(attribute) <= 0) return CUDA_ERROR_INVALID_VALUE;
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
