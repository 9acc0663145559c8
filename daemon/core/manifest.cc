// daemon/core/manifest.cc: what a manifest may say of its segment.
//
// dtype names are those of the safetensors format (its README and the Dtype enum of its Rust crate, 0.6).
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/checked.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/reasons.h"

namespace gpumem::core {
namespace {

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;  // 0: less than a byte each, so the size cannot be told from the shape alone
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 1},    {"F4", 0},      {"F6_E2M3", 0}, {"F6_E3M2", 0}, {"U8", 1},  {"I8", 1},   {"F8_E5M2", 1},
    {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2},     {"U16", 2},     {"F16", 2}, {"BF16", 2}, {"I32", 4},
    {"U32", 4},     {"F32", 4},     {"C64", 8},     {"F64", 8},     {"I64", 8}, {"U64", 8},
};

const Dtype* FindDtype(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name == name) return &dtype;
  }
  return nullptr;
}

absl::Status Invalid(const TensorInfo& tensor, std::string_view why) {
  return Error(Reason::MANIFEST_INVALID, absl::StrCat("manifest: tensor ", Quoted(tensor.name), " ", AbslView(why)),
               {{"tensor", std::string(tensor.name.substr(0, 240))}});
}

// nullopt when the number of elements does not fit 64 bits. No dimension means a scalar: one element.
std::optional<std::uint64_t> Elements(const std::vector<std::uint64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
  std::optional<std::uint64_t> product = 1;
  for (const std::uint64_t dimension : shape) {
    product = gpumem::CheckedMul(*product, dimension);
    if (!product) return std::nullopt;
  }
  return product;
}

absl::Status CheckSize(const TensorInfo& tensor) {
  const Dtype* dtype = FindDtype(tensor.dtype);
  if (dtype == nullptr) return Invalid(tensor, absl::StrCat("has the unknown dtype ", Quoted(tensor.dtype)));
  const std::optional<std::uint64_t> elements = Elements(tensor.shape);
  if (!elements) return Invalid(tensor, "has a shape whose number of elements overflows 64 bits");
  if (dtype->bytes == 0) return absl::OkStatus();
  const std::optional<std::uint64_t> bytes = gpumem::CheckedMul(*elements, dtype->bytes);
  if (!bytes) return Invalid(tensor, "has a shape whose size in bytes overflows 64 bits");
  if (*bytes != tensor.size.value()) {
    return Invalid(tensor, absl::StrCat("says ", tensor.size.value(), " bytes, but its shape of ", *elements, " × ",
                                        tensor.dtype, " has ", *bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckPlace(const TensorInfo& tensor, Bytes segment_bytes) {
  const std::optional<Bytes> end = CheckedAdd(tensor.offset, tensor.size);
  if (!end) {
    return Invalid(tensor, absl::StrCat("at offset ", tensor.offset.value(), " with ", tensor.size.value(),
                                        " bytes overflows 64 bits"));
  }
  if (*end > segment_bytes) {
    return Invalid(
        tensor, absl::StrCat("ends at byte ", end->value(), ", but the segment has ", FormatBytesExact(segment_bytes)));
  }
  return absl::OkStatus();
}

absl::Status CheckOverlap(const Manifest& manifest) {
  std::vector<std::size_t> order(manifest.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&manifest](std::size_t a, std::size_t b) { return manifest[a].offset < manifest[b].offset; });
  const TensorInfo* last = nullptr;  // the last one that is not empty; an empty tensor overlaps nothing
  for (const std::size_t i : order) {
    const TensorInfo& tensor = manifest[i];
    if (tensor.size.value() == 0) continue;
    if (last != nullptr && tensor.offset.value() < last->offset.value() + last->size.value()) {
      return Invalid(tensor,
                     absl::StrCat("begins at byte ", tensor.offset.value(), ", inside of ", Quoted(last->name)));
    }
    last = &tensor;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckManifest(const Manifest& manifest, Bytes segment_bytes, std::uint32_t max_tensors) {
  if (manifest.size() > max_tensors) {
    return Error(Reason::MANIFEST_INVALID,
                 absl::StrCat("manifest: ", manifest.size(), " tensors; at most ", max_tensors, " are allowed"),
                 {{"asked", absl::StrCat(manifest.size())}, {"limit", absl::StrCat(max_tensors)}});
  }
  absl::flat_hash_set<std::string_view> names;
  names.reserve(manifest.size());
  for (const TensorInfo& tensor : manifest) {
    if (tensor.name.empty()) return Invalid(tensor, "has no name");
    if (!names.insert(tensor.name).second) return Invalid(tensor, "is named twice");
    if (absl::Status status = CheckSize(tensor); !status.ok()) return status;
    if (absl::Status status = CheckPlace(tensor, segment_bytes); !status.ok()) return status;
  }
  return CheckOverlap(manifest);
}

}  // namespace gpumem::core
