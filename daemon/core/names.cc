// daemon/core/names.cc: segment names, [namespace/…]name[@version].
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/reasons.h"

namespace gpumem::core {
namespace {

bool IsPartChar(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool IsPart(std::string_view part) {
  if (part.empty() || part.front() == '.') return false;
  for (const char c : part) {
    if (!IsPartChar(c)) return false;
  }
  return true;
}

// Decimal, > 0, no sign, no leading zero, fits 64 bits.
std::optional<std::uint64_t> ParseVersion(std::string_view text) {
  if (text.empty() || text.front() < '1' || text.front() > '9') return std::nullopt;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
  }
  std::uint64_t version = 0;
  if (!absl::SimpleAtoi(AbslView(text), &version)) return std::nullopt;
  return version;
}

absl::Status Invalid(std::string_view text, std::string_view why) {
  return Error(Reason::NAME_INVALID,
               absl::StrCat("segment name ", Quoted(text), ": ", AbslView(why),
                            "; a name is [namespace/…]name[@version], its parts of letters, digits, '.', '_' and '-'"));
}

}  // namespace

// The limit holds for the path alone: sealing adds "@version" to a path that was accepted before.
absl::StatusOr<SegmentName> ParseSegmentName(std::string_view text, std::uint32_t name_bytes) {
  SegmentName name;
  const std::size_t at = text.find('@');
  const std::string_view path = text.substr(0, at);
  if (path.empty()) return Invalid(text, "it is empty");
  if (path.size() > name_bytes) {
    return Error(
        Reason::NAME_INVALID,
        absl::StrCat("segment name ", Quoted(text), " has ", path.size(), " bytes without its version; at most ",
                     name_bytes, " are allowed; choose a shorter name"),
        {{"asked_bytes", absl::StrCat(path.size())}, {"limit_bytes", absl::StrCat(name_bytes)}});
  }
  for (const absl::string_view split : absl::StrSplit(AbslView(path), '/')) {
    const std::string_view part = StdView(split);
    if (!IsPart(part)) return Invalid(text, absl::StrCat("the part ", Quoted(part), " breaks the rules"));
  }
  name.path = std::string(path);
  if (at != std::string_view::npos) {
    name.version = ParseVersion(text.substr(at + 1));
    if (!name.version) return Invalid(text, "the version is not a decimal number above 0 without leading zeros");
  }
  return name;
}

}  // namespace gpumem::core
