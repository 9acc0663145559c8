// cuda/nvml_decls.h: the few declarations of the NVML ABI that this project needs (the toolkit carries no nvml.h on
// every machine). Used by cuda/nvml.cc, which calls them, and by the simulation, which provides them.
#ifndef GPUMEM_CUDA_NVML_DECLS_H_
#define GPUMEM_CUDA_NVML_DECLS_H_

typedef struct nvmlDevice_st* nvmlDevice_t;

enum nvmlReturn_t {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
  NVML_ERROR_UNKNOWN = 999
};

enum nvmlEnableState_t { NVML_FEATURE_DISABLED = 0, NVML_FEATURE_ENABLED = 1 };

struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// The struct of the _v3 process calls.
struct nvmlProcessInfo_t {
  unsigned int pid;
  unsigned long long usedGpuMemory;  // bytes; all ones when not available
  unsigned int gpuInstanceId;        // all ones when not applicable
  unsigned int computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_t) == 24, "the layout of nvmlDeviceGetComputeRunningProcesses_v3");

// Events (nvmlEventSetWait_v2).
typedef struct nvmlEventSet_st* nvmlEventSet_t;
constexpr unsigned long long nvmlEventTypeXidCriticalError = 0x8;
struct nvmlEventData_t {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;  // the Xid; 999 when it is not known
  unsigned int gpuInstanceId;    // all ones when not applicable
  unsigned int computeInstanceId;
};
static_assert(sizeof(nvmlEventData_t) == 32, "the layout of nvmlEventSetWait_v2");

// Field values (nvmlDeviceGetFieldValues).
constexpr unsigned int NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230;
enum nvmlValueType_t { NVML_VALUE_TYPE_UNSIGNED_INT = 1 };
struct nvmlFieldValue_t {
  unsigned int fieldId;
  unsigned int scopeId;
  long long timestamp;  // µs since 1970
  long long latencyUsec;
  nvmlValueType_t valueType;
  nvmlReturn_t nvmlReturn;  // of this field alone
  union {
    double dVal;
    unsigned int uiVal;
    unsigned long long ullVal;
  } value;
};
static_assert(sizeof(nvmlFieldValue_t) == 40, "the layout of nvmlDeviceGetFieldValues");

#endif  // GPUMEM_CUDA_NVML_DECLS_H_
