// The keeper's frames as untrusted bytes.
#include "daemon/keeper/keeper_wire.h"

#include <gtest/gtest.h>

namespace gpumem::keeper {
namespace {

std::vector<std::byte> APut() {
  PutBody body;
  body.entry.name.id = 9;
  body.entry.bytes = 4096;
  return Encode(KeeperFrame::kPut, 5, 1, body);
}

FrameCheck Check(const std::vector<std::byte>& bytes, std::size_t fds, bool truncated = false) {
  FixedHeader header;
  std::string why;
  return CheckFrame(kKeeperFormat, bytes, fds, truncated, &header, &why);
}

TEST(KeeperWire, RoundTrip) {
  const std::vector<std::byte> bytes = APut();
  ASSERT_EQ(Check(bytes, 1), FrameCheck::kGood);
  const auto body = DecodeBody<PutBody>(bytes);
  EXPECT_EQ(body.entry.name.id, 9u);
  EXPECT_EQ(body.entry.bytes, 4096u);
  EXPECT_EQ(body.entry.kind, EntryKind::kChunk);
  EXPECT_LE(bytes.size(), kMaxKeeperFrameBytes);
}

TEST(KeeperWire, CutFramesAndForeignVersionsAreBroken) {
  const std::vector<std::byte> whole = APut();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_EQ(Check(cut, 1), FrameCheck::kBroken) << size;
  }
  std::vector<std::byte> version = whole;
  version[offsetof(FixedHeader, version)] = std::byte{2};
  EXPECT_EQ(Check(version, 1), FrameCheck::kBroken);
  EXPECT_EQ(Check(whole, 0), FrameCheck::kBroken);
  EXPECT_EQ(Check(whole, 0, /*truncated=*/true), FrameCheck::kFdsLost);
}

TEST(KeeperWire, LyingCountsAreImplausible) {
  ListedBody page;
  EXPECT_TRUE(Plausible(page));
  page.more = 1;  // an empty page that promises more would be asked for for ever
  EXPECT_FALSE(Plausible(page));
  page.count = 1;
  EXPECT_FALSE(Plausible(page));  // id 0 names nothing
  page.entries[0].name.id = 1;
  EXPECT_TRUE(Plausible(page));
  page.entries[0].device_kind = 2;
  EXPECT_FALSE(Plausible(page));
  page.entries[0].device_kind = 1;
  page.count = kEntriesPerPage + 1;
  EXPECT_FALSE(Plausible(page));
}

}  // namespace
}  // namespace gpumem::keeper
