#include "client/loader/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "base/checked.h"

namespace gpumem::loader {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLengthWordBytes = 8;
constexpr std::string_view kMetadataName = "__metadata__";

// A name from the file as it may be shown: quoted, cut, and without anything that a terminal could act on.
std::string Show(std::string_view text) {
  constexpr std::size_t kMostShown = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kMostShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || byte >= 0x80) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + (text.size() > kMostShown ? "…\"" : "\"");
}

std::string Number(std::uint64_t value) { return std::to_string(value); }

std::string Errno(int error) {
  char text[128];
  return strerror_r(error, text, sizeof text);
}

bool HasControlCharacter(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// Takes the header's JSON as a stream of tokens, so that a hostile header builds no tree, nests no deeper than the
// format does, and cannot say anything twice. nlohmann's scanner checks the grammar and UTF-8.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected("the number " + std::to_string(value) + ", which is below 0");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected("the number " + text.substr(0, 32) + ", which is no integer of 64 bits");
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::kShape) {
      if (tensor_.shape.size() == kMaxDimensions) {
        return Fail(Where() + " has more than " + Number(kMaxDimensions) + " dimensions, the limit");
      }
      tensor_.shape.push_back(value);
      return true;
    }
    if (at_ == At::kOffsets) {
      if (offsets_.size() == 2) return Fail(Where() + " has more than 2 data_offsets");
      offsets_.push_back(value);
      return true;
    }
    return Unexpected("the number " + Number(value));
  }

  bool string(string_t& value) override {
    if (at_ == At::kDtype) {
      tensor_.dtype = value;
      at_ = At::kTensor;
      return true;
    }
    if (at_ == At::kMetadataValue) {
      if (header_.metadata.size() == kMaxMetadataEntries) {
        return Fail("__metadata__ has more than " + Number(kMaxMetadataEntries) + " entries, the limit");
      }
      header_.metadata.emplace(key_, value);
      at_ = At::kMetadata;
      return true;
    }
    return Unexpected("the text " + Show(value));
  }

  bool start_object(std::size_t) override {
    if (at_ == At::kStart) {
      at_ = At::kTop;
    } else if (at_ == At::kTensorValue) {
      at_ = At::kTensor;
    } else if (at_ == At::kMetadataStart) {
      at_ = At::kMetadata;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(string_t& key) override {
    switch (at_) {
      case At::kTop:
        return TopKey(key);
      case At::kMetadata:
        if (header_.metadata.count(key) != 0) return Fail("__metadata__ has " + Show(key) + " twice");
        key_ = key;
        at_ = At::kMetadataValue;
        return true;
      case At::kTensor:
        return TensorKey(key);
      default:
        return Unexpected("the key " + Show(key));
    }
  }

  bool end_object() override {
    if (at_ == At::kTensor) return EndTensor();
    at_ = at_ == At::kMetadata ? At::kTop : At::kEnd;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ == At::kShapeStart) {
      at_ = At::kShape;
    } else if (at_ == At::kOffsetsStart) {
      at_ = At::kOffsets;
    } else {
      return Unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    at_ = At::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& why) override {
    // The library's text repeats bytes of the file: shown escaped and cut.
    return Fail("the header is no valid JSON at byte " + Number(position) + ": " + Show(why.what()));
  }

  Header& header() { return header_; }
  const std::string& failure() const { return failure_; }

 private:
  enum class At {
    kStart,
    kTop,
    kTensorValue,
    kTensor,
    kDtype,
    kShapeStart,
    kShape,
    kOffsetsStart,
    kOffsets,
    kMetadataStart,
    kMetadata,
    kMetadataValue,
    kEnd
  };

  bool Fail(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    return false;
  }
  std::string Where() const {
    return tensor_.name.empty() ? std::string("the header") : "tensor " + Show(tensor_.name);
  }
  bool Unexpected(const std::string& what) {
    const char* wanted = "nothing more";
    switch (at_) {
      case At::kStart:
        wanted = "an object of tensors";
        break;
      case At::kTensorValue:
        wanted = "an object with dtype, shape and data_offsets";
        break;
      case At::kDtype:
        wanted = "dtype as text";
        break;
      case At::kShapeStart:
      case At::kShape:
        wanted = "shape as an array of integers from 0";
        break;
      case At::kOffsetsStart:
      case At::kOffsets:
        wanted = "data_offsets as an array of two integers from 0";
        break;
      case At::kMetadataStart:
        wanted = "__metadata__ as an object";
        break;
      case At::kMetadataValue:
        wanted = "text in __metadata__";
        break;
      default:
        break;
    }
    return Fail(Where() + " has " + what + " where the format wants " + wanted);
  }

  bool TopKey(const std::string& key) {
    tensor_ = Tensor();
    offsets_.clear();
    seen_dtype_ = seen_shape_ = seen_offsets_ = false;
    if (key == kMetadataName) {
      if (seen_metadata_) return Fail("__metadata__ stands twice");
      seen_metadata_ = true;
      at_ = At::kMetadataStart;
      return true;
    }
    if (key.empty()) return Fail("a tensor has an empty name");
    if (key.size() > kMaxNameBytes) {
      return Fail("the name of tensor " + Show(key) + " has " + Number(key.size()) + " bytes; the limit is " +
                  Number(kMaxNameBytes));
    }
    if (HasControlCharacter(key)) return Fail("the name of tensor " + Show(key) + " has a control character");
    if (header_.tensors.size() == kMaxTensors) {
      return Fail("the header has more than " + Number(kMaxTensors) + " tensors, the limit");
    }
    if (!names_.insert(key).second) return Fail("tensor " + Show(key) + " stands twice");
    tensor_.name = key;
    at_ = At::kTensorValue;
    return true;
  }

  bool TensorKey(const std::string& key) {
    if (key == "dtype") return Once(key, &seen_dtype_, At::kDtype);
    if (key == "shape") return Once(key, &seen_shape_, At::kShapeStart);
    if (key == "data_offsets") return Once(key, &seen_offsets_, At::kOffsetsStart);
    return Fail(Where() + " has the field " + Show(key) + "; the format knows dtype, shape and data_offsets");
  }
  bool Once(const std::string& key, bool* seen, At next) {
    if (*seen) return Fail(Where() + " has " + key + " twice");
    *seen = true;
    at_ = next;
    return true;
  }

  bool EndTensor() {
    const char* missing = !seen_dtype_                             ? "dtype"
                          : !seen_shape_                           ? "shape"
                          : !seen_offsets_ || offsets_.size() != 2 ? "data_offsets of two numbers"
                                                                   : nullptr;
    if (missing != nullptr) return Fail(Where() + " has no " + missing);
    const Result<std::uint64_t> bytes = TensorBytes(tensor_.dtype, tensor_.shape);
    if (!bytes) return Fail(Where() + ": " + bytes.error());
    if (offsets_[1] < offsets_[0]) {
      return Fail(Where() + " ends at " + Number(offsets_[1]) + ", before its begin at " + Number(offsets_[0]));
    }
    if (offsets_[1] - offsets_[0] != *bytes) {
      return Fail(Where() + " is " + Number(*bytes) + " bytes by its dtype and shape, but its data_offsets span " +
                  Number(offsets_[1] - offsets_[0]));
    }
    tensor_.offset_bytes = offsets_[0];
    tensor_.size_bytes = *bytes;
    header_.tensors.push_back(std::move(tensor_));
    tensor_ = Tensor();
    at_ = At::kTop;
    return true;
  }

  At at_ = At::kStart;
  std::string key_;
  Tensor tensor_;
  std::vector<std::uint64_t> offsets_;
  bool seen_dtype_ = false, seen_shape_ = false, seen_offsets_ = false, seen_metadata_ = false;
  std::set<std::string> names_;
  Header header_;
  std::string failure_;
};

// The tensors must fill the data exactly: no overlap, no hole, nothing outside. Sorts them by offset.
std::string CheckCoverage(Header* header) {
  std::vector<Tensor>& tensors = header->tensors;
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.offset_bytes, a.size_bytes) < std::pair(b.offset_bytes, b.size_bytes);
  });
  std::uint64_t end = 0;
  const Tensor* before = nullptr;
  for (const Tensor& tensor : tensors) {
    // No overflow: offset + size is the end that the file itself gave.
    const std::uint64_t tensor_end = tensor.offset_bytes + tensor.size_bytes;
    if (tensor_end > header->data_bytes) {
      return "tensor " + Show(tensor.name) + " ends at byte " + Number(tensor_end) + " of the data, which has only " +
             Number(header->data_bytes);
    }
    if (tensor.offset_bytes < end) {
      return "tensor " + Show(tensor.name) + " begins at byte " + Number(tensor.offset_bytes) + " and overlaps " +
             Show(before->name) + ", which ends at " + Number(end);
    }
    if (tensor.offset_bytes > end) {
      return "bytes " + Number(end) + " to " + Number(tensor.offset_bytes) + " of the data, before tensor " +
             Show(tensor.name) + ", belong to no tensor; the format allows no holes";
    }
    end = tensor_end;
    before = &tensor;
  }
  if (end != header->data_bytes) {
    return "the tensors end at byte " + Number(end) + " of the data, but the file has " + Number(header->data_bytes) +
           "; the format allows no holes";
  }
  return "";
}

// Reads all of `out`, or says why not.
std::string ReadFully(int fd, std::uint64_t from, std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(from + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return "cannot be read at byte " + Number(from + done) + ": " + Errno(errno);
    if (n == 0) {
      return "ends at byte " + Number(from + done) + ", " + Number(out.size() - done) +
             " bytes short of what its header promised";
    }
    done += static_cast<std::size_t>(n);
  }
  return "";
}

std::string WriteFully(int fd, std::span<const std::byte> in) {
  std::size_t done = 0;
  while (done < in.size()) {
    const ssize_t n = ::write(fd, in.data() + done, in.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return "cannot be written: " + Errno(errno);
    done += static_cast<std::size_t>(n);
  }
  return "";
}

Result<std::string> HeaderText(const std::string& path, std::span<const TensorToWrite> tensors,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[std::string(kMetadataName)] = metadata;
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    const Result<std::uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes) return Error{path + ": tensor " + Show(tensor.name) + ": " + bytes.error()};
    const std::optional<std::uint64_t> end = CheckedAdd(offset, *bytes);
    if (!end) return Error{path + ": the tensors' bytes overflow 64 bits at tensor " + Show(tensor.name)};
    json[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, *end}}};
    offset = *end;
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  // The reader's own checks, so that nothing is written that it would refuse.
  const Result<Header> checked = ParseHeader(path, text, kLengthWordBytes + text.size() + offset);
  if (!checked) return Error{checked.error()};
  return text;
}

std::string WriteAll(int fd, std::string_view header, std::span<const TensorToWrite> tensors) {
  std::array<std::byte, kLengthWordBytes> length;
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  std::string error = WriteFully(fd, length);
  if (error.empty()) error = WriteFully(fd, std::as_bytes(std::span(header)));
  constexpr std::uint64_t kBlockBytes = 1 << 20;
  std::vector<std::byte> block(kBlockBytes);
  for (const TensorToWrite& tensor : tensors) {
    const std::uint64_t size = *TensorBytes(tensor.dtype, tensor.shape);
    for (std::uint64_t from = 0; error.empty() && from < size; from += kBlockBytes) {
      const std::span<std::byte> part = std::span(block).first(std::min(kBlockBytes, size - from));
      tensor.fill(from, part);
      error = WriteFully(fd, part);
    }
  }
  return error;
}

}  // namespace

std::optional<std::uint32_t> DtypeBits(std::string_view dtype) {
  struct Row {
    std::string_view name;
    std::uint32_t bits;
  };
  static constexpr Row kRows[] = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16}, {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},    {"C64", 64}, {"F64", 64},    {"I64", 64},    {"U64", 64},
  };
  for (const Row& row : kRows) {
    if (row.name == dtype) return row.bits;
  }
  return std::nullopt;
}

Result<std::uint64_t> TensorBytes(std::string_view dtype, std::span<const std::uint64_t> shape) {
  const std::optional<std::uint32_t> bits = DtypeBits(dtype);
  if (!bits) return Error{"the dtype " + Show(dtype) + " is not known"};
  // A 0 anywhere makes the tensor empty, but the other numbers must still be sane: the format's reader multiplies them
  // in order, and so does this.
  std::uint64_t total = 1;
  for (const std::uint64_t dimension : shape) {
    const std::optional<std::uint64_t> product = CheckedMul(total, dimension);
    if (!product) return Error{"the product of its shape overflows 64 bits at dimension " + Number(dimension)};
    total = *product;
  }
  const std::optional<std::uint64_t> total_bits = CheckedMul(total, *bits);
  if (!total_bits) return Error{"its " + Number(total) + " elements of " + Number(*bits) + " bits overflow 64 bits"};
  if (*total_bits % 8 != 0) return Error{"its " + Number(*total_bits) + " bits are no whole number of bytes"};
  return *total_bits / 8;
}

Result<std::uint64_t> HeaderBytes(std::string_view file, std::uint64_t length_word, std::uint64_t file_bytes) {
  const std::string prefix = std::string(file) + ": ";
  if (file_bytes < kLengthWordBytes) {
    return Error{prefix + "has " + Number(file_bytes) + " bytes; a safetensors file begins with an 8-byte length"};
  }
  if (length_word > kMaxHeaderBytes) {
    return Error{prefix + "says that its header has " + Number(length_word) + " bytes; the limit is " +
                 Number(kMaxHeaderBytes) + " (is it a safetensors file?)"};
  }
  if (length_word > file_bytes - kLengthWordBytes) {
    return Error{prefix + "says that its header has " + Number(length_word) + " bytes, but only " +
                 Number(file_bytes - kLengthWordBytes) + " follow; it is truncated, or no safetensors file"};
  }
  if (length_word < 2) return Error{prefix + "says that its header has " + Number(length_word) + " bytes; at least 2"};
  return length_word;
}

Result<Header> ParseHeader(std::string_view file, std::string_view json, std::uint64_t file_bytes) {
  const std::string prefix = std::string(file) + ": ";
  if (json.empty() || json.front() != '{') return Error{prefix + "its header does not begin with '{'"};
  HeaderReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return Error{prefix + reader.failure()};
  Header header = std::move(reader.header());
  header.data_offset_bytes = kLengthWordBytes + json.size();
  if (file_bytes < header.data_offset_bytes) {
    return Error{prefix + "has " + Number(file_bytes) + " bytes, less than its header"};
  }
  header.data_bytes = file_bytes - header.data_offset_bytes;
  const std::string coverage = CheckCoverage(&header);
  if (!coverage.empty()) return Error{prefix + coverage};
  return header;
}

Result<File> File::Open(const std::string& path) {
  // O_NONBLOCK: opening a fifo must not wait for a writer. It means nothing for a regular file.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return Error{path + ": cannot be opened: " + Errno(errno)};
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return Error{path + ": cannot be examined: " + Errno(errno)};
  if (!S_ISREG(info.st_mode)) return Error{path + ": is not a regular file"};
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);

  std::uint64_t length_word = 0;
  if (file_bytes >= kLengthWordBytes) {
    std::array<std::byte, kLengthWordBytes> word;
    const std::string error = ReadFully(fd.get(), 0, word);
    if (!error.empty()) return Error{path + ": " + error};
    for (std::size_t i = 0; i < word.size(); ++i) length_word |= std::to_integer<std::uint64_t>(word[i]) << (8 * i);
  }
  const Result<std::uint64_t> header_bytes = HeaderBytes(path, length_word, file_bytes);
  if (!header_bytes) return Error{header_bytes.error()};

  std::string json(*header_bytes, '\0');
  const std::string error = ReadFully(fd.get(), kLengthWordBytes, std::as_writable_bytes(std::span(json)));
  if (!error.empty()) return Error{path + ": " + error};
  Result<Header> header = ParseHeader(path, json, file_bytes);
  if (!header) return Error{header.error()};
  return File(path, std::move(fd), std::move(*header));
}

std::optional<Error> File::Read(const Tensor& tensor, std::uint64_t from, std::span<std::byte> out) const {
  if (from > tensor.size_bytes || out.size() > tensor.size_bytes - from) {
    return Error{path_ + ": " + Number(out.size()) + " bytes from byte " + Number(from) + " of tensor " +
                 Show(tensor.name) + " were asked for; it has " + Number(tensor.size_bytes)};
  }
  const std::string error = ReadFully(fd_.get(), header_.data_offset_bytes + tensor.offset_bytes + from, out);
  if (!error.empty()) return Error{path_ + ": tensor " + Show(tensor.name) + ": the file " + error};
  return std::nullopt;
}

std::optional<Error> Write(const std::string& path, std::span<const TensorToWrite> tensors,
                           const std::map<std::string, std::string>& metadata) {
  const Result<std::string> header = HeaderText(path, tensors, metadata);
  if (!header) return Error{header.error()};
  std::string beside = path + ".XXXXXX";
  UniqueFd fd(::mkostemp(beside.data(), O_CLOEXEC));
  if (!fd) return Error{path + ": cannot be created beside it: " + Errno(errno)};
  std::string error = WriteAll(fd.get(), *header, tensors);
  if (error.empty() && ::fchmod(fd.get(), 0644) != 0) error = "its mode cannot be set: " + Errno(errno);
  if (error.empty() && ::rename(beside.c_str(), path.c_str()) != 0) error = "cannot be renamed: " + Errno(errno);
  if (error.empty()) return std::nullopt;
  ::unlink(beside.c_str());
  return Error{path + ": " + error};
}

std::optional<Placement> Place(const Header& header, std::uint64_t alignment_bytes) {
  Placement placement;
  placement.offset_bytes.reserve(header.tensors.size());
  for (const Tensor& tensor : header.tensors) {
    const std::optional<std::uint64_t> begin = CheckedRoundUp(placement.total_bytes, alignment_bytes);
    if (!begin) return std::nullopt;
    const std::optional<std::uint64_t> end = CheckedAdd(*begin, tensor.size_bytes);
    if (!end) return std::nullopt;
    placement.offset_bytes.push_back(*begin);
    placement.total_bytes = *end;
  }
  return placement;
}

}  // namespace gpumem::loader
