/* simcuda.h: what the simulated libcuda.so.1 exports beyond the CUDA driver API. Plain C; no other header needed.
 *
 * Find these with dlsym on the library that was loaded; a program that has found simcuda_api_version is on the
 * simulation. Functions return 0 for success. Thread-safe.
 */
#ifndef GPUMEM_CUDA_SIM_SIMCUDA_H_
#define GPUMEM_CUDA_SIM_SIMCUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMCUDA_API_VERSION 1

/* The version of this interface that the library has. Needs no cuInit. */
int simcuda_api_version(void);

/* ---- Hardware truth: what is physically there, whoever holds it. ------------------------------------------------ */

typedef struct simcuda_object {
  uint64_t id; /* never reused on its device */
  uint64_t bytes;
  uint32_t handle_held;  /* 1 when some process has a handle or a mapping of it */
  uint32_t exported_fds; /* exports that are still open somewhere; copies of one descriptor count once */
} simcuda_object;

typedef struct simcuda_device {
  char uuid[41]; /* "GPU-8-4-4-4-12" */
  char name[128];
  uint64_t capacity_bytes;
  uint64_t physical_bytes; /* the sum of its objects' bytes */
  size_t object_count;
  simcuda_object* objects; /* by id */
} simcuda_device;

typedef struct simcuda_truth {
  size_t device_count;
  simcuda_device* devices; /* in the order of the machine's config */
} simcuda_truth;

/* Reads the machine in the state directory `dir` (NULL: the one that SIMCUDA_DIR names). Needs no cuInit; changes
 * nothing but removing what nobody holds. On failure returns non-zero and writes one line to `error` when that is not
 * NULL. Free the result with simcuda_truth_free. */
int simcuda_hardware_truth(const char* dir, simcuda_truth** out, char* error, size_t error_size);
void simcuda_truth_free(simcuda_truth* truth);

/* ---- A program's own kernels. ----------------------------------------------------------------------------------- */

typedef struct simcuda_launch {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int parameter_count;
  const void* const* parameters; /* each points to a copy that was taken at the launch, as the PTX declares its size */
  void* device;                  /* for the functions below */
} simcuda_launch;

/* Runs a whole launch (all its threads) on the stream's worker thread. Returns 0, or a CUresult that becomes the
 * process's sticky error. Device addresses are not CPU addresses: it must use the functions below. It may block. */
typedef int (*simcuda_kernel)(const simcuda_launch* launch);

/* Gives the entry `name` of any PTX module that is loaded from now on this meaning. Needs no cuInit. Returns non-zero
 * when the name is empty or already registered. */
int simcuda_register_kernel(const char* name, simcuda_kernel kernel);

/* For use in a kernel: 0, or the CUresult of the illegal access, which the kernel should return. */
int simcuda_read(const simcuda_launch* launch, uint64_t address, void* to, size_t bytes);
int simcuda_write(const simcuda_launch* launch, uint64_t address, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* GPUMEM_CUDA_SIM_SIMCUDA_H_ */
