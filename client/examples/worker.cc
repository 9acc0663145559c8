// A worker in 40 lines: weights that outlive it, and a kv-cache of its own.
#include <cstdio>
#include <cstdlib>

#include "gpumem/gpumem.hpp"

namespace {

// Every call that can fail says why in a sentence for a person and a reason for a program.
template <typename T>
T OrExit(gpumem::Result<T> result, const char* what) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s: %s\n", what, result.status().ToString().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const char* const model = argc > 1 ? argv[1] : "models/tiny";
  gpumem::Client client = OrExit(gpumem::Client::Connect(), "connect");
  const auto devices = OrExit(client.Devices(), "devices");
  const auto holder = OrExit(client.RegisterHolder("my-engine", gpumem::Role::kKvCache), "holder");

  // Read-only, shared with every other reader, and still there when this process is replaced.
  gpumem::Segment weights = OrExit(client.AttachSegment(holder, model), "attach");
  const gpumem::DevicePtr base = OrExit(weights.Map(), "map the weights");
  for (const gpumem::Tensor& tensor : OrExit(weights.Tensors(), "tensors")) {
    std::printf("%-24s %-5s at 0x%llx, %llu bytes\n", tensor.name.c_str(), tensor.dtype.c_str(),
                static_cast<unsigned long long>(base + tensor.offset_bytes),
                static_cast<unsigned long long>(tensor.size_bytes));
  }

  // Private: ends with this process, or with the Release below.
  gpumem::Lease cache = OrExit(client.Allocate(holder, {{devices.at(0).uuid, 64ull << 20, 4}}), "allocate");
  const gpumem::DevicePtr kv = OrExit(cache.Map(), "map the kv-cache");
  std::printf("kv-cache at 0x%llx\n", static_cast<unsigned long long>(kv));

  // … work. When a CUDA call answers an error that says the process must be replaced, report it and leave:
  const int cuda_error = 0;
  if (gpumem::ClassifyError(cuda_error) != gpumem::Fault::kNone) {
    (void)client.ReportFault(cuda_error, "decode step");
    std::abort();
  }
  return cache.Release().ok() && weights.Detach().ok() ? 0 : 1;
}
