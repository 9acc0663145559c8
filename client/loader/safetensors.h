// client/loader/safetensors.h: reads and writes model files in the safetensors format.
//
// Owns the file descriptor of an open file. Calls only base/, nlohmann-json's scanner and libc; no CUDA, no libgpumem.
// Used by loaders that publish a file's tensors as a segment.
//
// A file is not trusted. Nothing in it is used before it is checked, and every refusal names the file, the tensor, the
// number found and the limit. The format (safetensors 0.5, "Format"): 8 bytes little-endian N; N bytes of JSON that
// begin with '{' and may end in spaces: {"name": {"dtype": D, "shape": [...], "data_offsets": [begin, end]}, ...,
// "__metadata__": {"key": "text", ...}}; then the data, to which the offsets refer. The format allows no duplicate
// names, no overlap and no hole: the tensors fill the data exactly.
#ifndef GPUMEM_CLIENT_LOADER_SAFETENSORS_H_
#define GPUMEM_CLIENT_LOADER_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.h"

namespace gpumem::loader {

// Limits on what a file can make grow. Header bytes: the format's own limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxDimensions = 64;
inline constexpr std::size_t kMaxNameBytes = 1024;
inline constexpr std::size_t kMaxMetadataEntries = 65'536;

// Why a file was refused, for a person. Empty: no error.
struct Error {
  std::string message;
};

// A value, or why there is none.
template <typename T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}      // NOLINT: meant to be implicit
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: meant to be implicit
  explicit operator bool() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const std::string& error() const { return error_.message; }

 private:
  std::optional<T> value_;
  Error error_;
};

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;  // empty for a scalar; a 0 makes the tensor empty
  std::uint64_t offset_bytes = 0;    // from the start of the data
  std::uint64_t size_bytes = 0;      // what dtype and shape say, and what the offsets span
  friend bool operator==(const Tensor&, const Tensor&) = default;
};

struct Header {
  std::vector<Tensor> tensors;                  // in the order of their offsets
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::uint64_t data_offset_bytes = 0;          // of the data in the file: 8 + N
  std::uint64_t data_bytes = 0;
};

// Bits of one element of a dtype, or nullopt for a dtype that is not known. Some are less than a byte.
std::optional<std::uint32_t> DtypeBits(std::string_view dtype);

// Bytes of a tensor. Error: unknown dtype, overflow of 64 bits, or a number of bits that is no whole byte.
Result<std::uint64_t> TensorBytes(std::string_view dtype, std::span<const std::uint64_t> shape);

// Checks the length word alone: the header's bytes that must follow it. `file` names the file in errors.
Result<std::uint64_t> HeaderBytes(std::string_view file, std::uint64_t length_word, std::uint64_t file_bytes);

// Parses and checks a whole header (without the length word) of a file of `file_bytes` bytes.
Result<Header> ParseHeader(std::string_view file, std::string_view json, std::uint64_t file_bytes);

// An open file whose header was checked. Move-only. Reads are const and thread-safe (pread).
class File {
 public:
  // Refuses what is not a regular file. The file is not mapped: one that shrinks later gives an error and no SIGBUS.
  static Result<File> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Header& header() const { return header_; }

  // Fills `out` (out.size() + from <= tensor.size_bytes) with the tensor's bytes from `from` on. An error when the file
  // cannot be read or has become shorter; empty otherwise.
  std::optional<Error> Read(const Tensor& tensor, std::uint64_t from, std::span<std::byte> out) const;

 private:
  File(std::string path, UniqueFd fd, Header header)
      : path_(std::move(path)), fd_(std::move(fd)), header_(std::move(header)) {}
  std::string path_;
  UniqueFd fd_;
  Header header_;
};

// One tensor to write. `fill` is called with rising offsets until the tensor is full.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::function<void(std::uint64_t from, std::span<std::byte> out)> fill;
};

// Writes a file, tensors in the order given, data aligned to 8 bytes as the format asks. The file appears at `path`
// only when it is whole (written beside it, then renamed). An error leaves nothing behind.
std::optional<Error> Write(const std::string& path, std::span<const TensorToWrite> tensors,
                           const std::map<std::string, std::string>& metadata);

// Where each tensor of a header goes when laid out for a device: in order, each at a multiple of `alignment_bytes` (>
// 0).
struct Placement {
  std::vector<std::uint64_t> offset_bytes;  // as many as tensors
  std::uint64_t total_bytes = 0;
};
// nullopt when the sum overflows 64 bits.
std::optional<Placement> Place(const Header& header, std::uint64_t alignment_bytes);

}  // namespace gpumem::loader

#endif  // GPUMEM_CLIENT_LOADER_SAFETENSORS_H_
