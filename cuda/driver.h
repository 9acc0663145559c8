// cuda/driver.h: the CUDA driver, loaded at run time, as a table of typed entry points.
//
// This room may use std, libc and base/ only: the worker's library links it too, so nothing else may come along. It
// does not throw. Only processes that are meant to touch a device include it (the arena and the worker's library).
//
// Source of the loading rules: cuGetProcAddress takes the name without suffix and the CUDA version of the ABI wanted;
// an unknown name is CUDA_SUCCESS with a null pointer and a status (12.0 and later), or an error (11.3).
#ifndef GPUMEM_CUDA_DRIVER_H_
#define GPUMEM_CUDA_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cuda/cuda_api.h"

namespace gpumem::cuda {

// One loaded driver library. Immutable once loaded: any thread may call any entry point (the driver is thread-safe).
// The library stays loaded for the life of the process, because CUDA does not support unloading.
//
// Entry points are members without the "cu" prefix and carry the driver's own signatures:
//   driver->MemCreate(&handle, bytes, &prop, 0)
class Driver {
 public:
  // Loads `path`, or "libcuda.so.1" by the usual search when `path` is null or empty, and finds every entry point. It
  // does not call cuInit. On failure returns null and puts one line into `*error` that names the library or the entry
  // point, the driver's CUDA version when it is known, and what to do next.
  static std::unique_ptr<Driver> Load(const char* path, std::string* error);

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

#define GPUMEM_CUDA_ENTRY(member, base, exported, since, group, parameters) CUresult(*member) parameters = nullptr;
#include "cuda/entry_points.def"
#undef GPUMEM_CUDA_ENTRY

  // True for the simulated driver (cuda/sim): its library exports simcuda_api_version.
  bool is_simulated() const { return simulated_; }
  // What cuDriverGetVersion said at load: 12040 is CUDA 12.4. 0 when it did not say.
  int version() const { return version_; }
  // The file that was loaded, as the dynamic linker names it.
  const std::string& path() const { return path_; }

  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", in the driver's own words. Works before cuInit and after any error.
  std::string DescribeError(CUresult error) const;

  // A symbol of the loaded library that is not in the table, or null: for what only the simulation has.
  void* FindSymbol(const char* name) const;

 private:
  Driver() = default;
  bool FindEntryPoints(std::string* error);
  void* FindEntryPoint(const char* base, const char* exported, int since) const;

  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
  bool simulated_ = false;
  // cuGetProcAddress of CUDA 12 and of CUDA 11.3; null in older drivers.
  CUresult (*get_proc_address_v2_)(const char*, void**, int, uint64_t, CUdriverProcAddressQueryResult*) = nullptr;
  CUresult (*get_proc_address_v1_)(const char*, void**, int, uint64_t) = nullptr;
};

// "12.4" for 12040.
std::string CudaVersionText(int version);

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_DRIVER_H_
