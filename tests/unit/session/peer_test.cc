#include "daemon/session/peer.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "daemon/core/reasons.h"
#include "tests/unit/session/session_test_util.h"

namespace gpumem::session {
namespace {

using core::Reason;
using ::testing::HasSubstr;

struct Pair {
  UniqueFd ours;
  UniqueFd theirs;
  Pair() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    ours.reset(fds[0]);
    theirs.reset(fds[1]);
  }
};

// A listening socket in a directory of its own.
class Listening {
 public:
  Listening() : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, dir_.Path("s").c_str(), dir_.Path("s").size());
    if (::bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) std::abort();
    if (::listen(fd_.get(), 8) != 0) std::abort();
  }
  UniqueFd Accept() { return UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  UniqueFd ConnectHere() const { return Connect(dir_.Path("s"), SOCK_STREAM); }

 private:
  TempDir dir_;
  UniqueFd fd_;
};

TEST(PeerTest, TheProcessThatConnectedIsNamed) {
  Listening listening;
  Child child([&] {
    const UniqueFd fd = listening.ConnectHere();
    ::pause();
    return 0;
  });
  const UniqueFd socket = listening.Accept();
  const absl::StatusOr<PeerIdentity> peer = ReadPeer(socket.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, child.pid());
  EXPECT_EQ(peer->uid, ::geteuid());
  EXPECT_EQ(peer->gid, ::getegid());
  EXPECT_EQ(peer->comm, "session_test");
  EXPECT_NE(peer->start_time, 0u);
  EXPECT_FALSE(HasEnded(peer->pidfd.get()));
  child.Kill();
  pollfd ended{peer->pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1);
  EXPECT_TRUE(HasEnded(peer->pidfd.get()));
}

TEST(PeerTest, AProcessThatEndedBeforeItWasLookedAtHasNoIdentity) {
  Listening listening;
  Child child([&] { return listening.ConnectHere().valid() ? 0 : 1; });
  ASSERT_EQ(child.Reap(), 0);
  const UniqueFd socket = listening.Accept();
  ASSERT_TRUE(socket.valid());
  EXPECT_FALSE(ReadPeer(socket.get()).ok());
}

TEST(PeerTest, WhatIsNoUnixSocketHasNoIdentity) {
  const Pipe pipe;
  EXPECT_FALSE(ReadPeer(pipe.read.get()).ok());
}

TEST(PeerTest, TwoConnectionsOfOneProcessAreTheSameProcess) {
  Pair a, b;
  Listening listening;
  Child child([&] {
    const UniqueFd fd = listening.ConnectHere();
    ::pause();
    return 0;
  });
  const UniqueFd other_socket = listening.Accept();
  const PeerIdentity one = *ReadPeer(a.ours.get());
  const PeerIdentity two = *ReadPeer(b.ours.get());
  const PeerIdentity other = *ReadPeer(other_socket.get());
  EXPECT_TRUE(SameProcess(one, two));
  EXPECT_FALSE(SameProcess(one, other));
}

TEST(PeerTest, WithoutPidfsPidAndStartTimeDecide) {
  const auto identity = [](pid_t pid, std::uint64_t start_time, std::uint64_t inode) {
    PeerIdentity peer;
    peer.pid = pid;
    peer.start_time = start_time;
    peer.pidfd_inode = inode;
    return peer;
  };
  EXPECT_TRUE(SameProcess(identity(7, 100, 0), identity(7, 100, 0)));
  EXPECT_TRUE(SameProcess(identity(7, 100, 5), identity(7, 100, 0)));
  EXPECT_FALSE(SameProcess(identity(7, 100, 0), identity(7, 101, 0)));  // the pid was reused
  EXPECT_FALSE(SameProcess(identity(7, 0, 0), identity(7, 0, 0)));      // nothing is proven
  EXPECT_FALSE(SameProcess(identity(0, 100, 0), identity(0, 100, 0)));  // two foreign namespaces
  EXPECT_FALSE(SameProcess(identity(7, 100, 5), identity(7, 100, 6)));  // pidfs knows better
}

TEST(PeerTest, TheFallbackFindsTheProcessByItsNumber) {
  Pair pair;
  const absl::StatusOr<UniqueFd> pidfd = internal::OpenPidfdByNumber(pair.ours.get(), ::getpid(), ::geteuid());
  ASSERT_TRUE(pidfd.ok()) << pidfd.status();
  EXPECT_FALSE(HasEnded(pidfd->get()));
}

TEST(PeerTest, TheFallbackRefusesWhatItCannotProve) {
  Pair pair;
  EXPECT_FALSE(internal::OpenPidfdByNumber(pair.ours.get(), ::getpid(), ::geteuid() + 1).ok());
  EXPECT_THAT(std::string(internal::OpenPidfdByNumber(pair.ours.get(), 0, ::geteuid()).status().message()),
              HasSubstr("pid namespace"));
  pid_t gone;
  {
    Child child([] { return 0; });
    gone = child.pid();
  }
  EXPECT_FALSE(internal::OpenPidfdByNumber(pair.ours.get(), gone, ::geteuid()).ok());
  pair.theirs.reset();
  EXPECT_FALSE(internal::OpenPidfdByNumber(pair.ours.get(), ::getpid(), ::geteuid()).ok());
}

TEST(PeerTest, OperatorsAreRootTheDaemonAndTheGroup) {
  PeerIdentity peer;
  peer.uid = 1000;
  peer.gid = 1000;
  peer.groups = {4, 27};
  const absl::Status refused = CheckOperator(peer, 990, std::nullopt);
  EXPECT_EQ(core::ReasonOf(refused), Reason::NOT_AN_OPERATOR);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uid 1000"));
  EXPECT_FALSE(CheckOperator(peer, 990, 5).ok());
  EXPECT_TRUE(CheckOperator(peer, 990, 27).ok());
  EXPECT_TRUE(CheckOperator(peer, 990, 1000).ok());
  EXPECT_TRUE(CheckOperator(peer, 1000, std::nullopt).ok());
  peer.uid = 0;
  EXPECT_TRUE(CheckOperator(peer, 990, std::nullopt).ok());
}

TEST(PeerTest, SupplementaryGroupsComeFromTheKernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can choose its groups";
  Listening listening;
  Child child([&] {
    const gid_t groups[] = {12345, 23456};
    if (::setgroups(2, groups) != 0) return 1;
    const UniqueFd fd = listening.ConnectHere();
    ::pause();
    return 0;
  });
  const UniqueFd socket = listening.Accept();
  const absl::StatusOr<PeerIdentity> peer = ReadPeer(socket.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_THAT(peer->groups, ::testing::UnorderedElementsAre(12345u, 23456u));
}

}  // namespace
}  // namespace gpumem::session
