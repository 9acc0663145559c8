// The arena's server against a front made by hand, with a memory that fails when told to.
#include "daemon/arena/arena_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <thread>

#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;

// Each chunk is a pipe's write end: the read end tells when the last reference is gone.
class PipeMemory final : public DeviceMemory {
 public:
  absl::StatusOr<UniqueFd> Create(std::uint64_t bytes) override {
    if (made.size() == fail_at) return core::Error(fail_with, "cuMemCreate: told to fail");
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return core::Error(Reason::DESCRIPTORS, "pipe");
    made.emplace_back(ends[0]);
    sizes.push_back(bytes);
    return UniqueFd(ends[1]);
  }
  absl::StatusOr<MemoryReading> Memory() override { return memory; }

  bool Gone(std::size_t chunk) const {
    char byte;
    return ::read(made[chunk].get(), &byte, 1) == 0;  // EAGAIN while a write end is open
  }

  std::size_t fail_at = SIZE_MAX;
  Reason fail_with = Reason::DRIVER_OUT_OF_MEMORY;
  std::vector<UniqueFd> made;
  std::vector<std::uint64_t> sizes;
  absl::StatusOr<MemoryReading> memory = MemoryReading{100, 40};
};

class ArenaServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    front_.reset(ends[0]);
    thread_ = std::thread([this, socket = ends[1]] {
      ArenaServer server{UniqueFd(socket), &memory_};
      served_ = server.Serve(HelloBody{});
    });
    ReceivedFrame frame;
    std::vector<std::byte> buffer(kMaxArenaFrameBytes);
    ASSERT_EQ(ReceiveFrame(front_.get(), buffer, true, &frame), 0);
  }
  void TearDown() override { Stop(); }
  void Stop() {
    front_.reset();
    if (thread_.joinable()) thread_.join();
  }

  template <typename Answer, typename Ask>
  Answer Call(ArenaFrame type, const Ask& ask, std::vector<UniqueFd>* fds = nullptr) {
    EXPECT_EQ(SendFrame(front_.get(), Encode(type, ++request_, 0, ask), {}, true), 0);
    ReceivedFrame frame;
    std::vector<std::byte> buffer(kMaxArenaFrameBytes);
    EXPECT_EQ(ReceiveFrame(front_.get(), buffer, true, &frame), 0);
    FixedHeader header;
    std::string why;
    EXPECT_EQ(CheckFrame(kArenaFormat, std::span<const std::byte>(buffer).first(frame.size), frame.fds.size(),
                         frame.truncated, &header, &why),
              FrameCheck::kGood)
        << why;
    EXPECT_EQ(header.request, request_);
    EXPECT_EQ(header.body_bytes, sizeof(Answer));
    if (fds != nullptr) *fds = std::move(frame.fds);
    return DecodeBody<Answer>(buffer);
  }

  static CreateBody Chunks(std::uint64_t first_id, std::uint32_t count, std::uint32_t want_fds) {
    CreateBody body;
    body.count = count;
    body.want_fds = want_fds;
    for (std::uint32_t i = 0; i < count; ++i) body.entries[i] = CreateEntry{first_id + i, 4096 * (i + 1)};
    return body;
  }
  static ChunksBody Ids(std::initializer_list<std::uint64_t> ids) {
    ChunksBody body;
    for (const std::uint64_t id : ids) body.chunk_ids[body.count++] = id;
    return body;
  }

  PipeMemory memory_;
  UniqueFd front_;
  std::thread thread_;
  absl::Status served_;
  std::uint64_t request_ = 0;
};

TEST_F(ArenaServerTest, AFullFrameOfChunksComesWithAllItsDescriptors) {
  std::vector<UniqueFd> fds;
  const auto created = Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, kMaxChunksPerFrame, kMaxChunksPerFrame), &fds);
  EXPECT_EQ(created.good, kMaxChunksPerFrame);
  EXPECT_EQ(created.reason, 0u);
  EXPECT_EQ(fds.size(), kMaxChunksPerFrame);
  EXPECT_EQ(memory_.sizes[2], 3u * 4096);
}

TEST_F(ArenaServerTest, AFailureStopsTheBatchAndKeepsWhatWasMadeBefore) {
  memory_.fail_at = 2;
  std::vector<UniqueFd> fds;
  const auto created = Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 5, 5), &fds);
  EXPECT_EQ(created.good, 2u);
  EXPECT_EQ(created.reason, static_cast<std::uint32_t>(Reason::DRIVER_OUT_OF_MEMORY));
  EXPECT_EQ(GetText(created.message), "cuMemCreate: told to fail");
  EXPECT_EQ(fds.size(), 2u);
  EXPECT_EQ(memory_.made.size(), 2u);  // nothing was attempted behind the failure
}

TEST_F(ArenaServerTest, CloseAnswersAfterTheReferenceIsGone) {
  Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 2, 0));
  const auto closed = Call<ClosedBody>(ArenaFrame::kClose, Ids({1, 99}));
  EXPECT_EQ(closed.reasons[0], 0u);
  EXPECT_EQ(closed.reasons[1], static_cast<std::uint32_t>(Reason::HANDLE_LOST));
  EXPECT_TRUE(memory_.Gone(0));
  EXPECT_FALSE(memory_.Gone(1));
}

TEST_F(ArenaServerTest, FetchIsAllOrNone) {
  Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 2, 0));
  std::vector<UniqueFd> fds;
  auto fetched = Call<FetchedBody>(ArenaFrame::kFetch, Ids({2, 1, 2}), &fds);
  EXPECT_EQ(fetched.reason, 0u);
  EXPECT_EQ(fds.size(), 3u);
  fetched = Call<FetchedBody>(ArenaFrame::kFetch, Ids({1, 99}), &fds);
  EXPECT_EQ(fetched.reason, static_cast<std::uint32_t>(Reason::HANDLE_LOST));
  EXPECT_TRUE(fds.empty());
}

TEST_F(ArenaServerTest, AnIdIsUsedOnce) {
  Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 1, 0));
  const auto again = Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 1, 0));
  EXPECT_EQ(again.good, 0u);
  EXPECT_EQ(again.reason, static_cast<std::uint32_t>(Reason::INVALID_ARGUMENT));
  EXPECT_EQ(memory_.made.size(), 1u);
}

TEST_F(ArenaServerTest, MemoryIsSaidOrNotKnown) {
  EXPECT_EQ(Call<MemoryIsBody>(ArenaFrame::kMemory, MemoryBody{}).used_bytes, 40u);
  memory_.memory = core::Error(Reason::DRIVER_FAILED, "no NVML");
  const auto unknown = Call<MemoryIsBody>(ArenaFrame::kMemory, MemoryBody{});
  EXPECT_EQ(unknown.reason, static_cast<std::uint32_t>(Reason::DRIVER_FAILED));
  EXPECT_EQ(unknown.used_bytes, 0u);
}

TEST_F(ArenaServerTest, TheFrontsEndEndsItAndDropsEverything) {
  Call<CreatedBody>(ArenaFrame::kCreate, Chunks(1, 3, 0));
  Stop();
  EXPECT_TRUE(served_.ok()) << served_;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(memory_.Gone(i));
}

TEST_F(ArenaServerTest, MemoryThatCannotBePutBackEndsIt) {
  memory_.fail_at = 0;
  memory_.fail_with = Reason::INTERNAL;
  ASSERT_EQ(SendFrame(front_.get(), Encode(ArenaFrame::kCreate, 1, 0, Chunks(1, 1, 0)), {}, true), 0);
  thread_.join();
  EXPECT_FALSE(served_.ok());
}

TEST_F(ArenaServerTest, ABrokenFrontEndsIt) {
  ASSERT_EQ(SendFrame(front_.get(), Encode(ArenaFrame::kCreate, 1, 0, Chunks(1, 3, 4)), {}, true), 0);
  thread_.join();
  EXPECT_EQ(core::ReasonOf(served_), Reason::INTERNAL);
}

}  // namespace
}  // namespace gpumem::arena
