// base/checked.h: byte arithmetic that reports overflow instead of wrapping. Std only.
#ifndef GPUMEM_BASE_CHECKED_H_
#define GPUMEM_BASE_CHECKED_H_

#include <cstdint>
#include <optional>

namespace gpumem {

inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<std::uint64_t> CheckedSub(std::uint64_t a, std::uint64_t b) {
  if (b > a) return std::nullopt;
  return a - b;
}

inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// `value` rounded up to a multiple of `unit` (> 0); nullopt when that does not fit 64 bits.
inline std::optional<std::uint64_t> CheckedRoundUp(std::uint64_t value, std::uint64_t unit) {
  const std::uint64_t rest = value % unit;
  return rest == 0 ? std::optional<std::uint64_t>(value) : CheckedAdd(value, unit - rest);
}

}  // namespace gpumem

#endif  // GPUMEM_BASE_CHECKED_H_
