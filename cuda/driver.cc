// cuda/driver.cc: finds the driver library and its entry points.
#include "cuda/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <string>

namespace gpumem::cuda {
namespace {

constexpr char kDefaultLibrary[] = "libcuda.so.1";

template <typename Fn>
Fn* AsFunction(void* symbol) {
  return reinterpret_cast<Fn*>(symbol);
}

std::string LoadedPath(void* library, const char* asked) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr && map->l_name[0] != 0) {
    return map->l_name;
  }
  return asked;
}

}  // namespace

std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::unique_ptr<Driver> Driver::Load(const char* path, std::string* error) {
  const char* const name = path != nullptr && path[0] != 0 ? path : kDefaultLibrary;
  dlerror();
  void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    *error =
        std::string("cannot load the CUDA driver '") + name + "': " + (why != nullptr ? why : "unknown reason") +
        "; install the NVIDIA driver, or name the library to load: gpumemd by --driver=sim or --libcuda, a worker by "
        "GPUMEM_LIBCUDA (the simulated one works without a GPU)";
    return nullptr;
  }
  std::unique_ptr<Driver> driver(new Driver);
  driver->library_ = library;
  driver->path_ = LoadedPath(library, name);
  driver->simulated_ = dlsym(library, "simcuda_api_version") != nullptr;
  driver->get_proc_address_v2_ =
      AsFunction<CUresult(const char*, void**, int, uint64_t, CUdriverProcAddressQueryResult*)>(
          dlsym(library, "cuGetProcAddress_v2"));
  driver->get_proc_address_v1_ =
      AsFunction<CUresult(const char*, void**, int, uint64_t)>(dlsym(library, "cuGetProcAddress"));
  auto* const get_version = AsFunction<CUresult(int*)>(dlsym(library, "cuDriverGetVersion"));
  int version = 0;
  if (get_version != nullptr && get_version(&version) == CUDA_SUCCESS) driver->version_ = version;
  if (!driver->FindEntryPoints(error)) return nullptr;
  return driver;
}

void* Driver::FindEntryPoint(const char* base, const char* exported, int since) const {
  void* found = nullptr;
  if (get_proc_address_v2_ != nullptr) {
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (get_proc_address_v2_(base, &found, since, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS &&
        status == CU_GET_PROC_ADDRESS_SUCCESS && found != nullptr) {
      return found;
    }
  } else if (get_proc_address_v1_ != nullptr) {
    if (get_proc_address_v1_(base, &found, since, CU_GET_PROC_ADDRESS_DEFAULT) == CUDA_SUCCESS && found != nullptr) {
      return found;
    }
  }
  return dlsym(library_, exported);
}

bool Driver::FindEntryPoints(std::string* error) {
  enum class Group { Required, Optional };
  const auto missing = [&](const char* exported, int since) {
    *error = "the CUDA driver '" + path_ + "'" +
             (version_ != 0 ? " (CUDA " + CudaVersionText(version_) + ")" : std::string()) + " has no entry point " +
             exported + ", which CUDA " + CudaVersionText(since) + " introduced; " +
             (version_ != 0 && version_ < since ? "update the NVIDIA driver"
                                                : "check that this file is a complete CUDA driver library");
    return false;
  };
// The toolkit's header renames some functions by macro, but an argument of # is not expanded: the names are the
// table's.
#define GPUMEM_CUDA_ENTRY(member, base, exported, since, group, parameters)          \
  member = AsFunction<CUresult parameters>(FindEntryPoint(#base, #exported, since)); \
  if (member == nullptr && Group::group == Group::Required) return missing(#exported, since);
#include "cuda/entry_points.def"
#undef GPUMEM_CUDA_ENTRY
  return true;
}

std::string Driver::DescribeError(CUresult error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  const bool named = GetErrorName(error, &name) == CUDA_SUCCESS && name != nullptr;
  const bool explained = GetErrorString(error, &text) == CUDA_SUCCESS && text != nullptr;
  std::string out = named ? name : "unknown CUDA error";
  out += " (" + std::to_string(static_cast<int>(error)) + ")";
  if (explained) out += std::string(": ") + text;
  return out;
}

void* Driver::FindSymbol(const char* name) const { return dlsym(library_, name); }

}  // namespace gpumem::cuda
