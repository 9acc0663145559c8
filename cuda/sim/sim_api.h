// cuda/sim/sim_api.h: the CUDA driver API's types as the simulation needs them: cuda/cuda_api.h and, where the
// toolkit's header is not in use, the declarations of cuda/sim/sim_decls.h.
#ifndef GPUMEM_CUDA_SIM_SIM_API_H_
#define GPUMEM_CUDA_SIM_SIM_API_H_

#include <cstdint>

#include "cuda/cuda_api.h"
#ifndef GPUMEM_CUDA_TOOLKIT
#include "cuda/sim/sim_decls.h"
#endif

namespace simcuda {

// Numbers that the toolkit's header has as macros or in enumerations of their own.
inline constexpr std::uintptr_t kLegacyStream = 1;     // CU_STREAM_LEGACY
inline constexpr std::uintptr_t kPerThreadStream = 2;  // CU_STREAM_PER_THREAD
inline constexpr unsigned kEventExternal = 1;          // CU_EVENT_RECORD_EXTERNAL, CU_EVENT_WAIT_EXTERNAL

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_SIM_API_H_
