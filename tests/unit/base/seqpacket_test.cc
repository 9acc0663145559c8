#include "base/seqpacket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace gpumem {
namespace {

class SeqpacketTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a_.reset(fds[0]);
    b_.reset(fds[1]);
  }
  static std::span<const std::byte> BytesOf(const char* text) {
    return std::as_bytes(std::span(text, std::strlen(text)));
  }
  static ino_t Inode(int fd) {
    struct stat info {};
    EXPECT_EQ(::fstat(fd, &info), 0);
    return info.st_ino;
  }

  UniqueFd a_;
  UniqueFd b_;
  std::array<std::byte, 64> buffer_{};
  ReceivedFrame frame_;
};

TEST_F(SeqpacketTest, AFrameArrivesWholeWithItsFdsInOrderAndCloseOnExec) {
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, 0), 0);
  ASSERT_EQ(SendFrame(a_.get(), BytesOf("first"), pipe_fds, true), 0);
  ASSERT_EQ(SendFrame(a_.get(), BytesOf("second"), {}, true), 0);
  ASSERT_EQ(ReceiveFrame(b_.get(), buffer_, false, &frame_), 0);
  EXPECT_EQ(std::string_view(reinterpret_cast<char*>(buffer_.data()), frame_.size), "first");
  ASSERT_EQ(frame_.fds.size(), 2u);
  EXPECT_EQ(Inode(frame_.fds[0].get()), Inode(pipe_fds[0]));
  EXPECT_EQ(::fcntl(frame_.fds[1].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(ReceiveFrame(b_.get(), buffer_, false, &frame_), 0);
  EXPECT_EQ(frame_.size, 6u);
  EXPECT_TRUE(frame_.fds.empty());
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST_F(SeqpacketTest, AFrameLargerThanTheBufferIsTruncatedAndItsFdsAreStillOwned) {
  const std::string big(100, 'x');
  const int fd = a_.get();
  ASSERT_EQ(SendFrame(a_.get(), BytesOf(big.c_str()), std::span(&fd, 1), true), 0);
  ASSERT_EQ(ReceiveFrame(b_.get(), buffer_, false, &frame_), 0);
  EXPECT_TRUE(frame_.truncated);
  EXPECT_EQ(frame_.fds.size(), 1u);
}

TEST_F(SeqpacketTest, AReceiverShortOfDescriptorsSeesTheTruncation) {
  std::array<int, 8> fds;
  fds.fill(a_.get());
  ASSERT_EQ(SendFrame(a_.get(), BytesOf("x"), fds, true), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(a_.get());
  ::close(lowest);
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(lowest) + 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const int error = ReceiveFrame(b_.get(), buffer_, false, &frame_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(error, 0);
  EXPECT_TRUE(frame_.truncated);
  EXPECT_LE(frame_.fds.size(), 3u);
}

TEST_F(SeqpacketTest, TheMostFdsPassAndOneMoreIsRefused) {
  std::vector<int> fds(kMaxFdsPerMessage, a_.get());
  ASSERT_EQ(SendFrame(a_.get(), BytesOf("x"), fds, true), 0);
  ASSERT_EQ(ReceiveFrame(b_.get(), buffer_, false, &frame_), 0);
  EXPECT_EQ(frame_.fds.size(), kMaxFdsPerMessage);
  fds.push_back(a_.get());
  EXPECT_EQ(SendFrame(a_.get(), BytesOf("x"), fds, true), EINVAL);
}

TEST_F(SeqpacketTest, APeerThatIsGoneIsAnErrorAndNotASignal) {
  b_.reset();
  const int error = SendFrame(a_.get(), BytesOf("x"), {}, true);
  EXPECT_TRUE(error == EPIPE || error == ECONNRESET) << error;
  EXPECT_EQ(ReceiveFrame(a_.get(), buffer_, false, &frame_), 0);
  EXPECT_EQ(frame_.size, 0u);
}

TEST_F(SeqpacketTest, WithoutBlockingAnEmptySocketIsEagainAndAFullOneToo) {
  EXPECT_EQ(ReceiveFrame(b_.get(), buffer_, false, &frame_), EAGAIN);
  int error = 0;
  for (int i = 0; i < 100000 && error == 0; ++i) error = SendFrame(a_.get(), BytesOf("x"), {}, false);
  EXPECT_EQ(error, EAGAIN);
}

}  // namespace
}  // namespace gpumem
