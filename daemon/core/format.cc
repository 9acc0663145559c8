// daemon/core/format.cc: see format.h.
#include "daemon/core/format.h"

#include <cstddef>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace gpumem::core {

std::string FormatBytes(Bytes bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes.value() < 1024) return absl::StrCat(bytes.value(), " B");
  double scaled = static_cast<double>(bytes.value()) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0 of the smaller unit.
  while (scaled >= 1023.95 && unit + 1 < sizeof(kUnits) / sizeof(kUnits[0])) {
    scaled /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", scaled, kUnits[unit]);
}

std::string FormatBytesExact(Bytes bytes) {
  return absl::StrCat(FormatBytes(bytes), " (", bytes.value(), bytes.value() == 1 ? " byte)" : " bytes)");
}

std::string Quoted(std::string_view text) {
  static constexpr std::size_t kShown = 240;
  const std::string_view shown = text.substr(0, kShown);
  return absl::StrCat("\"", absl::CHexEscape(AbslView(shown)), shown.size() < text.size() ? "…\"" : "\"");
}

}  // namespace gpumem::core
