// daemon/text.h: messages put together from texts and integers. Std only.
//
// absl::StrCat of Debian 12 takes absl::string_view, which is not std::string_view there; this takes the latter.
#ifndef GPUMEM_DAEMON_TEXT_H_
#define GPUMEM_DAEMON_TEXT_H_

#include <string>
#include <string_view>
#include <type_traits>

namespace gpumem {

// The parts one after the other: texts of any kind (both string_views included), and integers in decimal.
template <typename... Parts>
std::string Cat(const Parts&... parts) {
  std::string text;
  const auto append = [&text](const auto& part) {
    if constexpr (std::is_convertible_v<decltype(part), std::string_view>) {
      text.append(std::string_view(part));
    } else if constexpr (requires { text.append(part.data(), part.size()); }) {
      text.append(part.data(), part.size());
    } else {
      text.append(std::to_string(part));
    }
  };
  (append(parts), ...);
  return text;
}

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_TEXT_H_
