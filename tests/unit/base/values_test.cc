#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <string>

#include "base/checked.h"
#include "base/device_uuid.h"
#include "base/unique_fd.h"

namespace gpumem {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(CheckedTest, ArithmeticReportsWhatDoesNotFit) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedSub(5, 5), 0u);
  EXPECT_EQ(CheckedSub(5, 6), std::nullopt);
  EXPECT_EQ(CheckedMul(1ull << 32, 1ull << 31), 1ull << 63);
  EXPECT_EQ(CheckedMul(1ull << 32, 1ull << 32), std::nullopt);
}

TEST(CheckedTest, RoundingUpAtTheEdges) {
  EXPECT_EQ(CheckedRoundUp(0, 8), 0u);
  EXPECT_EQ(CheckedRoundUp(1, 8), 8u);
  EXPECT_EQ(CheckedRoundUp(8, 8), 8u);
  EXPECT_EQ(CheckedRoundUp(kMax, 2), std::nullopt);
  EXPECT_EQ(CheckedRoundUp(kMax - 1, 2), kMax - 1);
}

TEST(DeviceUuidTest, TextFormsComeBackAsTheyWere) {
  for (const std::string text :
       {"GPU-00112233-4455-6677-8899-aabbccddeeff", "MIG-ffffffff-0000-ffff-0000-ffffffffffff"}) {
    const auto uuid = DeviceUuid::Parse(text);
    ASSERT_TRUE(uuid) << text;
    EXPECT_EQ(uuid->ToString(), text);
  }
  EXPECT_NE(DeviceUuid::Parse("GPU-00112233-4455-6677-8899-aabbccddeeff"),
            DeviceUuid::Parse("MIG-00112233-4455-6677-8899-aabbccddeeff"));
}

TEST(DeviceUuidTest, AnythingElseIsRefused) {
  for (const std::string text :
       {"", "0", "GPU-", "gpu-00112233-4455-6677-8899-aabbccddeeff", "GPU-00112233-4455-6677-8899-aabbccddeef",
        "GPU-00112233-4455-6677-8899-aabbccddeefff", "GPU-0011223344-55-6677-8899-aabbccddeeff",
        "GPU-00112233-4455-6677-8899-aabbccddeegg", "GPU-00112233 4455-6677-8899-aabbccddeeff"}) {
    EXPECT_FALSE(DeviceUuid::Parse(text)) << text;
  }
}

TEST(UniqueFdTest, OneOwnerClosesOnce) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  UniqueFd writer(fds[1]);
  {
    UniqueFd reader(fds[0]);
    UniqueFd moved = std::move(reader);
    EXPECT_FALSE(reader.valid());  // NOLINT(bugprone-use-after-move): the state after a move is what is tested
    EXPECT_EQ(moved.get(), fds[0]);
  }
  EXPECT_EQ(::close(fds[0]), -1);
  const int raw = writer.release();
  EXPECT_FALSE(writer.valid());
  EXPECT_EQ(::close(raw), 0);
}

}  // namespace
}  // namespace gpumem
