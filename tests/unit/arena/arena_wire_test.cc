// The arena's frames as untrusted bytes: cut, versioned, lying.
#include "daemon/arena/arena_wire.h"

#include <gtest/gtest.h>

#include <cstring>

namespace gpumem::arena {
namespace {

std::vector<std::byte> ACreate() {
  CreateBody body;
  body.count = 2;
  body.want_fds = 1;
  body.entries[0] = CreateEntry{7, 4096};
  body.entries[1] = CreateEntry{8, 8192};
  return Encode(ArenaFrame::kCreate, 42, 0, body);
}

FrameCheck Check(const std::vector<std::byte>& bytes, std::size_t fds = 0, bool truncated = false) {
  FixedHeader header;
  std::string why;
  const FrameCheck check = CheckFrame(kArenaFormat, bytes, fds, truncated, &header, &why);
  EXPECT_EQ(why.empty(), check == FrameCheck::kGood) << why;
  return check;
}

TEST(ArenaWire, RoundTrip) {
  const std::vector<std::byte> bytes = ACreate();
  FixedHeader header;
  std::string why;
  ASSERT_EQ(CheckFrame(kArenaFormat, bytes, 0, false, &header, &why), FrameCheck::kGood) << why;
  EXPECT_EQ(header.request, 42u);
  EXPECT_EQ(static_cast<ArenaFrame>(header.type), ArenaFrame::kCreate);
  const auto body = DecodeBody<CreateBody>(bytes);
  EXPECT_TRUE(Plausible(body));
  EXPECT_EQ(body.entries[1].chunk_id, 8u);
  EXPECT_EQ(body.entries[1].bytes, 8192u);
  EXPECT_LE(bytes.size(), kMaxArenaFrameBytes);
}

TEST(ArenaWire, EveryCutIsBroken) {
  const std::vector<std::byte> whole = ACreate();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    ASSERT_EQ(Check(cut), FrameCheck::kBroken) << size;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(Check(longer), FrameCheck::kBroken);
}

TEST(ArenaWire, ForeignMagicVersionTypeAndSizeAreBroken) {
  const std::vector<std::byte> whole = ACreate();
  for (const std::size_t at : {offsetof(FixedHeader, magic), offsetof(FixedHeader, version),
                               offsetof(FixedHeader, type) + 1, offsetof(FixedHeader, body_bytes)}) {
    std::vector<std::byte> wrong = whole;
    wrong[at] ^= std::byte{0x10};
    EXPECT_EQ(Check(wrong), FrameCheck::kBroken) << at;
  }
}

TEST(ArenaWire, DescriptorCountsMustBeTrue) {
  const CreatedBody body;
  const std::vector<std::byte> two = Encode(ArenaFrame::kCreated, 1, 2, body);
  EXPECT_EQ(Check(two, 2), FrameCheck::kGood);
  EXPECT_EQ(Check(two, 1), FrameCheck::kBroken);
  EXPECT_EQ(Check(two, 3), FrameCheck::kBroken);
  EXPECT_EQ(Check(two, 1, /*truncated=*/true), FrameCheck::kFdsLost);
  EXPECT_EQ(Check(two, 2, /*truncated=*/true), FrameCheck::kBroken);
}

TEST(ArenaWire, LyingCountsAreImplausible) {
  CreateBody create;
  EXPECT_FALSE(Plausible(create));  // no chunk at all
  create.count = kMaxChunksPerFrame + 1;
  EXPECT_FALSE(Plausible(create));
  create.count = 2;
  create.want_fds = 3;
  EXPECT_FALSE(Plausible(create));
  create.want_fds = 2;
  EXPECT_TRUE(Plausible(create));

  CreatedBody created;
  created.count = 2;
  created.good = 2;
  EXPECT_TRUE(Plausible(created, create, 2));
  EXPECT_FALSE(Plausible(created, create, 1));
  created.reason = 53;  // a failure, but all chunks are good
  EXPECT_FALSE(Plausible(created, create, 2));
  created.good = 1;
  EXPECT_TRUE(Plausible(created, create, 1));
  created.reason = 0;  // a chunk missing without a reason
  EXPECT_FALSE(Plausible(created, create, 1));
  created.count = 3;
  created.good = 3;
  EXPECT_FALSE(Plausible(created, create, 2));

  ChunksBody chunks;
  EXPECT_FALSE(Plausible(chunks));
  chunks.count = kMaxChunksPerFrame + 1;
  EXPECT_FALSE(Plausible(chunks));

  FetchedBody fetched;
  EXPECT_FALSE(Plausible(fetched, 3, 2));
  fetched.reason = 39;
  EXPECT_FALSE(Plausible(fetched, 3, 1));
  EXPECT_TRUE(Plausible(fetched, 3, 0));
}

}  // namespace
}  // namespace gpumem::arena
