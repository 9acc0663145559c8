// cuda/sim/kernels.h: modules and kernels. A module's PTX tells the names and parameters of its entries; what an entry
// does is a function that is registered under its name.
#ifndef GPUMEM_CUDA_SIM_KERNELS_H_
#define GPUMEM_CUDA_SIM_KERNELS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/sim/simcuda.h"

namespace simcuda {

struct KernelEntry {
  std::string name;
  std::vector<std::size_t> parameter_bytes;
};

// The .entry functions of a PTX text, or nullopt when it is none (.version is missing, a parameter cannot be read).
std::optional<std::map<std::string, KernelEntry>> ParsePtx(std::string_view text);

// The kernel of that name, or null. The project's own (gpumem_fill, gpumem_checksum, gpumem_store) are always there.
simcuda_kernel FindKernel(const std::string& name);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_KERNELS_H_
