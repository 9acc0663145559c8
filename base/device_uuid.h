// base/device_uuid.h: the name of a device.
//
// A device is a GPU or a MIG GPU instance and is named by its UUID, never by an ordinal: ordinals differ from process
// to process with CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. Text forms are NVML's: "GPU-8-4-4-4-12",
// "MIG-8-4-4-4-12".
#ifndef GPUMEM_BASE_DEVICE_UUID_H_
#define GPUMEM_BASE_DEVICE_UUID_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpumem {

class DeviceUuid {
 public:
  using Raw = std::array<std::uint8_t, 16>;
  enum class Kind : std::uint8_t { kGpu = 0, kMig = 1 };

  DeviceUuid() = default;
  DeviceUuid(Kind kind, const Raw& raw) : raw_(raw), kind_(kind) {}

  // Parses the text form (hex digits in either case, exact length). nullopt for anything else.
  static std::optional<DeviceUuid> Parse(std::string_view text) {
    if (text.size() != kTextLength) return std::nullopt;
    Kind kind;
    if (text.substr(0, 4) == "GPU-") {
      kind = Kind::kGpu;
    } else if (text.substr(0, 4) == "MIG-") {
      kind = Kind::kMig;
    } else {
      return std::nullopt;
    }
    Raw raw{};
    std::size_t nibbles = 0;
    for (std::size_t i = 4; i < text.size(); ++i) {
      const std::size_t at = i - 4;
      const char c = text[i];
      if (at == 8 || at == 13 || at == 18 || at == 23) {
        if (c != '-') return std::nullopt;
        continue;
      }
      int digit;
      if (c >= '0' && c <= '9') {
        digit = c - '0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - 'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = c - 'A' + 10;
      } else {
        return std::nullopt;
      }
      raw[nibbles / 2] = static_cast<std::uint8_t>((raw[nibbles / 2] << 4) | digit);
      ++nibbles;
    }
    return DeviceUuid(kind, raw);
  }

  std::string ToString() const {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text = kind_ == Kind::kGpu ? "GPU-" : "MIG-";
    text.reserve(kTextLength);
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
      text.push_back(kHex[raw_[i] >> 4]);
      text.push_back(kHex[raw_[i] & 0xf]);
    }
    return text;
  }

  const Raw& raw() const { return raw_; }
  Kind kind() const { return kind_; }

  friend bool operator==(const DeviceUuid& a, const DeviceUuid& b) = default;
  friend auto operator<=>(const DeviceUuid& a, const DeviceUuid& b) = default;
  template <typename H>
  friend H AbslHashValue(H h, const DeviceUuid& uuid) {
    return H::combine(std::move(h), uuid.raw_, uuid.kind_);
  }

  static constexpr std::size_t kTextLength = 40;

 private:
  Raw raw_{};
  Kind kind_ = Kind::kGpu;
};

}  // namespace gpumem

template <>
struct std::hash<gpumem::DeviceUuid> {
  std::size_t operator()(const gpumem::DeviceUuid& uuid) const noexcept {
    return std::hash<std::string_view>()(
        std::string_view(reinterpret_cast<const char*>(uuid.raw().data()), uuid.raw().size()));
  }
};

#endif  // GPUMEM_BASE_DEVICE_UUID_H_
