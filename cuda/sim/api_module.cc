// cuda/sim/api_module.cc: modules and launches, as exported.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/dead_writer.h"
#include "cuda/sim/device_memory.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/kernels.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::Captures;
using simcuda::DeviceMemory;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::KernelEntry;
using simcuda::PerThread;

struct Module {
  std::map<std::string, KernelEntry> entries;
};

struct Function {
  KernelEntry entry;
  simcuda_kernel kernel = nullptr;
};

simcuda::Registry<CUmodule, Module>& Modules() {
  static auto* const registry = new simcuda::Registry<CUmodule, Module>(0x40001000);
  return *registry;
}
simcuda::Registry<CUfunction, Function>& Functions() {
  static auto* const registry = new simcuda::Registry<CUfunction, Function>(0x50001000);
  return *registry;
}

// A launch with its own copies of the parameters, as the driver takes them at the call.
struct Launch {
  std::vector<std::vector<unsigned char>> values;
  std::vector<const void*> pointers;
  simcuda_launch view{};
};

std::shared_ptr<Launch> CopyParameters(const KernelEntry& entry, void** parameters) {
  auto launch = std::make_shared<Launch>();
  for (std::size_t i = 0; i < entry.parameter_bytes.size(); ++i) {
    const auto* const from = static_cast<const unsigned char*>(parameters[i]);
    launch->values.emplace_back(from, from + entry.parameter_bytes[i]);
  }
  for (const auto& value : launch->values) launch->pointers.push_back(value.data());
  launch->view.parameter_count = static_cast<unsigned int>(launch->pointers.size());
  launch->view.parameters = launch->pointers.data();
  return launch;
}

constexpr unsigned long long kMaxThreads = 1024;

// Loading may synchronize the device: as unsafe during a capture as that.
CUresult LoadModule(CUmodule* module, const char* text) {
  Call call;
  CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (module == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = Captures::All().CheckUnsafe();
  if (result != CUDA_SUCCESS) return result;
  // A cubin begins with ELF's mark and a fat binary with its own: the simulation runs neither.
  constexpr unsigned char kElf = 0x7f;
  constexpr unsigned char kFatbin = 0x50;
  const auto first = static_cast<unsigned char>(text[0]);
  if (first == kElf || first == kFatbin) return CUDA_ERROR_INVALID_IMAGE;
  auto entries = simcuda::ParsePtx(text);
  if (!entries) return CUDA_ERROR_INVALID_PTX;
  auto loaded = std::make_shared<Module>();
  loaded->entries = std::move(*entries);
  *module = Modules().Add(std::move(loaded));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  SIMCUDA_CALL(cuModuleLoadData);
  return LoadModule(module, static_cast<const char*>(image));
}

// The options are for a compiler, which the simulation has not: they change nothing.
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
  SIMCUDA_CALL(cuModuleLoadDataEx);
  if (count > 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  return LoadModule(module, static_cast<const char*>(image));
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  SIMCUDA_CALL(cuModuleLoad);
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return LoadModule(module, text.c_str());
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  SIMCUDA_CALL(cuModuleGetFunction);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto loaded = Modules().Find(module);
  if (loaded == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto found = loaded->entries.find(name);
  if (found == loaded->entries.end()) return CUDA_ERROR_NOT_FOUND;
  auto made = std::make_shared<Function>();
  made->entry = found->second;
  made->kernel = simcuda::FindKernel(name);
  if (made->kernel == nullptr) {
    std::fprintf(stderr,
                 "simcuda: the module has a kernel '%s', but the simulated driver cannot run PTX; register a function "
                 "of that name with simcuda_register_kernel before\n",
                 name);
    return CUDA_ERROR_NOT_FOUND;
  }
  *function = Functions().Add(std::move(made));
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  SIMCUDA_CALL(cuModuleUnload);
  Call call;
  CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  result = Captures::All().CheckUnsafe();
  if (result != CUDA_SUCCESS) return result;
  return Modules().Remove(module) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  SIMCUDA_CALL(cuFuncGetAttribute);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr int kLastAttribute = 15;
  constexpr int kVersion = 90;  // of the simulated device: 9.0
  if (value == nullptr || static_cast<int>(attribute) < 0 || static_cast<int>(attribute) > kLastAttribute) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (Functions().Find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = static_cast<int>(kMaxThreads);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = kVersion;
      return CUDA_SUCCESS;
    default:
      *value = 0;  // a simulated kernel takes no registers and no memory of the device
      return CUDA_SUCCESS;
  }
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  SIMCUDA_CALL(cuLaunchKernel);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  const auto found = Functions().Find(function);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (extra != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned long long threads = 1ull * block_x * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  constexpr unsigned int kMaxSharedBytes = 227 << 10;
  if (shared_bytes > kMaxSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  if (parameters == nullptr && !found->entry.parameter_bytes.empty()) return CUDA_ERROR_INVALID_VALUE;
  const auto launch = CopyParameters(found->entry, parameters);
  const unsigned int sizes[] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  for (int i = 0; i < 3; ++i) {
    launch->view.grid[i] = sizes[i];
    launch->view.block[i] = sizes[i + 3];
  }
  DeviceMemory memory(call.process->vmm(), call.context->device());
  return simcuda::Submit(call, [launch, memory, kernel = found->kernel, process = call.process] {
    simcuda_launch view = launch->view;  // its own: a graph's launches may come from two streams
    view.device = const_cast<DeviceMemory*>(&memory);
    const int ordinal = memory.device();
    const gpumem::DeviceUuid& uuid = process->devices()[static_cast<size_t>(ordinal)].store->config().uuid;
    const simcuda::DeadWriter dead_writer(process->vmm(), simcuda::CurrentSettings()->DeviceOf(uuid).dead_writes,
                                          [&view, kernel] { kernel(&view); });
    const CUresult passed = simcuda::PassWorkPoint("kernel", ordinal);
    return passed == CUDA_SUCCESS ? static_cast<CUresult>(kernel(&view)) : passed;
  });
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                             unsigned int block_x, unsigned int block_y, unsigned int block_z,
                             unsigned int shared_bytes, CUstream stream, void** parameters, void** extra) {
  return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, PerThread(stream),
                        parameters, extra);
}

}  // extern "C"
