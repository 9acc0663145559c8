// Errors on the wire: code, reason, numbers and retry word arrive, and nothing is larger than HTTP/2 trailers may be.
#include "daemon/service/status_map.h"

#include <gtest/gtest.h>

#include <string>

#include "google/rpc/error_details.pb.h"

namespace gpumem::service {
namespace {

using core::Reason;

TEST(StatusMap, OkIsOk) {
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_EQ(ErrorInfoOf(ToGrpc(absl::OkStatus())), std::nullopt);
}

TEST(StatusMap, CarriesReasonDomainNumbersAndRetry) {
  const grpc::Status status =
      ToGrpc(core::Error(Reason::QUOTA, "tenant 'default' is full", {{"asked_bytes", "42"}, {"limit_bytes", "7"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "tenant 'default' is full");
  const auto info = ErrorInfoOf(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->reason, "QUOTA");
  EXPECT_EQ(info->domain, "gpumem");
  EXPECT_EQ(info->metadata,
            (std::map<std::string, std::string>{{"asked_bytes", "42"}, {"limit_bytes", "7"}, {"retry", "later"}}));
}

// Each row of the table: the code of the table, and the name as the reason.
TEST(StatusMap, EveryReasonHasTheCodeAndTheRetryWordOfTheTable){
#define GPUMEM_REASON(name, number, code, retry_kind, text)             \
  {                                                                     \
    const grpc::Status status = ToGrpc(core::Error(Reason::name, "x")); \
    EXPECT_EQ(status.error_code(), grpc::StatusCode::code) << #name;    \
    const auto info = ErrorInfoOf(status);                              \
    ASSERT_TRUE(info.has_value()) << #name;                             \
    EXPECT_EQ(info->reason, #name);                                     \
    std::string word = #retry_kind;                                     \
    for (char& c : word) c = static_cast<char>(c - 'A' + 'a');          \
    EXPECT_EQ(info->metadata.at("retry"), word) << #name;               \
  }
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
}

TEST(StatusMap, AnErrorWithoutAReasonIsADefect) {
  const grpc::Status status = ToGrpc(absl::NotFoundError("lost"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(status.error_message(), "lost");
  EXPECT_EQ(ErrorInfoOf(status)->reason, "INTERNAL");
}

TEST(StatusMap, TheLargestErrorFitsTrailers) {
  core::ErrorDetails details;
  for (int i = 0; i < 100; ++i) details[std::to_string(i)] = std::string(5000, 'v');
  const grpc::Status status = ToGrpc(core::Error(Reason::LIMIT, std::string(100'000, 'm'), details));
  EXPECT_EQ(status.error_message().size(), kMaxMessageBytes);
  const auto info = ErrorInfoOf(status);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->metadata.size(), kMaxMetadataEntries);
  EXPECT_EQ(info->metadata.at("retry"), "later");
  // On the wire the message is there twice, and binary metadata in base64.
  EXPECT_LT(status.error_message().size() + status.error_details().size() * 4 / 3, 8192u);
}

TEST(CleanUtf8, KeepsWhatIsValid) {
  EXPECT_EQ(CleanUtf8("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x99", 100),
            "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x99");
}

TEST(CleanUtf8, ReplacesWhatIsNot) {
  EXPECT_EQ(CleanUtf8("a\xff"
                      "b",
                      100),
            "a?b");
  EXPECT_EQ(CleanUtf8("\xc3", 100), "?");                 // cut off
  EXPECT_EQ(CleanUtf8("\xc0\xaf", 100), "??");            // overlong
  EXPECT_EQ(CleanUtf8("\xed\xa0\x80", 100), "???");       // a surrogate
  EXPECT_EQ(CleanUtf8("\xf4\x90\x80\x80", 100), "????");  // above U+10FFFF
}

TEST(CleanUtf8, NeverSplitsACharacter) {
  EXPECT_EQ(CleanUtf8("ab\xe2\x82\xac", 4), "ab");
  EXPECT_EQ(CleanUtf8("ab\xe2\x82\xac", 5), "ab\xe2\x82\xac");
  EXPECT_EQ(CleanUtf8("abc", 0), "");
}

}  // namespace
}  // namespace gpumem::service
