#include "client/memctl/format.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace gpumem::memctl {
namespace {

struct Decoded {
  std::size_t bytes = 0;  // 0: no UTF-8 here
  std::uint32_t character = 0;
};

// The character at the front of `text` (not empty), by RFC 3629.
Decoded Decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return {};
  std::uint32_t character = first & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    character = (character << 6) | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  if (character < kSmallest[length] || character > 0x10ffff || surrogate) return {};
  return {length, character};
}

bool ActsOnATerminal(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 || (c >= 0x202a && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

// Characters of a text that Printable made.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string HumanBytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && (bytes >> (10 * (unit + 1))) != 0) ++unit;
  const std::uint64_t whole = bytes >> (10 * unit);
  std::string text = std::to_string(whole);
  if (unit > 0) {
    // One unit below has at most 1023 left: no overflow.
    const std::uint64_t rest = (bytes >> (10 * (unit - 1))) & 1023;
    const std::uint64_t tenths = rest * 10 / 1024;
    if (tenths > 0) text += "." + std::to_string(tenths);
  }
  return text + " " + kUnits[unit];
}

std::string Age(std::int64_t seconds) {
  if (seconds < 0) seconds = 0;
  constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  char text[40];
  const auto two = [&](std::int64_t high, char high_unit, std::int64_t low, char low_unit) {
    std::snprintf(text, sizeof text, "%lld%c%02lld%c", static_cast<long long>(high), high_unit,
                  static_cast<long long>(low), low_unit);
    return std::string(text);
  };
  if (seconds < kMinute) return std::to_string(seconds) + "s";
  if (seconds < kHour) return two(seconds / kMinute, 'm', seconds % kMinute, 's');
  if (seconds < kDay) return two(seconds / kHour, 'h', seconds % kHour / kMinute, 'm');
  return two(seconds / kDay, 'd', seconds % kDay / kHour, 'h');
}

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Decoded decoded = Decode(text);
    char escaped[16];
    if (decoded.bytes == 0 || decoded.character < 0x80) {
      const auto byte = static_cast<unsigned char>(text[0]);
      if (byte == '\\') {
        out += "\\\\";
      } else if (decoded.bytes == 1 && !ActsOnATerminal(byte)) {
        out += text[0];
      } else {
        std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
        out += escaped;
      }
    } else if (ActsOnATerminal(decoded.character)) {
      std::snprintf(escaped, sizeof escaped, "\\u{%x}", decoded.character);
      out += escaped;
    } else {
      out += text.substr(0, decoded.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(decoded.bytes, 1));
  }
  return out;
}

void Table::Row(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Printable(cell);
  cells.resize(columns_.size(), "-");
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<std::size_t> shown, widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const bool any = std::any_of(rows_.begin(), rows_.end(), [i](const auto& row) { return row[i] != "-"; });
    if (columns_[i].if_any && !any) continue;
    std::size_t width = Width(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, Width(row[i]));
    shown.push_back(i);
    widths.push_back(width);
  }
  std::string out;
  const auto line = [&](const auto& cell_of) {
    std::string text;
    for (std::size_t k = 0; k < shown.size(); ++k) {
      const std::string& cell = cell_of(shown[k]);
      const std::string space(widths[k] - Width(cell), ' ');
      if (k > 0) text += "  ";
      text += columns_[shown[k]].right ? space + cell : cell + space;
    }
    text.resize(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) line([&](std::size_t i) -> const std::string& { return row[i]; });
  if (rows_.empty()) out += "(none)\n";
  return out;
}

}  // namespace gpumem::memctl
