// cuda/sim/api_pointer.cc: cuPointerGetAttribute and its plural: what the driver knows of an address, as exported.
#include <cstring>
#include <optional>

#include "cuda/sim/api_call.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/plain_memory.h"
#include "cuda/sim/process.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::PlainMemory;
using simcuda::PlainRange;
using simcuda::Process;
using simcuda::Vmm;

// An address that the driver knows: of plain memory, of a mapping, or of a reserved range with nothing there.
struct Target {
  CUdeviceptr address = 0;
  std::optional<PlainRange> plain;
  Vmm::Place place;

  bool host() const { return plain && plain->is_host(); }
  bool mapped() const { return host() || place.handle != 0; }
  int device() const { return plain ? plain->device : place.prop.location.id; }
};

bool FindTarget(Process* process, CUdeviceptr address, Target* out) {
  out->address = address;
  out->plain = PlainMemory::All().Find(address);
  return process->vmm().Describe(address, &out->place) || out->plain.has_value();
}

// The value of one attribute, as many bytes as the driver writes. Pointers go in as numbers.
struct Value {
  unsigned char bytes[8] = {};
  size_t size = 0;

  template <typename T>
  void Set(T value) {
    static_assert(sizeof(T) <= sizeof bytes);
    std::memcpy(bytes, &value, sizeof(T));
    size = sizeof(T);
  }
};

// The access that the device of the current context has.
CUresult AccessFlags(const Target& target, unsigned* flags) {
  Call call;
  const CUresult result = simcuda::EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  const size_t device = static_cast<size_t>(call.context->device());
  *flags = static_cast<unsigned>(target.host() ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : target.place.access[device]);
  return CUDA_SUCCESS;
}

// What is asked of a reserved range as of memory.
bool GetRange(int attribute, const Target& target, Value* value) {
  const bool plain = target.plain.has_value();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      value->Set<CUdeviceptr>(plain ? target.plain->begin : target.place.range);
      return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      value->Set<size_t>(plain ? target.plain->bytes : target.place.range_bytes);
      if (SIMCUDA_BREAK("range-not-told")) value->Set<size_t>(0);
      return true;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      value->Set<int>(target.mapped() ? 1 : 0);
      return true;
    default:
      return false;
  }
}

// What the addressed memory says of itself. Booleans are ints, as programs read them.
CUresult GetMemory(int attribute, const Target& target, Value* value) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:  // memory of cuMemCreate is of no context
      value->Set<uintptr_t>(target.plain ? reinterpret_cast<uintptr_t>(target.plain->context) : 0);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      value->Set<unsigned>(target.host() ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      unsigned flags = 0;
      const CUresult result = AccessFlags(target, &flags);
      if (result != CUDA_SUCCESS) return result;
      if (flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) return CUDA_ERROR_INVALID_VALUE;
      value->Set<CUdeviceptr>(target.address);
      return CUDA_SUCCESS;
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!target.host()) return CUDA_ERROR_INVALID_VALUE;
      value->Set<CUdeviceptr>(target.address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      value->Set<unsigned long long>(target.plain ? target.plain->id : target.place.handle);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      value->Set<int>(target.device());
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:  // tells cuMemAlloc's memory from cuMemCreate's
      value->Set<int>(target.plain && !target.host() ? 1 : 0);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      value->Set<unsigned long long>(
          target.plain ? 0 : static_cast<unsigned long long>(target.place.prop.requestedHandleTypes));
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      unsigned flags = 0;
      const CUresult result = AccessFlags(target, &flags);
      if (result == CUDA_SUCCESS) value->Set<unsigned>(flags);
      return result;
    }
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      value->Set<size_t>(target.plain ? target.plain->bytes : target.place.mapping_bytes);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      value->Set<CUdeviceptr>(target.plain ? target.plain->begin : target.place.mapping);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      value->Set<uintptr_t>(0);  // it is of none
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      value->Set<int>(0);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult Get(Process* process, int attribute, CUdeviceptr address, Value* value) {
  Target target;
  if (!FindTarget(process, address, &target)) return CUDA_ERROR_INVALID_VALUE;
  if (GetRange(attribute, target, value)) return CUDA_SUCCESS;
  if (!target.mapped()) return CUDA_ERROR_INVALID_VALUE;
  return GetMemory(attribute, target, value);
}

// How many bytes the attribute takes; 0 for one that the simulation does not know.
size_t SizeOf(int attribute) {
  Target host;  // memory for which every attribute has a value, without asking a context
  host.plain.emplace();
  host.plain->kind = PlainRange::Kind::kPinnedHost;
  Value value;
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) return sizeof(CUdeviceptr);
  if (attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) return sizeof(unsigned);
  if (!GetRange(attribute, host, &value) && GetMemory(attribute, host, &value) != CUDA_SUCCESS) return 0;
  return value.size;
}

// As a number: a program may ask for more than this header's enumeration has.
int NumberAt(const CUpointer_attribute* attribute) {
  int number = 0;
  std::memcpy(&number, attribute, sizeof number);
  return number;
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  SIMCUDA_CALL(cuPointerGetAttribute);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Value value;
  result = Get(process, attribute, address, &value);
  if (result == CUDA_SUCCESS) std::memcpy(data, value.bytes, value.size);
  return result;
}

// An attribute that the address does not have is no error here: it is zero.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  SIMCUDA_CALL(cuPointerGetAttributes);
  CUresult result = CUDA_SUCCESS;
  Process* const process = Process::Enter(&result);
  if (process == nullptr) return result;
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < count; ++i) {
    if (data[i] == nullptr || SizeOf(NumberAt(&attributes[i])) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned int i = 0; i < count; ++i) {
    Value value;
    (void)Get(process, NumberAt(&attributes[i]), address, &value);  // leaves it zero where it fails
    std::memcpy(data[i], value.bytes, SizeOf(NumberAt(&attributes[i])));
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
