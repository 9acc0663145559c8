// Exits 0 when the C++ layer works as far as it can without a daemon.
#include <gpumem/gpumem.hpp>

int main() {
  gpumem::ConnectOptions options;
  options.libcuda_path = "/no/such/libcuda.so.1";
  const auto client = gpumem::Client::Connect(options);
  return client.status().reason() == GPUMEM_NO_DRIVER ? 0 : 1;
}
