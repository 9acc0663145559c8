// The keeper as a process: its socket, its lock, its signals, and peers that break the protocol.
#include "daemon/keeper/keeper_process.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include "base/seqpacket.h"
#include "daemon/core/reasons.h"
#include "daemon/keeper/keeper_wire.h"
#include "daemon/keeper/socket_address.h"
#include "tests/unit/keeper/keeper_fixture.h"

namespace gpumem::keeper {
namespace {

class KeeperProcessTest : public KeeperTest {
 protected:
  // A raw connection to a keeper that is up.
  UniqueFd RawConnection() {
    sockaddr_un address;
    EXPECT_TRUE(SocketAddress(socket_, &address));
    for (;;) {
      UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return socket;
      ::usleep(1000);
    }
  }
  // The next frame's type; 0 when the keeper closed.
  static std::uint16_t NextType(const UniqueFd& socket, std::vector<std::byte>* bytes) {
    bytes->resize(kMaxKeeperFrameBytes);
    ReceivedFrame frame;
    const int error = ReceiveFrame(socket.get(), *bytes, /*blocking=*/true, &frame);
    if (error != 0 || frame.size == 0) return 0;
    FixedHeader header;
    std::memcpy(&header, bytes->data(), sizeof(header));
    return header.type;
  }
};

TEST_F(KeeperProcessTest, ASecondKeeperIsRefusedAndHarmsNothing) {
  StartKeeper();
  Connect();
  Handle handle;
  ASSERT_TRUE(Put(1, &handle).ok());
  EXPECT_EQ(WaitForEnd(StartKeeper()), "exit code 1");
  EXPECT_NE(LogText().find("another keeper serves " + socket_), std::string::npos) << LogText();
  EXPECT_TRUE(Get(1).ok());
  EXPECT_EQ(journal_, std::vector<std::string>{"ready"});
}

TEST_F(KeeperProcessTest, ASocketThatSomethingElseServesIsNotTaken) {
  sockaddr_un address;
  ASSERT_TRUE(SocketAddress(socket_, &address));
  const UniqueFd stranger(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(stranger.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(stranger.get(), 1), 0);
  EXPECT_EQ(WaitForEnd(StartKeeper()), "exit code 1");
  EXPECT_NE(LogText().find("something else serves"), std::string::npos) << LogText();
  EXPECT_TRUE(std::filesystem::exists(socket_));
}

TEST_F(KeeperProcessTest, ASocketLeftByADeadKeeperIsReplaced) {
  StartKeeper();
  RawConnection();
  SendSignal(keepers_[0].pidfd.get(), SIGKILL);
  WaitForEnd(keepers_[0]);
  ASSERT_TRUE(std::filesystem::exists(socket_));
  StartKeeper();
  Connect();
  EXPECT_EQ(client_->keeper_pid(), keepers_[1].pid);
}

TEST_F(KeeperProcessTest, APathThatIsTooLongIsNamed) {
  socket_ = dir_ + "/" + std::string(200, 'x');
  EXPECT_EQ(WaitForEnd(StartKeeper()), "exit code 1");
  EXPECT_NE(LogText().find("107"), std::string::npos) << LogText();
}

TEST_F(KeeperProcessTest, TheSocketIsForItsOwnerOnly) {
  StartKeeper();
  Connect();
  struct stat info {};
  ASSERT_EQ(::stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(KeeperProcessTest, SighupIsIgnoredAndSigtermEndsIt) {
  StartKeeper();
  Connect();
  Handle handle;
  ASSERT_TRUE(Put(1, &handle).ok());
  SendSignal(keepers_[0].pidfd.get(), SIGHUP);
  EXPECT_TRUE(Get(1).ok());
  SendSignal(keepers_[0].pidfd.get(), SIGTERM);
  EXPECT_EQ(WaitForEnd(keepers_[0]), "exit code 0");
  EXPECT_NE(LogText().find("drops 1 handles of 4096 bytes"), std::string::npos) << LogText();
  EXPECT_FALSE(std::filesystem::exists(socket_));
  RunUntil([&] { return handle.Gone(); });
}

TEST_F(KeeperProcessTest, WithoutExitWhenIdleItStays) {
  StartKeeper();
  Connect();
  client_.reset();
  Connect();
  EXPECT_EQ(client_->keeper_pid(), keepers_[0].pid);
}

TEST_F(KeeperProcessTest, AFrontOfAnotherVersionIsToldWhichIsSpoken) {
  StartKeeper();
  const UniqueFd socket = RawConnection();
  KeeperHelloBody hello;
  hello.min_version = 7;
  hello.max_version = 9;
  ASSERT_EQ(SendFrame(socket.get(), Encode(KeeperFrame::kHello, 3, 0, hello), {}, true), 0);
  std::vector<std::byte> bytes;
  ASSERT_EQ(NextType(socket, &bytes), static_cast<std::uint16_t>(KeeperFrame::kHelloIs));
  const auto answer = DecodeBody<HelloIsBody>(bytes);
  EXPECT_EQ(answer.reason, static_cast<std::uint32_t>(core::Reason::VERSION_MISMATCH));
  EXPECT_EQ(answer.version, kKeeperVersion);
  EXPECT_EQ(NextType(socket, &bytes), 0);
}

TEST_F(KeeperProcessTest, ABrokenPeerIsDroppedAndTheFrontIsNot) {
  StartKeeper();
  Connect();
  Handle handle;
  ASSERT_TRUE(Put(1, &handle).ok());
  std::vector<std::byte> bytes;
  NameBody get;
  get.name.id = 1;
  std::vector<std::vector<std::byte>> frames;
  frames.push_back(Encode(KeeperFrame::kGet, 1, 0, get));            // before Hello
  frames.push_back(Encode(KeeperFrame::kPut, 1, 1, PutBody{}));      // says one fd, brings none
  frames.push_back(std::vector<std::byte>(10));                      // no frame at all
  frames.push_back(Encode(KeeperFrame::kDone, 1, 0, ResultBody{}));  // an answer
  for (const std::vector<std::byte>& frame : frames) {
    const UniqueFd socket = RawConnection();
    ASSERT_EQ(SendFrame(socket.get(), frame, {}, true), 0);
    EXPECT_EQ(NextType(socket, &bytes), 0);
  }
  EXPECT_TRUE(Get(1).ok());
  EXPECT_EQ(journal_, std::vector<std::string>{"ready"});
}

TEST_F(KeeperProcessTest, WhatItDoesNotKnowIsNotKept) {
  StartKeeper();
  const UniqueFd socket = RawConnection();
  std::vector<std::byte> bytes;
  ASSERT_EQ(SendFrame(socket.get(), Encode(KeeperFrame::kHello, 1, 0, KeeperHelloBody{}), {}, true), 0);
  ASSERT_EQ(NextType(socket, &bytes), static_cast<std::uint16_t>(KeeperFrame::kHelloIs));
  PutBody put;
  put.entry.name.id = 1;
  put.entry.kind = static_cast<EntryKind>(9);
  const int fd = socket.get();
  ASSERT_EQ(SendFrame(socket.get(), Encode(KeeperFrame::kPut, 2, 1, put), std::span<const int>(&fd, 1), true), 0);
  ASSERT_EQ(NextType(socket, &bytes), static_cast<std::uint16_t>(KeeperFrame::kDone));
  EXPECT_EQ(DecodeBody<ResultBody>(bytes).reason, static_cast<std::uint32_t>(core::Reason::INVALID_ARGUMENT));
  // A question that carries a descriptor is no frame of this protocol.
  ASSERT_EQ(SendFrame(socket.get(), Encode(KeeperFrame::kGet, 3, 1, NameBody{}), std::span<const int>(&fd, 1), true),
            0);
  EXPECT_EQ(NextType(socket, &bytes), 0);
}

TEST_F(KeeperProcessTest, APeerOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  StartKeeper();
  Connect();
  ASSERT_EQ(::chmod(dir_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(socket_.c_str(), 0777), 0);  // as systemd's socket unit could have it
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    const UniqueFd socket = RawConnection();
    std::vector<std::byte> bytes;
    (void)SendFrame(socket.get(), Encode(KeeperFrame::kHello, 1, 0, KeeperHelloBody{}), {}, true);
    ::_exit(NextType(socket, &bytes) == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(stranger, &status, 0), stranger);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(journal_, std::vector<std::string>{"ready"});
}

TEST_F(KeeperProcessTest, ASocketFromSystemdIsServed) {
  sockaddr_un address;
  ASSERT_TRUE(SocketAddress(socket_, &address));
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  // LISTEN_PID must be the keeper's own pid, so a shell sets it before exec.
  SpawnOptions spawn;
  spawn.path = "/bin/sh";
  spawn.arguments = {"sh", "-c", std::string("LISTEN_PID=$$ LISTEN_FDS=1 exec ") + kHost + " keeper"};
  spawn.fd3 = listener.get();
  ChildProcess keeper;
  ASSERT_EQ(Spawn(spawn, &keeper), 0);
  keepers_.push_back(std::move(keeper));
  Connect();
  EXPECT_EQ(client_->keeper_pid(), keepers_[0].pid);
  SendSignal(keepers_[0].pidfd.get(), SIGTERM);
  EXPECT_EQ(WaitForEnd(keepers_[0]), "exit code 0");
  EXPECT_TRUE(std::filesystem::exists(socket_));  // it is systemd's
}

TEST_F(KeeperProcessTest, ItTellsSystemdWhenItIsReady) {
  const std::string notify = dir_ + "/notify";
  sockaddr_un address;
  ASSERT_TRUE(SocketAddress(notify, &address));
  const UniqueFd receiver(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(receiver.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", notify.c_str(), 1);
  StartKeeper();
  ::unsetenv("NOTIFY_SOCKET");
  char text[64] = {};
  ASSERT_GT(::recv(receiver.get(), text, sizeof(text) - 1, 0), 0);
  EXPECT_EQ(std::string(text), "READY=1");
  RawConnection();  // it listens already
}

}  // namespace
}  // namespace gpumem::keeper
