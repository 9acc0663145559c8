// tests/unit/core/names_test.cc: the table of segment names.
#include <string>

#include "daemon/core/books.h"
#include "daemon/core/reasons.h"
#include "gtest/gtest.h"

namespace gpumem::core {
namespace {

constexpr std::uint32_t kLimit = 200;

TEST(SegmentNames, GoodOnesAreTakenApart) {
  struct Case {
    std::string text, path;
    std::optional<std::uint64_t> version;
  };
  const Case cases[] = {
      {"weights", "weights", {}},
      {"a", "a", {}},
      {"org/llama-3_70b.v2", "org/llama-3_70b.v2", {}},
      {"a/b/c/d", "a/b/c/d", {}},
      {"a..b", "a..b", {}},
      {"-_", "-_", {}},
      {"w@1", "w", 1},
      {"org/w@18446744073709551615", "org/w", ~std::uint64_t{0}},
  };
  for (const Case& c : cases) {
    const auto name = ParseSegmentName(c.text, kLimit);
    ASSERT_TRUE(name.ok()) << c.text << ": " << name.status();
    EXPECT_EQ(name->path, c.path);
    EXPECT_EQ(name->version, c.version);
  }
}

TEST(SegmentNames, BadOnesAreRefusedByName) {
  for (const std::string text :
       {"",       "@1",      "/",         "/a",   "a/",   "a//b",  ".",   "..",
        "a/../b", ".hidden", "a/.hidden", "a b",  "a\n",  "ä",     "a@",  "a@0",
        "a@01",   "a@-1",    "a@+1",      "a@1 ", "a@ 1", "a@1@2", "a@x", "a@18446744073709551616",
        "a:b",    "a\\b",    "a%"}) {
    const auto name = ParseSegmentName(text, kLimit);
    ASSERT_FALSE(name.ok()) << text;
    EXPECT_EQ(ReasonOf(name.status()), Reason::NAME_INVALID) << text;
  }
  EXPECT_FALSE(ParseSegmentName(std::string("a\0b", 3), kLimit).ok());
}

TEST(SegmentNames, TheLimitIsOfThePathSoThatSealingCannotPassIt) {
  const std::string longest(kLimit, 'x');
  EXPECT_TRUE(ParseSegmentName(longest, kLimit).ok());
  EXPECT_TRUE(ParseSegmentName(longest + "@12345", kLimit).ok());
  const auto longer = ParseSegmentName(longest + "x", kLimit);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(ReasonOf(longer.status()), Reason::NAME_INVALID);
  EXPECT_EQ(DetailsOf(longer.status()).at("asked_bytes"), "201");
  EXPECT_EQ(DetailsOf(longer.status()).at("limit_bytes"), "200");
}

}  // namespace
}  // namespace gpumem::core
