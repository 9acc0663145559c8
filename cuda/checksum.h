// cuda/checksum.h: the checksum that the kernel gpumem_checksum computes, for the CPU. Header-only; std only.
//
// The sum, modulo 2^64, over all 8-byte little-endian words w[i] of
//     Mix(w[i]) * (2i + 1),   Mix(w) = (m ^ m >> 32) * kChecksumMul2,  m = w * kChecksumMul1
// where a shorter last word is filled up with zero bytes. Additions commute, so it can be computed in any order and in
// parts; each step is a bijection of the word (odd factors, xor-shift), so a change of a single word always changes it;
// a zero word adds nothing, so holes of sparse memory cost nothing. It detects mistakes, not malice.
#ifndef GPUMEM_CUDA_CHECKSUM_H_
#define GPUMEM_CUDA_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpumem::cuda {

inline constexpr std::uint64_t kChecksumMul1 = 0x9e3779b97f4a7c15;
inline constexpr std::uint64_t kChecksumMul2 = 0xd6e8feb86659fd93;

inline std::uint64_t ChecksumWord(std::uint64_t word, std::uint64_t index) {
  std::uint64_t m = word * kChecksumMul1;
  m = (m ^ (m >> 32)) * kChecksumMul2;
  return m * (2 * index + 1);
}

// The part of the checksum that `bytes` at `data` contribute when they start at word `first_word` of the whole. Only
// the last part may have a size that is not a multiple of 8.
inline std::uint64_t Checksum(const void* data, std::size_t bytes, std::uint64_t first_word = 0) {
  const auto* const at = static_cast<const unsigned char*>(data);
  std::uint64_t sum = 0;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, at + i, 8);
    sum += ChecksumWord(word, first_word + i / 8);
  }
  if (i < bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, at + i, bytes - i);
    sum += ChecksumWord(word, first_word + i / 8);
  }
  return sum;
}

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_CHECKSUM_H_
