// tests/unit/core/values_test.cc: errors with reasons, and how sizes are written.
#include <set>
#include <string>

#include "daemon/core/format.h"
#include "daemon/core/reasons.h"
#include "daemon/core/types.h"
#include "gtest/gtest.h"

namespace gpumem::core {
namespace {

std::string CodeWord(const absl::Status& status) { return absl::StatusCodeToString(status.code()); }

TEST(Reasons, EachReasonSurvivesTheStatusAndHasItsTablesCode) {
  std::set<std::string> names;
#define GPUMEM_REASON(name, number, code, retry, text)          \
  {                                                             \
    const absl::Status status = Error(Reason::name, "message"); \
    EXPECT_EQ(ReasonOf(status), Reason::name);                  \
    EXPECT_EQ(CodeWord(status), std::string(#code));            \
    EXPECT_STREQ(ToString(Reason::name), #name);                \
    names.insert(#name);                                        \
  }
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
  EXPECT_GT(names.size(), 40u);
}

TEST(Reasons, DetailsComeBackAsTheyWentIn) {
  const ErrorDetails details = {{"asked_bytes", "7"}, {"device_uuid", std::string("a\0/b", 4)}, {"empty", ""}};
  const absl::Status status = Error(Reason::QUOTA, "no", details);
  EXPECT_EQ(DetailsOf(status), details);
  EXPECT_EQ(ReasonOf(status), Reason::QUOTA);
  EXPECT_EQ(status.message(), "no");
}

TEST(Reasons, AForeignErrorIsInternalAndHasNoDetails) {
  EXPECT_EQ(ReasonOf(absl::NotFoundError("x")), Reason::INTERNAL);
  EXPECT_TRUE(DetailsOf(absl::NotFoundError("x")).empty());
}

TEST(Format, SizesAreRoundedForPeopleAndExactInMessages) {
  EXPECT_EQ(FormatBytes(Bytes(0)), "0 B");
  EXPECT_EQ(FormatBytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(FormatBytes(Bytes(1024)), "1.0 KiB");
  EXPECT_EQ(FormatBytes(Bytes((1 << 20) - 1)), "1.0 MiB");
  EXPECT_EQ(FormatBytes(Bytes(std::uint64_t{96} << 30)), "96.0 GiB");
  EXPECT_EQ(FormatBytes(Bytes(~std::uint64_t{0})), "16.0 EiB");
  EXPECT_EQ(FormatBytesExact(Bytes(std::uint64_t{96} << 30)), "96.0 GiB (103079215104 bytes)");
  EXPECT_EQ(FormatBytesExact(Bytes(1)), "1 B (1 byte)");
}

TEST(Format, WhatAPeerChoseIsQuotedEscapedAndCut) {
  EXPECT_EQ(Quoted("a\n\"b"), "\"a\\n\\\"b\"");
  EXPECT_LT(Quoted(std::string(100000, 'x')).size(), 300u);
}

TEST(Types, EveryValueHasItsWord) {
  EXPECT_STREQ(ToString(Role::kKvCache), "kv-cache");
  EXPECT_STREQ(ToString(QuarantineReason::kWriterFaulted), "writer-faulted");
  EXPECT_STREQ(ToString(Evidence::kPidfdReadable), "pidfd-readable");
  EXPECT_STREQ(ToString(ChunkState::kDeviceLost), "device-lost");
  std::set<std::string> words;
  for (int i = 1; i <= 15; ++i) words.insert(ToString(static_cast<Evidence>(i)));
  for (int i = 1; i <= 9; ++i) words.insert(ToString(static_cast<QuarantineReason>(i)));
  EXPECT_EQ(words.size(), 24u);
  EXPECT_FALSE(words.contains("unknown"));
}

}  // namespace
}  // namespace gpumem::core
