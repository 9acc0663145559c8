// cuda/sim/numbers.h: whole texts that are one decimal number.
#ifndef GPUMEM_CUDA_SIM_NUMBERS_H_
#define GPUMEM_CUDA_SIM_NUMBERS_H_

#include <charconv>
#include <optional>
#include <string_view>

namespace simcuda {

// nullopt for an empty text, anything beside the number, or one that does not fit.
template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_NUMBERS_H_
