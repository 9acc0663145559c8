#include "daemon/session/frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "daemon/core/reasons.h"

namespace gpumem::session {
namespace {

using core::Reason;
using ::testing::HasSubstr;
using wire::FrameType;

template <typename Body>
std::vector<std::byte> Bytes(FrameType type, std::uint32_t fd_count, const Body& body, std::uint64_t request_id = 0) {
  wire::FrameHeader header;
  header.type = type;
  header.sequence = 1;
  header.request_id = request_id;
  header.fd_count = fd_count;
  return EncodeFrame(header, body);
}

std::vector<std::byte> FetchBytes(std::uint32_t first, std::uint32_t count) {
  wire::FetchBody body;
  body.lease_id = 5;
  body.first = first;
  body.count = count;
  return Bytes(FrameType::kFetch, 0, body, 9);
}

// Overwrites one field of a frame's header or body.
template <typename T>
void Poke(std::vector<std::byte>* bytes, std::size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

void ExpectRefused(const std::vector<std::byte>& bytes, std::size_t fds, Direction direction, Reason reason,
                   const std::string& words) {
  const absl::StatusOr<Frame> frame = ParseFrame(bytes, fds, direction);
  ASSERT_FALSE(frame.ok()) << "accepted, although: " << words;
  EXPECT_EQ(core::ReasonOf(frame.status()), reason) << frame.status();
  EXPECT_THAT(std::string(frame.status().message()), HasSubstr(words));
}

TEST(FramesTest, EveryFrameOfAWorkerIsReadAsItWasWritten) {
  wire::OpenBody open;
  SetText(open.client_name, "trainer");
  absl::StatusOr<Frame> frame = ParseFrame(Bytes(FrameType::kOpen, 1, open), 1, Direction::kToDaemon);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(TextOf(std::get<wire::OpenBody>(frame->body).client_name), "trainer");

  frame = ParseFrame(FetchBytes(3, 253), 0, Direction::kToDaemon);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->header.request_id, 9u);
  EXPECT_EQ(std::get<wire::FetchBody>(frame->body).lease_id, 5u);
  EXPECT_EQ(std::get<wire::FetchBody>(frame->body).first, 3u);

  wire::AcknowledgeBody acknowledge;
  acknowledge.handles_sequence = 7;
  acknowledge.access = wire::MappedAccess::kReadWrite;
  acknowledge.imported[31] = 0x10;  // bit 252, the last there is
  frame = ParseFrame(Bytes(FrameType::kAcknowledge, 0, acknowledge), 0, Direction::kToDaemon);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<wire::AcknowledgeBody>(frame->body).imported[31], 0x10);

  wire::MappingBody mapping;
  mapping.count = 1000;
  frame = ParseFrame(Bytes(FrameType::kMapping, 0, mapping), 0, Direction::kToDaemon);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<wire::MappingBody>(frame->body).count, 1000u);
}

TEST(FramesTest, EveryFrameOfTheDaemonIsReadAsItWasWritten) {
  wire::WelcomeBody welcome;
  welcome.session_id = 77;
  absl::StatusOr<Frame> frame = ParseFrame(Bytes(FrameType::kWelcome, 0, welcome), 0, Direction::kToWorker);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<wire::WelcomeBody>(frame->body).session_id, 77u);

  wire::HandlesBody handles{};
  handles.entries[252].bytes = 4096;
  frame = ParseFrame(Bytes(FrameType::kHandles, 253, handles, 3), 253, Direction::kToWorker);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<wire::HandlesBody>(frame->body).entries[252].bytes, 4096u);

  const wire::RefusedBody refusal = RefusalOf(core::Error(Reason::QUOTA, "too much"));
  frame = ParseFrame(Bytes(FrameType::kFetchRefused, 0, refusal, 3), 0, Direction::kToWorker);
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(std::get<wire::RefusedBody>(frame->body).reason, static_cast<std::uint32_t>(Reason::QUOTA));
  EXPECT_EQ(TextOf(std::get<wire::RefusedBody>(frame->body).message), "too much");
  EXPECT_TRUE(ParseFrame(Bytes(FrameType::kRefused, 0, refusal), 0, Direction::kToWorker).ok());
  EXPECT_TRUE(ParseFrame(Bytes(FrameType::kFenced, 0, wire::FencedBody()), 0, Direction::kToWorker).ok());
}

TEST(FramesTest, ATruncatedFrameIsRefusedAtEveryLength) {
  const std::vector<std::byte> whole = FetchBytes(0, 1);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const absl::StatusOr<Frame> frame = ParseFrame({whole.data(), size}, 0, Direction::kToDaemon);
    EXPECT_EQ(core::ReasonOf(frame.status()), Reason::INVALID_ARGUMENT) << size;
  }
}

TEST(FramesTest, AFrameThatIsTooLongOrLiesAboutItsSizeIsRefused) {
  std::vector<std::byte> bytes = FetchBytes(0, 1);
  bytes.push_back(std::byte{0});
  ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "must have 32 + 16");
  bytes = FetchBytes(0, 1);
  Poke(&bytes, offsetof(wire::FrameHeader, body_bytes), std::uint32_t{17});
  ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "says it has 17");
  Poke(&bytes, offsetof(wire::FrameHeader, body_bytes), std::uint32_t{0xffffffff});
  ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "says it has 4294967295");
}

TEST(FramesTest, MagicVersionAndTypeMustBeKnown) {
  std::vector<std::byte> bytes = FetchBytes(0, 1);
  Poke(&bytes, offsetof(wire::FrameHeader, magic), std::uint32_t{0x12345678});
  ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "12345678");
  bytes = FetchBytes(0, 1);
  Poke(&bytes, offsetof(wire::FrameHeader, version), std::uint16_t{2});
  ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::VERSION_MISMATCH, "speaks version 1");
  for (const std::uint16_t type : {0, 10, 65535}) {
    bytes = FetchBytes(0, 1);
    Poke(&bytes, offsetof(wire::FrameHeader, type), type);
    ExpectRefused(bytes, 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "is unknown");
  }
}

TEST(FramesTest, AFrameOfTheOtherDirectionIsRefused) {
  ExpectRefused(Bytes(FrameType::kWelcome, 0, wire::WelcomeBody()), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT,
                "the other way");
  ExpectRefused(FetchBytes(0, 1), 0, Direction::kToWorker, Reason::INVALID_ARGUMENT, "the other way");
}

TEST(FramesTest, FdsMustBeThoseAnnouncedAndThoseOfTheType) {
  ExpectRefused(FetchBytes(0, 1), 1, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "announces 0 fds, and 1 came");
  ExpectRefused(Bytes(FrameType::kOpen, 1, wire::OpenBody()), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT,
                "announces 1 fds, and 0 came");
  for (const std::uint32_t count : {0u, 2u, 253u}) {
    ExpectRefused(Bytes(FrameType::kOpen, count, wire::OpenBody()), count, Direction::kToDaemon,
                  Reason::INVALID_ARGUMENT, "cannot carry");
  }
  for (const std::uint32_t count : {0u, 254u}) {
    ExpectRefused(Bytes(FrameType::kHandles, count, wire::HandlesBody(), 1), count, Direction::kToWorker,
                  Reason::INVALID_ARGUMENT, "cannot carry");
  }
}

TEST(FramesTest, ARequestIdStandsExactlyWhereOneIsNeeded) {
  wire::FetchBody fetch;
  fetch.count = 1;
  ExpectRefused(Bytes(FrameType::kFetch, 0, fetch, 0), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT,
                "request id 0");
  ExpectRefused(Bytes(FrameType::kAcknowledge, 0, wire::AcknowledgeBody(), 4), 0, Direction::kToDaemon,
                Reason::INVALID_ARGUMENT, "request id 4");
}

TEST(FramesTest, CountsAndRangesAreChecked) {
  ExpectRefused(FetchBytes(0, 0), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "1 to 253");
  ExpectRefused(FetchBytes(0, 254), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "1 to 253");
  EXPECT_TRUE(ParseFrame(FetchBytes(0xffffffff - 253, 253), 0, Direction::kToDaemon).ok());
  ExpectRefused(FetchBytes(0xffffffff - 252, 253), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "32 bits");
  wire::MappingBody mapping;
  mapping.first = 2;
  mapping.count = 0xfffffffe;
  ExpectRefused(Bytes(FrameType::kMapping, 0, mapping), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "32 bits");
  mapping.count = 0;
  ExpectRefused(Bytes(FrameType::kMapping, 0, mapping), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT,
                "a count of 0");
}

TEST(FramesTest, UnknownAccessSpareBitsAndReservedFieldsAreRefused) {
  wire::MappingBody mapping;
  mapping.count = 1;
  mapping.access = static_cast<wire::MappedAccess>(3);
  ExpectRefused(Bytes(FrameType::kMapping, 0, mapping), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "access 3");
  mapping.access = wire::MappedAccess::kNone;
  mapping.reserved = 1;
  ExpectRefused(Bytes(FrameType::kMapping, 0, mapping), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "reserved");
  wire::AcknowledgeBody acknowledge;
  acknowledge.imported[31] = 0x20;  // bit 253
  ExpectRefused(Bytes(FrameType::kAcknowledge, 0, acknowledge), 0, Direction::kToDaemon, Reason::INVALID_ARGUMENT,
                "bit 253");
  wire::HandlesBody handles{};
  handles.entries[1].reserved = 1;
  ExpectRefused(Bytes(FrameType::kHandles, 2, handles, 1), 2, Direction::kToWorker, Reason::INVALID_ARGUMENT,
                "reserved");
  wire::OpenBody open;
  open.min_version = 2;
  open.max_version = 1;
  ExpectRefused(Bytes(FrameType::kOpen, 1, open), 1, Direction::kToDaemon, Reason::INVALID_ARGUMENT, "no range");
  wire::RefusedBody refused;
  std::memset(refused.message, 'x', sizeof(refused.message));
  ExpectRefused(Bytes(FrameType::kRefused, 0, refused), 0, Direction::kToWorker, Reason::INVALID_ARGUMENT, "NUL");
}

TEST(FramesTest, ATextThatFillsItsFieldIsReadWithoutItsNul) {
  wire::OpenBody open;
  std::memset(open.client_name, 'n', sizeof(open.client_name));
  EXPECT_EQ(TextOf(open.client_name), std::string(64, 'n'));
}

TEST(FramesTest, ALongMessageIsCutBetweenCharacters) {
  char field[6];
  SetText(field, "abcd\xc3\xa4");  // "abcdä": its last character does not fit whole
  EXPECT_EQ(TextOf(field), "abcd");
  SetText(field, "abcde");
  EXPECT_EQ(TextOf(field), "abcde");
  SetText(field, "abcdef");
  EXPECT_EQ(TextOf(field), "abcde");
}

}  // namespace
}  // namespace gpumem::session
