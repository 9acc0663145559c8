// daemon/core/format.h: how sizes and names of peers are written in messages. Std and Abseil only.
#ifndef GPUMEM_DAEMON_CORE_FORMAT_H_
#define GPUMEM_DAEMON_CORE_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "daemon/core/types.h"

namespace gpumem::core {

// Debian builds Abseil with a string_view of its own, which does not convert from std's.
inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

// "96.0 GiB", "1.5 KiB", "512 B". Rounded to one decimal: for display only.
std::string FormatBytes(Bytes bytes);

// "96.0 GiB (103079215104 bytes)": what error messages use, so that no digit is lost.
std::string FormatBytesExact(Bytes bytes);

// Text that a peer chose, in quotes, with unprintable bytes escaped and the end cut off when it is very long.
std::string Quoted(std::string_view text);

}  // namespace gpumem::core

#endif  // GPUMEM_DAEMON_CORE_FORMAT_H_
