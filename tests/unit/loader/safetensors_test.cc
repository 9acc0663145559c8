// What a safetensors file may say, and each lie that the reader must refuse by name, number and limit.
#include "client/loader/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

namespace gpumem::loader {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMax = UINT64_MAX;

std::string LengthWord(std::uint64_t value) {
  std::string word;
  for (int i = 0; i < 8; ++i) word += static_cast<char>(value >> (8 * i));
  return word;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpumem-loader-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { EXPECT_EQ(std::system(("rm -rf " + dir_).c_str()), 0); }

  std::string Put(const std::string& content) {
    const std::string path = dir_ + "/m.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  // A file with this header and so many bytes of data.
  std::string Make(const std::string& json, std::size_t data) {
    return Put(LengthWord(json.size()) + json + std::string(data, 'x'));
  }
  std::string dir_;
};

std::string Parse(const std::string& json, std::uint64_t data_bytes) {
  const Result<Header> header = ParseHeader("m", json, 8 + json.size() + data_bytes);
  return header ? "" : header.error();
}

TEST_F(SafetensorsTest, ReadsTensorsInTheOrderOfTheirData) {
  const std::string path = Make(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
      R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"none":{"dtype":"F64","shape":[0,7],"data_offsets":[11,11]},)"
      R"("one":{"dtype":"BF16","shape":[],"data_offsets":[11,13]}}   )",
      13);
  const Result<File> file = File::Open(path);
  ASSERT_TRUE(file) << file.error();
  const std::vector<Tensor> want = {
      {"a", "F32", {2, 1}, 0, 8}, {"b", "U8", {3}, 8, 3}, {"none", "F64", {0, 7}, 11, 0}, {"one", "BF16", {}, 11, 2}};
  EXPECT_EQ(file->header().tensors, want);
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  EXPECT_EQ(file->header().data_bytes, 13u);
}

TEST_F(SafetensorsTest, WhatIsWrittenIsReadBack) {
  std::mt19937_64 random(7);
  std::vector<std::string> contents;
  std::vector<TensorToWrite> tensors;
  for (const std::uint64_t n : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1000}, std::uint64_t{3 << 20}}) {
    std::string bytes(n, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    contents.push_back(bytes);
    tensors.push_back({"t" + std::to_string(n), "I8", {n}, [bytes](std::uint64_t from, std::span<std::byte> out) {
                         std::memcpy(out.data(), bytes.data() + from, out.size());
                       }});
  }
  const std::string path = dir_ + "/written";
  const std::optional<Error> error = Write(path, tensors, {{"made-by", "test"}});
  ASSERT_FALSE(error) << error->message;

  const Result<File> file = File::Open(path);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->header().data_offset_bytes % 8, 0u);
  ASSERT_EQ(file->header().tensors.size(), contents.size());
  for (std::size_t i = 0; i < contents.size(); ++i) {
    std::string got(contents[i].size(), '\0');
    const std::optional<Error> read = file->Read(file->header().tensors[i], 0, std::as_writable_bytes(std::span(got)));
    ASSERT_FALSE(read) << read->message;
    EXPECT_EQ(got, contents[i]);
  }
}

TEST_F(SafetensorsTest, AWriteThatFailsLeavesNothing) {
  const TensorToWrite twice{"t", "U8", {1}, [](std::uint64_t, std::span<std::byte> out) { out[0] = std::byte{1}; }};
  EXPECT_TRUE(Write(dir_ + "/f", std::vector<TensorToWrite>{twice, twice}, {}));
  EXPECT_TRUE(Write(dir_ + "/no/such/dir/f", std::vector<TensorToWrite>{twice}, {}));
  EXPECT_NE(::rmdir(dir_.c_str()), -1) << "something was left in " << dir_;
  ASSERT_EQ(::mkdir(dir_.c_str(), 0700), 0);
}

TEST_F(SafetensorsTest, ReadRefusesBytesOutsideTheTensorAndAFileThatShrank) {
  const std::string path = Make(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", 8);
  const Result<File> file = File::Open(path);
  ASSERT_TRUE(file) << file.error();
  std::array<std::byte, 8> out;
  const Tensor& a = file->header().tensors[0];
  EXPECT_FALSE(file->Read(a, 0, out));
  EXPECT_FALSE(file->Read(a, 8, std::span(out).first(0)));
  EXPECT_TRUE(file->Read(a, 1, out));
  EXPECT_TRUE(file->Read(a, kMax, out));
  ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(file->header().data_offset_bytes) + 3), 0);
  const std::optional<Error> error = file->Read(a, 0, out);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->message, AllOf(HasSubstr(path), HasSubstr("\"a\""), HasSubstr("5 bytes short")));
}

TEST_F(SafetensorsTest, FilesThatAreNotSafetensors) {
  struct Lie {
    std::string content;
    const char* says;
  };
  const Lie lies[] = {
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {LengthWord(0), "at least 2"},
      {LengthWord(1) + "{", "at least 2"},
      {LengthWord(100), "100 bytes, but only 0 follow"},
      {LengthWord(kMax) + "{}", "the limit is 100000000"},
      {LengthWord(kMaxHeaderBytes + 1) + "{}", "100000001 bytes; the limit is 100000000"},
      {LengthWord(kMaxHeaderBytes) + "{}", "but only 2 follow"},
      {LengthWord(2) + "[]", "'{'"},
      {LengthWord(3) + " {}", "'{'"},
  };
  for (const Lie& lie : lies) {
    const Result<File> file = File::Open(Put(lie.content));
    ASSERT_FALSE(file) << lie.says;
    EXPECT_THAT(file.error(), AllOf(HasSubstr(dir_), HasSubstr(lie.says)));
  }
  EXPECT_TRUE(File::Open(Put(LengthWord(2) + "{}"))) << "no tensors and no data is a file";
}

TEST_F(SafetensorsTest, OnlyRegularFilesAreOpened) {
  EXPECT_THAT(File::Open(dir_ + "/missing").error(), HasSubstr("No such file"));
  EXPECT_THAT(File::Open(dir_).error(), HasSubstr("not a regular file"));
  const std::string fifo = dir_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(File::Open(fifo).error(), HasSubstr("not a regular file"));
}

struct HeaderLie {
  const char* name;
  std::string json;
  std::uint64_t data_bytes;
  const char* says;
};
void PrintTo(const HeaderLie& lie, std::ostream* os) { *os << lie.name; }
class HeaderLies : public ::testing::TestWithParam<HeaderLie> {};

TEST_P(HeaderLies, AreRefusedWithTheirNumbers) {
  const HeaderLie& lie = GetParam();
  EXPECT_THAT(Parse(lie.json, lie.data_bytes), HasSubstr(lie.says));
}

std::string One(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }
std::string Many(int count, const std::string& text) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Table, HeaderLies,
    ::testing::Values(
        HeaderLie{"NotJson", "{\"a\":", 0, "no valid JSON at byte"},
        HeaderLie{"TrailingJunk", "{} {}", 0, "no valid JSON at byte"},
        HeaderLie{"NotUtf8", "{\"\xff\":1}", 0, "no valid JSON at byte"},
        HeaderLie{"Nul", std::string("{\0}", 3), 0, "no valid JSON at byte"},
        HeaderLie{"Nested", "{\"a\":" + Many(100000, "["), 0, "has an array where"},
        HeaderLie{"NestedObjects", Many(100000, "{\"a\":"), 0, "\"a\"; the format knows"},
        HeaderLie{"TensorIsNumber", R"({"a":1})", 0, "has the number 1 where the format wants an object"},
        HeaderLie{"TensorIsNull", R"({"a":null})", 0, "null"},
        HeaderLie{"NoDtype", One(R"("shape":[1],"data_offsets":[0,1])"), 1, "has no dtype"},
        HeaderLie{"NoShape", One(R"("dtype":"U8","data_offsets":[0,1])"), 1, "has no shape"},
        HeaderLie{"NoOffsets", One(R"("dtype":"U8","shape":[1])"), 1, "has no data_offsets"},
        HeaderLie{"OneOffset", One(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1, "has no data_offsets of two"},
        HeaderLie{"ThreeOffsets", One(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,2])"), 1, "more than 2"},
        HeaderLie{"OffsetsAreText", One(R"("dtype":"U8","shape":[1],"data_offsets":["0","1"])"), 1, "has the text"},
        HeaderLie{"UnknownField", One(R"("dtype":"U8","stride":[1])"), 1, "has the field \"stride\""},
        HeaderLie{"FieldTwice", One(R"("dtype":"U8","dtype":"F32")"), 1, "has dtype twice"},
        HeaderLie{"UnknownDtype", One(R"("dtype":"F7","shape":[1],"data_offsets":[0,1])"), 1, "dtype \"F7\""},
        HeaderLie{"NegativeShape", One(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])"), 1, "-1, which is below 0"},
        HeaderLie{"FractionalShape", One(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])"), 1, "1.0"},
        HeaderLie{"HugeNumber", One(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1])"), 1,
                  "18446744073709551616"},
        HeaderLie{"InfiniteNumber", One(R"("dtype":"U8","shape":[1e999],"data_offsets":[0,1])"), 1, "no valid JSON"},
        HeaderLie{"ShapeOverflows", One(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
                  "overflows 64 bits"},
        HeaderLie{"BitsOverflow", One(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"), 0,
                  "overflow 64 bits"},
        HeaderLie{"PartOfAByte", One(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1,
                  "no whole number of bytes"},
        HeaderLie{"SpanTooShort", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,7])"), 7, "span 7"},
        HeaderLie{"SpanTooLong", One(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])"), 9, "span 9"},
        HeaderLie{"EndBeforeBegin", One(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1, "before its begin"},
        HeaderLie{"Outside", One(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])"), 4,
                  "ends at byte 5 of the data, which has only 4"},
        HeaderLie{"FarOutside",
                  One(R"("dtype":"U8","shape":[1],"data_offsets":[18446744073709551614,18446744073709551615])"), 4,
                  "which has only 4"},
        HeaderLie{"HoleAtTheBegin", One(R"("dtype":"U8","shape":[1],"data_offsets":[1,2])"), 2, "bytes 0 to 1"},
        HeaderLie{"HoleAtTheEnd", One(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 2,
                  "end at byte 1 of the data, but the file has 2"},
        HeaderLie{"DataWithoutTensors", "{}", 1, "no holes"},
        HeaderLie{
            "Overlap",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
            5, "\"b\" begins at byte 3 and overlaps \"a\""},
        HeaderLie{
            "SameBytes",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
            4, "overlaps"},
        HeaderLie{
            "EmptyInsideAnother",
            R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
            4, "overlaps"},
        HeaderLie{
            "Hole",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
            3, "bytes 1 to 2 of the data, before tensor \"b\""},
        HeaderLie{
            "NameTwice",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "\"a\" stands twice"},
        HeaderLie{
            "NameTwiceByEscape",
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
            2, "\"a\" stands twice"},
        HeaderLie{"EmptyName", R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "empty name"},
        HeaderLie{"NulInName", R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0,
                  "\"a\\x00b\" has a control character"},
        HeaderLie{"EscapeInName", R"({"\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "\\x1b[2J"},
        HeaderLie{"LongName", "{\"" + std::string(kMaxNameBytes + 1, 'n') + "\":{}}", 0, "the limit is 1024"},
        HeaderLie{"ManyDimensions",
                  One("\"dtype\":\"U8\",\"shape\":[" + Many(kMaxDimensions, "1,") + "1],\"data_offsets\":[0,1]"), 1,
                  "more than 64 dimensions"},
        HeaderLie{"MetadataNumber", R"({"__metadata__":{"a":1}})", 0, "wants text in __metadata__"},
        HeaderLie{"MetadataText", R"({"__metadata__":"a"})", 0, "wants __metadata__ as an object"},
        HeaderLie{"MetadataTwice", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__ stands twice"},
        HeaderLie{"MetadataKeyTwice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, "\"a\" twice"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(SafetensorsHeaderTest, LimitsThemselvesAreAllowed) {
  EXPECT_EQ(Parse("{\"" + std::string(kMaxNameBytes, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            "");
  EXPECT_EQ(
      Parse(One("\"dtype\":\"U8\",\"shape\":[" + Many(kMaxDimensions - 1, "1,") + "1],\"data_offsets\":[0,1]"), 1), "");
}

TEST(SafetensorsHeaderTest, BrokenHeadersNeverPassAndNeverCrash) {
  const std::string good = R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                           R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  ASSERT_EQ(Parse(good, 11), "");
  for (std::size_t cut = 0; cut < good.size(); ++cut) EXPECT_NE(Parse(good.substr(0, cut), 11), "");
  std::mt19937 random(11);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const Result<Header> header = ParseHeader("m", bad, 8 + bad.size() + 11);
    if (!header) continue;
    std::uint64_t end = 0;
    for (const Tensor& tensor : header->tensors) {
      EXPECT_EQ(tensor.offset_bytes, end);
      end += tensor.size_bytes;
    }
    EXPECT_EQ(end, 11u);
  }
}

TEST(SafetensorsHeaderTest, BytesOfEachDtype) {
  const std::uint64_t shape[] = {4, 2};
  EXPECT_EQ(*TensorBytes("F4", shape), 4u);
  EXPECT_EQ(*TensorBytes("F6_E2M3", shape), 6u);
  EXPECT_EQ(*TensorBytes("BOOL", shape), 8u);
  EXPECT_EQ(*TensorBytes("BF16", shape), 16u);
  EXPECT_EQ(*TensorBytes("F32", shape), 32u);
  EXPECT_EQ(*TensorBytes("C64", shape), 64u);
  EXPECT_EQ(*TensorBytes("F64", {}), 8u);
  EXPECT_FALSE(TensorBytes("f32", shape));
}

TEST(SafetensorsHeaderTest, PlacementAlignsAndReportsOverflow) {
  Header header;
  header.tensors = {{"a", "U8", {3}, 0, 3}, {"b", "U8", {0}, 3, 0}, {"c", "U8", {5}, 3, 5}};
  const std::optional<Placement> placed = Place(header, 256);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->offset_bytes, (std::vector<std::uint64_t>{0, 256, 256}));
  EXPECT_EQ(placed->total_bytes, 261u);
  header.tensors[0].size_bytes = kMax - 10;
  EXPECT_FALSE(Place(header, 256));
}

}  // namespace
}  // namespace gpumem::loader
