// cuda/sim/api_module.cc: modules and launches, as exported.
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_api.h"
#include "cuda/sim/api_call.h"
#include "cuda/sim/dead_writer.h"
#include "cuda/sim/device_memory.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/kernels.h"
#include "cuda/sim/streams.h"

namespace {

using simcuda::Call;
using simcuda::DeviceMemory;
using simcuda::EnterContext;
using simcuda::EnterStream;
using simcuda::KernelEntry;

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

}  // namespace

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  SIMCUDA_CALL(cuModuleLoadData);
  Call call;
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* const text = static_cast<const char*>(image);
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
  const CUresult result = EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  return Modules().Remove(module) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int, CUstream stream,
                        void** parameters, void** extra) {
  SIMCUDA_CALL(cuLaunchKernel);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  const auto found = Functions().Find(function);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (extra != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  constexpr unsigned long long kMaxThreads = 1024;
  const unsigned long long threads = 1ull * block_x * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (parameters == nullptr && !found->entry.parameter_bytes.empty()) return CUDA_ERROR_INVALID_VALUE;
  const auto launch = CopyParameters(found->entry, parameters);
  const unsigned int sizes[] = {grid_x, grid_y, grid_z, block_x, block_y, block_z};
  for (int i = 0; i < 3; ++i) {
    launch->view.grid[i] = sizes[i];
    launch->view.block[i] = sizes[i + 3];
  }
  DeviceMemory memory(call.process->vmm(), call.context->device());
  call.context->Enqueue(call.stream, [launch, memory, kernel = found->kernel, process = call.process]() mutable {
    launch->view.device = &memory;
    const int ordinal = memory.device();
    const gpumem::DeviceUuid& uuid = process->devices()[static_cast<size_t>(ordinal)].store->config().uuid;
    const simcuda::DeadWriter dead_writer(process->vmm(), simcuda::CurrentSettings()->DeviceOf(uuid).dead_writes,
                                          [&launch, kernel] { kernel(&launch->view); });
    const CUresult passed = simcuda::PassWorkPoint("kernel", ordinal);
    return passed == CUDA_SUCCESS ? static_cast<CUresult>(kernel(&launch->view)) : passed;
  });
  return CUDA_SUCCESS;
}

}  // extern "C"
