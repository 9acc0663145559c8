// Feeds the safetensors header reader with any bytes: it must refuse or accept without a crash, and what it accepts
// fills the data exactly.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "client/loader/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // The first byte says how much data follows the header.
  if (size == 0) return 0;
  const std::uint64_t data_bytes = data[0];
  const std::string_view json(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto header = gpumem::loader::ParseHeader("fuzz", json, 8 + json.size() + data_bytes);
  if (!header) return 0;
  std::uint64_t end = 0;
  for (const gpumem::loader::Tensor& tensor : header->tensors) {
    if (tensor.offset_bytes != end) std::abort();
    end += tensor.size_bytes;
  }
  if (end != data_bytes) std::abort();
  return 0;
}
