// tests/unit/core/manifest_test.cc: what a manifest may say.
#include <string>
#include <vector>

#include "daemon/core/books.h"
#include "daemon/core/reasons.h"
#include "gtest/gtest.h"

namespace gpumem::core {
namespace {

constexpr std::uint64_t kMax = ~std::uint64_t{0};

TensorInfo Tensor(std::string name, std::string dtype, std::vector<std::uint64_t> shape, std::uint64_t offset,
                  std::uint64_t size) {
  return {std::move(name), std::move(dtype), std::move(shape), Bytes(offset), Bytes(size)};
}

TEST(Manifests, GoodOnesAreAccepted) {
  const std::vector<Manifest> good = {
      {},
      {Tensor("a", "F32", {2, 3}, 0, 24)},
      {Tensor("scalar", "F64", {}, 0, 8)},
      {Tensor("to the end", "U8", {1000}, 0, 1000)},
      {Tensor("b", "BF16", {4}, 500, 8), Tensor("a", "F16", {4}, 492, 8)},           // out of order, side by side
      {Tensor("none", "F32", {0}, 1000, 0), Tensor("a", "U8", {1000}, 0, 1000)},     // empty, at the very end
      {Tensor("none", "F32", {kMax, kMax, 0}, 4, 0), Tensor("a", "U8", {9}, 0, 9)},  // empty, inside of another
      {Tensor("half bytes", "F4", {3}, 0, 2), Tensor("six bits", "F6_E2M3", {3}, 2, 3)},
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    const absl::Status status = CheckManifest(good[i], Bytes(1000), 8);
    EXPECT_TRUE(status.ok()) << i << ": " << status;
  }
}

TEST(Manifests, EveryWholeByteDtypeHasItsSize) {
  const std::vector<std::pair<std::string, std::uint64_t>> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [dtype, size] : sizes) {
    EXPECT_TRUE(CheckManifest({Tensor("t", dtype, {5}, 0, 5 * size)}, Bytes(1000), 1).ok()) << dtype;
    EXPECT_FALSE(CheckManifest({Tensor("t", dtype, {5}, 0, 5 * size + 1)}, Bytes(1000), 1).ok()) << dtype;
  }
}

TEST(Manifests, BadOnesAreRefusedNamingTheTensor) {
  struct Case {
    std::string what;
    Manifest manifest;
    std::string said;
  };
  const std::vector<Case> bad = {
      {"outside by one", {Tensor("t", "U8", {1000}, 1, 1000)}, "ends at byte 1001"},
      {"begins outside", {Tensor("t", "U8", {0}, 1001, 0)}, "ends at byte 1001"},
      {"offset + size overflows", {Tensor("t", "U8", {2}, kMax, 2)}, "overflows 64 bits"},
      {"shape product overflows", {Tensor("t", "U8", {kMax, 2}, 0, kMax - 1)}, "number of elements overflows"},
      {"shape bytes overflow", {Tensor("t", "F64", {kMax / 4}, 0, 8)}, "size in bytes overflows"},
      {"shape wraps to the size", {Tensor("t", "F64", {std::uint64_t{1} << 61}, 0, 0)}, "size in bytes overflows"},
      {"too short for its shape", {Tensor("t", "F32", {2}, 0, 7)}, "has 8"},
      {"unknown dtype", {Tensor("t", "F33", {2}, 0, 8)}, "unknown dtype \"F33\""},
      {"dtype in lower case", {Tensor("t", "f32", {2}, 0, 8)}, "unknown dtype"},
      {"no dtype", {Tensor("t", "", {2}, 0, 8)}, "unknown dtype"},
      {"overlap by one", {Tensor("a", "U8", {10}, 0, 10), Tensor("t", "U8", {10}, 9, 10)}, "inside of \"a\""},
      {"same place", {Tensor("a", "U8", {10}, 5, 10), Tensor("b", "U8", {10}, 5, 10)}, "inside of"},
      {"overlap across an empty one",
       {Tensor("a", "U8", {10}, 0, 10), Tensor("none", "U8", {0}, 5, 0), Tensor("t", "U8", {1}, 6, 1)},
       "inside of \"a\""},
      {"the second and the third overlap",
       {Tensor("a", "U8", {10}, 0, 10), Tensor("b", "U8", {10}, 10, 10), Tensor("t", "U8", {10}, 19, 10)},
       "inside of \"b\""},
      {"sub-byte ones overlap", {Tensor("a", "F4", {4}, 0, 2), Tensor("t", "F4", {4}, 1, 2)}, "inside of \"a\""},
      {"no name", {Tensor("", "U8", {1}, 0, 1)}, "has no name"},
      {"named twice", {Tensor("t", "U8", {1}, 0, 1), Tensor("t", "U8", {1}, 1, 1)}, "named twice"},
  };
  for (const Case& c : bad) {
    const absl::Status status = CheckManifest(c.manifest, Bytes(1000), 8);
    ASSERT_FALSE(status.ok()) << c.what;
    EXPECT_EQ(ReasonOf(status), Reason::MANIFEST_INVALID) << c.what;
    EXPECT_NE(std::string(status.message()).find(c.said), std::string::npos) << c.what << ": " << status;
  }
}

TEST(Manifests, TheNumberOfTensorsIsLimited) {
  Manifest manifest;
  for (int i = 0; i < 4; ++i) manifest.push_back(Tensor("t" + std::to_string(i), "U8", {1}, i, 1));
  EXPECT_TRUE(CheckManifest(manifest, Bytes(1000), 4).ok());
  const absl::Status status = CheckManifest(manifest, Bytes(1000), 3);
  EXPECT_EQ(ReasonOf(status), Reason::MANIFEST_INVALID);
  EXPECT_EQ(DetailsOf(status).at("limit"), "3");
}

}  // namespace
}  // namespace gpumem::core
