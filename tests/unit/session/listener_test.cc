#include "daemon/session/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/unit/session/session_test_util.h"

namespace gpumem::session {
namespace {

using ::testing::HasSubstr;

ListenerOptions OptionsFor(const std::string& path) {
  ListenerOptions options;
  options.path = path;
  options.setting = "sockets.control";
  return options;
}

bool Accepts(const ListeningSocket& listener) {
  return UniqueFd(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC)).valid();
}

TEST(ListenerTest, ListensWithTheModeAskedAndCleansUp) {
  TempDir dir;
  const std::string path = dir.Path("s");
  {
    ListenerOptions options = OptionsFor(path);
    options.mode = 0620;
    options.group = ::getegid();
    const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(options);
    ASSERT_TRUE(listener.ok()) << listener.status();
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0620u);
    EXPECT_TRUE(Connect(path, SOCK_STREAM).valid());
    EXPECT_TRUE(Accepts(*listener));
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST(ListenerTest, ASecondDaemonIsRefusedAndTheFirstUnharmed) {
  TempDir dir;
  const std::string path = dir.Path("s");
  const absl::StatusOr<ListeningSocket> first = ListeningSocket::Bind(OptionsFor(path));
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<ListeningSocket> second = ListeningSocket::Bind(OptionsFor(path));
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(path));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("sockets.control"));
  EXPECT_TRUE(Connect(path, SOCK_STREAM).valid());
  EXPECT_TRUE(Accepts(*first));
}

TEST(ListenerTest, ALiveSocketWithoutALockIsLeftAloneToo) {
  TempDir dir;
  const std::string path = dir.Path("s");
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    ListenerOptions options = OptionsFor(path);
    options.type = type;
    const absl::StatusOr<ListeningSocket> first = ListeningSocket::Bind(options);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_EQ(::unlink((path + ".lock").c_str()), 0);
    EXPECT_EQ(ListeningSocket::Bind(OptionsFor(path)).status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_TRUE(Connect(path, type).valid());
    EXPECT_TRUE(Accepts(*first));
  }
}

TEST(ListenerTest, AStaleSocketFileIsReplaced) {
  TempDir dir;
  const std::string path = dir.Path("s");
  Child daemon([&] {
    // Ends without any clean-up.
    const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(path));
    ::_exit(listener.ok() ? 0 : 1);
    return 0;
  });
  ASSERT_EQ(daemon.Reap(), 0);
  ASSERT_EQ(::access(path.c_str(), F_OK), 0);
  ASSERT_FALSE(Connect(path, SOCK_STREAM).valid());
  const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(path));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(Connect(path, SOCK_STREAM).valid());
}

TEST(ListenerTest, AFileThatIsNoSocketIsLeftAlone) {
  TempDir dir;
  const std::string path = dir.Path("s");
  std::ofstream(path) << "precious";
  const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(path));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("is not a socket"));
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "precious");
}

TEST(ListenerTest, OnlyTheOwnFileIsRemovedAtTheEnd) {
  TempDir dir;
  const std::string path = dir.Path("s");
  {
    const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(path));
    ASSERT_TRUE(listener.ok()) << listener.status();
    ASSERT_EQ(::unlink(path.c_str()), 0);
    std::ofstream(path) << "another's";
  }
  EXPECT_EQ(::access(path.c_str(), F_OK), 0);
}

TEST(ListenerTest, APathThatIsTooLongIsRefusedNamingTheLimit) {
  TempDir dir;
  const std::size_t room = 107 - dir.Path("").size();
  const absl::StatusOr<ListeningSocket> fits = ListeningSocket::Bind(OptionsFor(dir.Path(std::string(room, 'x'))));
  EXPECT_TRUE(fits.ok()) << fits.status();
  const absl::StatusOr<ListeningSocket> listener =
      ListeningSocket::Bind(OptionsFor(dir.Path(std::string(room + 1, 'x'))));
  EXPECT_EQ(listener.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(listener.status().message());
  EXPECT_THAT(message, HasSubstr("has 108 bytes"));
  EXPECT_THAT(message, HasSubstr("at most 107"));
  EXPECT_THAT(message, HasSubstr("sockets.control"));
}

TEST(ListenerTest, AMissingDirectoryIsNamed) {
  TempDir dir;
  const absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(dir.Path("no/s")));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("create its directory"));
}

TEST(ListenerTest, AMovedListenerKeepsTheFileUntilItsEnd) {
  TempDir dir;
  const std::string path = dir.Path("s");
  absl::StatusOr<ListeningSocket> listener = ListeningSocket::Bind(OptionsFor(path));
  ASSERT_TRUE(listener.ok()) << listener.status();
  {
    const ListeningSocket moved = *std::move(listener);
    EXPECT_TRUE(Connect(path, SOCK_STREAM).valid());
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

// Passes `sockets` to `body` as systemd would: from descriptor 3 on, in a process of its own.
int RunActivated(const std::vector<int>& sockets, const std::string& names, const std::function<int()>& body) {
  Child child([&] {
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      // First out of the way of the numbers that are to be used.
      const int high = ::fcntl(sockets[i], F_DUPFD, 100 + static_cast<int>(i));
      ::dup2(high, 3 + static_cast<int>(i));
    }
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    ::setenv("LISTEN_FDS", std::to_string(sockets.size()).c_str(), 1);
    ::setenv("LISTEN_FDNAMES", names.c_str(), 1);
    return body();
  });
  return child.Reap();
}

TEST(ListenerTest, SocketsOfSystemdAreTakenByName) {
  TempDir dir;
  const absl::StatusOr<ListeningSocket> control = ListeningSocket::Bind(OptionsFor(dir.Path("c")));
  ListenerOptions seqpacket = OptionsFor(dir.Path("h"));
  seqpacket.type = SOCK_SEQPACKET;
  const absl::StatusOr<ListeningSocket> handles = ListeningSocket::Bind(seqpacket);
  ASSERT_TRUE(control.ok() && handles.ok());
  const int failed_at = RunActivated({handles->fd(), control->fd()}, "handles:control", [&] {
    auto sockets = TakeInheritedSockets({"control", "handles", "admin"});
    if (!sockets.ok() || sockets->size() != 2) return 1;
    if (std::getenv("LISTEN_FDS") != nullptr) return 2;
    auto adopted = ListeningSocket::Adopt(std::move(sockets->at("handles")), SOCK_SEQPACKET, "handles");
    if (!adopted.ok() || adopted->name() != "handles") return 3;
    if ((::fcntl(adopted->fd(), F_GETFL) & O_NONBLOCK) == 0) return 4;
    if ((::fcntl(adopted->fd(), F_GETFD) & FD_CLOEXEC) == 0) return 5;
    // The other one is of another type than it must be.
    if (ListeningSocket::Adopt(std::move(sockets->at("control")), SOCK_SEQPACKET, "control").ok()) return 6;
    return 0;
  });
  EXPECT_EQ(failed_at, 0);
  EXPECT_EQ(::access(dir.Path("h").c_str(), F_OK), 0) << "an adopted socket's file is not ours to remove";
}

TEST(ListenerTest, AnUnknownInheritedSocketIsRefused) {
  TempDir dir;
  const absl::StatusOr<ListeningSocket> control = ListeningSocket::Bind(OptionsFor(dir.Path("c")));
  ASSERT_TRUE(control.ok());
  const int failed_at = RunActivated({control->fd(), control->fd()}, "control:spare", [&] {
    const auto sockets = TakeInheritedSockets({"control"});
    return sockets.ok() || sockets.status().message().find("spare") == absl::string_view::npos ? 1 : 0;
  });
  EXPECT_EQ(failed_at, 0);
}

TEST(ListenerTest, WithoutSystemdNothingIsInherited) {
  const auto sockets = TakeInheritedSockets({"control"});
  ASSERT_TRUE(sockets.ok());
  EXPECT_TRUE(sockets->empty());
}

}  // namespace
}  // namespace gpumem::session
