// cuda/cuda_api.h: the CUDA driver API's types, from whichever header this build uses.
//
// Include this and never <cuda.h>. It gives types and enumerators only; functions are reached through cuda/driver.h,
// because the driver is loaded at run time.
#ifndef GPUMEM_CUDA_CUDA_API_H_
#define GPUMEM_CUDA_CUDA_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef GPUMEM_CUDA_TOOLKIT
#include <cuda.h>
#else
#include "cuda/cuda_decls.h"
#endif

#endif  // GPUMEM_CUDA_CUDA_API_H_
