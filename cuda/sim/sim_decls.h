// cuda/sim/sim_decls.h: what the simulation declares of the CUDA driver API beyond cuda/cuda_decls.h, for builds
// without the CUDA Toolkit. Nothing outside cuda/sim uses these. Only cuda/sim/sim_api.h includes it (and
// decls_check.cc, inside a namespace, to assert that it agrees with the toolkit's header).
//
// It includes nothing, so that it can stand inside a namespace: cuda/cuda_decls.h must come before.
#ifndef GPUMEM_CUDA_SIM_SIM_DECLS_H_
#define GPUMEM_CUDA_SIM_SIM_DECLS_H_

typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
typedef struct CUgraphNode_st* CUgraphNode;
typedef struct CUgreenCtx_st* CUgreenCtx;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUexecAffinityParam_st CUexecAffinityParam;
typedef struct CUctxCreateParams_st CUctxCreateParams;
typedef enum CUjit_option_enum { CU_JIT_MAX_REGISTERS = 0 } CUjit_option;
typedef void (*CUhostFn)(void* data);

typedef struct CUipcMemHandle_st {
  char reserved[64];
} CUipcMemHandle;

// Results that only the simulation returns by name; the enumeration itself is in cuda/cuda_decls.h.
constexpr CUresult CUDA_ERROR_FILE_NOT_FOUND = static_cast<CUresult>(301);
constexpr CUresult CUDA_ERROR_ILLEGAL_STATE = static_cast<CUresult>(401);
constexpr CUresult CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = static_cast<CUresult>(712);
constexpr CUresult CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = static_cast<CUresult>(713);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = static_cast<CUresult>(900);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = static_cast<CUresult>(901);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_MERGE = static_cast<CUresult>(902);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = static_cast<CUresult>(903);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNJOINED = static_cast<CUresult>(904);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_ISOLATION = static_cast<CUresult>(905);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = static_cast<CUresult>(906);
constexpr CUresult CUDA_ERROR_CAPTURED_EVENT = static_cast<CUresult>(907);
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = static_cast<CUresult>(908);

typedef enum CUmemorytype_enum { CU_MEMORYTYPE_HOST = 1, CU_MEMORYTYPE_DEVICE = 2 } CUmemorytype;

typedef enum CUpointer_attribute_enum {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_POINTER_ATTRIBUTE_MAPPED = 13,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
  CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
  CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
  CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20
} CUpointer_attribute;

typedef enum CUfunction_attribute_enum {
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
  CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
  CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
  CU_FUNC_ATTRIBUTE_BINARY_VERSION = 6,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
} CUfunction_attribute;

typedef enum CUmemRangeHandleType_enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 } CUmemRangeHandleType;

#endif  // GPUMEM_CUDA_SIM_SIM_DECLS_H_
