// cuda/sim/kernels.cc: the PTX reader, the registered kernels, and the project's own.
#include "cuda/sim/kernels.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "base/mutex.h"
#include "cuda/checksum.h"
#include "cuda/cuda_api.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/device_memory.h"
#include "cuda/sim/numbers.h"

namespace simcuda {
namespace {

// Words and single punctuation marks of a PTX text; comments are left out.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : rest_(text) {}

  // Empty at the end.
  std::string_view Next() {
    SkipBlanks();
    if (rest_.empty()) return {};
    std::size_t length = 0;
    while (length < rest_.size() && IsWord(rest_[length])) ++length;
    if (length == 0) length = 1;
    const std::string_view token = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return token;
  }

 private:
  static bool IsWord(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.';
  }
  void SkipBlanks() {
    while (!rest_.empty()) {
      if (std::isspace(static_cast<unsigned char>(rest_[0])) != 0) {
        rest_.remove_prefix(1);
      } else if (rest_.substr(0, 2) == "//") {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      } else if (rest_.substr(0, 2) == "/*") {
        const std::size_t end = rest_.find("*/", 2);
        rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 2);
      } else {
        return;
      }
    }
  }
  std::string_view rest_;
};

// ".u64" is 8, ".f16x2" is not needed: scalar types only.
std::optional<std::size_t> TypeBytes(std::string_view type) {
  if (type.size() < 3 || type[0] != '.' || std::string_view("usbf").find(type[1]) == std::string_view::npos) {
    return std::nullopt;
  }
  const auto bits = ParseNumber<std::size_t>(type.substr(2));
  if (!bits || (*bits != 8 && *bits != 16 && *bits != 32 && *bits != 64)) return std::nullopt;
  return *bits / 8;
}

// One parameter, after ".param": [.align n] .type name [ "[" n "]" ]. Leaves `*last` at the mark after it.
std::optional<std::size_t> ParseParameter(Tokens* tokens, std::string_view* last) {
  std::optional<std::size_t> bytes;
  std::string_view token = tokens->Next();
  for (; !token.empty() && token[0] == '.'; token = tokens->Next()) {
    if (token == ".align") {
      tokens->Next();
    } else if (token != ".ptr" && token != ".global") {
      bytes = TypeBytes(token);
      if (!bytes) return std::nullopt;
    }
  }
  *last = tokens->Next();  // `token` was the name
  if (*last == "[" && bytes) {
    const auto count = ParseNumber<std::size_t>(tokens->Next());
    if (!count || tokens->Next() != "]") return std::nullopt;
    *bytes *= *count;
    *last = tokens->Next();
  }
  return bytes;
}

std::optional<KernelEntry> ParseEntry(Tokens* tokens) {
  KernelEntry entry;
  entry.name = tokens->Next();
  std::string_view token = tokens->Next();
  if (token == "{") return entry;  // no parameters
  if (entry.name.empty() || token != "(") return std::nullopt;
  for (token = tokens->Next(); token == ".param";) {
    const auto bytes = ParseParameter(tokens, &token);
    if (!bytes) return std::nullopt;
    entry.parameter_bytes.push_back(*bytes);
    if (token == ",") token = tokens->Next();
  }
  return token == ")" ? std::optional(std::move(entry)) : std::nullopt;
}

template <typename T>
T Parameter(const simcuda_launch* launch, unsigned int index) {
  T value;
  std::memcpy(&value, launch->parameters[index], sizeof value);
  return value;
}

const DeviceMemory& MemoryOf(const simcuda_launch* launch) { return *static_cast<const DeviceMemory*>(launch->device); }

int Fill(const simcuda_launch* launch) {
  const auto address = Parameter<std::uint64_t>(launch, 0);
  if (address % 4 != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  const bool ok =
      MemoryOf(launch).Fill32(address, Parameter<std::uint32_t>(launch, 2), Parameter<std::uint64_t>(launch, 1));
  return ok ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

int Checksum(const simcuda_launch* launch) {
  const auto address = Parameter<std::uint64_t>(launch, 0);
  const auto bytes = Parameter<std::uint64_t>(launch, 1);
  const auto out = Parameter<std::uint64_t>(launch, 2);
  if (address % 8 != 0 || out % 8 != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  std::uint64_t sum = 0;
  // Data begins and ends at pages or at the range's own ends, so every part starts at a word.
  const bool read = MemoryOf(launch).ForEachData(
      address, bytes, [&sum](std::uint64_t offset, const unsigned char* data, std::uint64_t size) {
        sum += gpumem::cuda::Checksum(data, size, offset / 8);
      });
  std::uint64_t total = 0;
  if (!read || !MemoryOf(launch).Read(out, &total, sizeof total)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  total += sum;
  return MemoryOf(launch).Write(out, &total, sizeof total) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

int Store(const simcuda_launch* launch) {
  const auto address = Parameter<std::uint64_t>(launch, 0);
  if (address % 4 != 0) return CUDA_ERROR_MISALIGNED_ADDRESS;
  const auto value = Parameter<std::uint32_t>(launch, 1);
  return MemoryOf(launch).Write(address, &value, sizeof value) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

struct KernelTable {
  gpumem::Mutex mu;
  std::map<std::string, simcuda_kernel> by_name GPUMEM_GUARDED_BY(mu) = {
      {"gpumem_fill", &Fill}, {"gpumem_checksum", &Checksum}, {"gpumem_store", &Store}};
};
KernelTable& Kernels() {
  static auto* const kernels = new KernelTable;
  return *kernels;
}

}  // namespace

std::optional<std::map<std::string, KernelEntry>> ParsePtx(std::string_view text) {
  Tokens tokens(text);
  if (tokens.Next() != ".version") return std::nullopt;
  std::map<std::string, KernelEntry> entries;
  for (std::string_view token = tokens.Next(); !token.empty(); token = tokens.Next()) {
    if (token != ".entry") continue;
    auto entry = ParseEntry(&tokens);
    if (!entry) return std::nullopt;
    entries[entry->name] = std::move(*entry);
  }
  return entries;
}

simcuda_kernel FindKernel(const std::string& name) {
  const gpumem::MutexLock lock(&Kernels().mu);
  const auto found = Kernels().by_name.find(name);
  const bool ours = name.rfind("gpumem_", 0) == 0;
  if (!ours && SIMCUDA_BREAK("own-kernels-unknown")) return nullptr;
  return found != Kernels().by_name.end() ? found->second : nullptr;
}

}  // namespace simcuda

extern "C" {

int simcuda_register_kernel(const char* name, simcuda_kernel kernel) {
  if (name == nullptr || name[0] == 0 || kernel == nullptr) return 1;
  const gpumem::MutexLock lock(&simcuda::Kernels().mu);
  return simcuda::Kernels().by_name.emplace(name, kernel).second ? 0 : 1;
}

int simcuda_read(const simcuda_launch* launch, uint64_t address, void* to, size_t bytes) {
  return simcuda::MemoryOf(launch).Read(address, to, bytes) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

int simcuda_write(const simcuda_launch* launch, uint64_t address, const void* from, size_t bytes) {
  return simcuda::MemoryOf(launch).Write(address, from, bytes) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // extern "C"
