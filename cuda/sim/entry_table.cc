// cuda/sim/entry_table.cc: cuGetProcAddress.
//
// It takes the name without suffix and the CUDA version that the caller was written for, and gives the newest ABI that
// is not newer than that.
#include <cstring>

#include "cuda/cuda_api.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/process.h"

// Only addresses are needed here, and the header in use need not declare all of them.
#define SIMCUDA_ENTRY(base, exported, since) extern "C" void sim_##exported() __asm__(#exported);
#define SIMCUDA_PER_THREAD_ENTRY SIMCUDA_ENTRY
#include "cuda/sim/entries.def"
#undef SIMCUDA_PER_THREAD_ENTRY
#undef SIMCUDA_ENTRY

namespace {

struct Entry {
  const char* base;
  int since;
  bool per_thread;
  void (*function)();
};

constexpr Entry kEntries[] = {
#define SIMCUDA_ENTRY(base, exported, since) {#base, since, false, &sim_##exported},
#define SIMCUDA_PER_THREAD_ENTRY(base, exported, since) {#base, since, true, &sim_##exported},
#include "cuda/sim/entries.def"
#undef SIMCUDA_PER_THREAD_ENTRY
#undef SIMCUDA_ENTRY
};

// `per_thread`: the variants with the thread's own default stream come first; a name without one gives the other.
CUdriverProcAddressQueryResult Find(const char* name, int version, bool per_thread, void** out) {
  const auto better = [](const Entry& entry, const Entry* best) {
    if (best == nullptr || entry.per_thread != best->per_thread) return best == nullptr || entry.per_thread;
    return entry.since > best->since;
  };
  const Entry* best = nullptr;
  bool known = false;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.base, name) != 0 || (entry.per_thread && !per_thread)) continue;
    if (entry.per_thread && SIMCUDA_BREAK("per-thread-ignored")) continue;
    known = true;
    if ((entry.since <= version || SIMCUDA_BREAK("version-ignored")) && better(entry, best)) best = &entry;
  }
  *out = best != nullptr ? reinterpret_cast<void*>(best->function) : nullptr;
  if (best != nullptr) return CU_GET_PROC_ADDRESS_SUCCESS;
  return known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
}

CUresult Check(const char* name, void** out, int version, uint64_t flags) {
  if (name == nullptr || out == nullptr || version > simcuda::kDriverVersion) return CUDA_ERROR_INVALID_VALUE;
  const bool known = flags == CU_GET_PROC_ADDRESS_DEFAULT || flags == CU_GET_PROC_ADDRESS_LEGACY_STREAM ||
                     flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool IsPerThread(uint64_t flags) { return flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; }

}  // namespace

#undef cuGetProcAddress

extern "C" {

// The ABI of CUDA 11.3: an unknown name is an error.
CUresult cuGetProcAddress(const char* name, void** out, int version, uint64_t flags) {
  const CUresult result = Check(name, out, version, flags);
  if (result != CUDA_SUCCESS) return result;
  return Find(name, version, IsPerThread(flags), out) == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS
                                                                                     : CUDA_ERROR_NOT_FOUND;
}

// The ABI of CUDA 12.0: an unknown name is a success that finds nothing and says why.
CUresult cuGetProcAddress_v2(const char* name, void** out, int version, uint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  const CUresult result = Check(name, out, version, flags);
  if (result != CUDA_SUCCESS) return result;
  const CUdriverProcAddressQueryResult found = Find(name, version, IsPerThread(flags), out);
  if (status != nullptr) *status = found;
  return found == CU_GET_PROC_ADDRESS_SUCCESS || status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// What the toolkit's header calls in a program that is built for per-thread default streams.
CUresult cuGetProcAddress_v2_ptsz(const char* name, void** out, int version, uint64_t flags,
                                  CUdriverProcAddressQueryResult* status) {
  if (flags == CU_GET_PROC_ADDRESS_DEFAULT) flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return cuGetProcAddress_v2(name, out, version, flags, status);
}

}  // extern "C"
