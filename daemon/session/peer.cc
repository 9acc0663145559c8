#include "daemon/session/peer.h"

#include <fcntl.h>
#include <linux/types.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/core/reasons.h"

namespace gpumem::session {
namespace {

using core::Reason;

// Not in the headers of Debian 12; the numbers are Linux's for every architecture that CUDA runs on.
constexpr int kSoPeerPidfd = 77;
constexpr int kSoPassRights = 83;
constexpr long kPidfsMagic = 0x50494446;

constexpr std::size_t kMaxGroups = 65536;  // NGROUPS_MAX of Linux

absl::Status SystemError(absl::string_view what, int error) {
  const bool descriptors = error == EMFILE || error == ENFILE;
  return core::Error(
      descriptors ? Reason::DESCRIPTORS : Reason::INTERNAL,
      absl::StrCat(what, ": ", std::strerror(error), descriptors ? "; raise LimitNOFILE of the daemon" : ""));
}

std::string ReadSmallFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return "";
  char buffer[4096];
  const ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
  return got > 0 ? std::string(buffer, static_cast<std::size_t>(got)) : "";
}

// 0 when it cannot be read. The name in field 2 may hold spaces and parentheses, so fields are counted from the last
// ')'.
std::uint64_t ReadStartTime(pid_t pid) {
  const std::string stat = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"));
  const std::size_t close = stat.rfind(')');
  if (close == std::string::npos) return 0;
  const std::vector<absl::string_view> fields = absl::StrSplit(absl::string_view(stat).substr(close + 1), ' ');
  constexpr std::size_t kStartTime = 20;  // field 22; fields[0] is empty and fields[1] is field 3
  std::uint64_t ticks = 0;
  if (fields.size() <= kStartTime || !absl::SimpleAtoi(fields[kStartTime], &ticks)) return 0;
  return ticks;
}

std::optional<uid_t> ReadEffectiveUid(pid_t pid) {
  const std::string status = ReadSmallFile(absl::StrCat("/proc/", pid, "/status"));
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (!absl::ConsumePrefix(&line, "Uid:\t")) continue;
    const std::vector<absl::string_view> uids = absl::StrSplit(line, '\t');  // real, effective, saved, filesystem
    uid_t uid = 0;
    if (uids.size() < 2 || !absl::SimpleAtoi(uids[1], &uid)) return std::nullopt;
    return uid;
  }
  return std::nullopt;
}

absl::StatusOr<UniqueFd> OpenPidfd(int socket, const ucred& credentials) {
  int fd = -1;
  socklen_t length = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &length) == 0) return UniqueFd(fd);
  if (errno == ENOPROTOOPT) return internal::OpenPidfdByNumber(socket, credentials.pid, credentials.uid);
  // EINVAL or ESRCH: kernels before 6.16 make no pidfd of a process that is gone.
  return SystemError("no pidfd of the connecting process (SO_PEERPIDFD)", errno);
}

absl::StatusOr<std::vector<gid_t>> ReadGroups(int socket) {
  std::vector<gid_t> groups(64);
  while (true) {
    socklen_t length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length) == 0) {
      groups.resize(length / sizeof(gid_t));
      return groups;
    }
    // ERANGE: `length` is now the size that is needed.
    if (errno != ERANGE || length / sizeof(gid_t) > kMaxGroups) return SystemError("SO_PEERGROUPS", errno);
    groups.resize(length / sizeof(gid_t));
  }
}

std::uint64_t PidfsInode(int pidfd) {
  struct statfs filesystem {};
  struct stat status {};
  if (::fstatfs(pidfd, &filesystem) != 0 || filesystem.f_type != kPidfsMagic) return 0;
  return ::fstat(pidfd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

namespace internal {

absl::StatusOr<UniqueFd> OpenPidfdByNumber(int socket, pid_t pid, uid_t uid) {
  if (pid <= 0) {
    return core::Error(Reason::INTERNAL,
                       "the connecting process is in another pid namespace, and this kernel has no SO_PEERPIDFD; "
                       "share the pid namespace or run Linux 6.5 or later");
  }
  const std::uint64_t before = ReadStartTime(pid);
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return SystemError(absl::StrCat("pidfd_open of process ", pid), errno);
  pollfd other_end{socket, 0, 0};
  const bool hung_up = ::poll(&other_end, 1, 0) > 0 && (other_end.revents & POLLHUP) != 0;
  if (hung_up || before == 0 || ReadStartTime(pid) != before || ReadEffectiveUid(pid) != uid) {
    return core::Error(Reason::CANCELLED,
                       absl::StrCat("process ", pid, " is not provably the one that connected as uid ", uid));
  }
  return pidfd;
}

}  // namespace internal

absl::StatusOr<PeerIdentity> ReadPeer(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return SystemError("SO_PEERCRED", errno);
  }
  absl::StatusOr<UniqueFd> pidfd = OpenPidfd(socket, credentials);
  if (!pidfd.ok()) return pidfd.status();
  absl::StatusOr<std::vector<gid_t>> groups = ReadGroups(socket);
  if (!groups.ok()) return groups.status();

  PeerIdentity peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.gid = credentials.gid;
  peer.groups = *std::move(groups);
  peer.pidfd = *std::move(pidfd);
  peer.pidfd_inode = PidfsInode(peer.pidfd.get());
  if (peer.pid > 0) {
    peer.comm = std::string(absl::StripSuffix(ReadSmallFile(absl::StrCat("/proc/", peer.pid, "/comm")), "\n"));
    peer.start_time = ReadStartTime(peer.pid);
  }
  // Asked last: as long as the process had not ended, what /proc said of its number was about it.
  if (HasEnded(peer.pidfd.get())) {
    return core::Error(Reason::CANCELLED, absl::StrCat("process ", peer.pid, " ended right after it connected"));
  }
  return peer;
}

bool SameProcess(const PeerIdentity& a, const PeerIdentity& b) {
  if (a.pidfd_inode != 0 && b.pidfd_inode != 0) return a.pidfd_inode == b.pidfd_inode;
  return a.pid > 0 && a.pid == b.pid && a.start_time != 0 && a.start_time == b.start_time;
}

absl::Status CheckOperator(const PeerIdentity& peer, uid_t daemon_uid, std::optional<gid_t> operators) {
  if (peer.uid == 0 || peer.uid == daemon_uid) return absl::OkStatus();
  if (operators &&
      (peer.gid == *operators || std::find(peer.groups.begin(), peer.groups.end(), *operators) != peer.groups.end())) {
    return absl::OkStatus();
  }
  return core::Error(
      Reason::NOT_AN_OPERATOR,
      absl::StrCat("process ", peer.pid, " of uid ", peer.uid,
                   " is no operator: the admin socket is for root, for uid ", daemon_uid,
                   operators ? absl::StrCat(" and for group ", *operators) : " (no operators' group is configured)"));
}

void RefuseFds(int socket) {
  // Whoever receives checks for fds as well, so a kernel without the option changes nothing.
  const int off = 0;
  ::setsockopt(socket, SOL_SOCKET, kSoPassRights, &off, sizeof(off));
}

bool HasEnded(int pidfd) {
  pollfd ended{pidfd, POLLIN, 0};
  return ::poll(&ended, 1, 0) > 0 && (ended.revents & POLLIN) != 0;
}

}  // namespace gpumem::session
