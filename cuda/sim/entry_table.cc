// cuda/sim/entry_table.cc: cuGetProcAddress.
//
// It takes the name without suffix and the CUDA version that the caller was written for, and gives the newest ABI that
// is not newer than that.
#include <cstring>

#include "cuda/cuda_api.h"
#include "cuda/sim/process.h"

// Only addresses are needed here, and the header in use need not declare all of them.
#define SIMCUDA_ENTRY(base, exported, since) extern "C" void sim_##exported() __asm__(#exported);
#include "cuda/sim/entries.def"
#undef SIMCUDA_ENTRY

namespace {

struct Entry {
  const char* base;
  int since;
  void (*function)();
};

constexpr Entry kEntries[] = {
#define SIMCUDA_ENTRY(base, exported, since) {#base, since, &sim_##exported},
#include "cuda/sim/entries.def"
#undef SIMCUDA_ENTRY
};

CUdriverProcAddressQueryResult Find(const char* name, int version, void** out) {
  const Entry* best = nullptr;
  bool known = false;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.base, name) != 0) continue;
    known = true;
    if (entry.since <= version && (best == nullptr || entry.since > best->since)) best = &entry;
  }
  *out = best != nullptr ? reinterpret_cast<void*>(best->function) : nullptr;
  if (best != nullptr) return CU_GET_PROC_ADDRESS_SUCCESS;
  return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

CUresult Check(const char* name, void** out, int version, uint64_t flags) {
  if (name == nullptr || out == nullptr || version > simcuda::kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  // There are no per-thread default stream variants here: asking for them must not give the others quietly.
  if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return flags <= CU_GET_PROC_ADDRESS_LEGACY_STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

#undef cuGetProcAddress

extern "C" {

// The ABI of CUDA 11.3: an unknown name is an error.
CUresult cuGetProcAddress(const char* name, void** out, int version, uint64_t flags) {
  const CUresult result = Check(name, out, version, flags);
  if (result != CUDA_SUCCESS) return result;
  return Find(name, version, out) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// The ABI of CUDA 12.0: an unknown name is a success that finds nothing and says why.
CUresult cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult result = Check(name, out, version, flags);
  if (result != CUDA_SUCCESS) return result;
  const CUdriverProcAddressQueryResult found = Find(name, version, out);
  if (status != nullptr) *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS || status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
