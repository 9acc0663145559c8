// daemon/session/peer.h: who is behind a connected Unix socket, as the kernel says it. May call base/, core/ and
// Abseil.
//
// Facts used (socket(7), unix(7), pidfd_open(2)): SO_PEERCRED and SO_PEERPIDFD are taken at connect(2), so they name
// the process that connected, also when a forked child or an fd receiver uses the socket later. A pidfd is readable
// once every thread of the process has ended, and keeps naming that process: its pid may be reused, the pidfd never.
#ifndef GPUMEM_DAEMON_SESSION_PEER_H_
#define GPUMEM_DAEMON_SESSION_PEER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace gpumem::session {

// Immutable once read; may be shared between threads.
struct PeerIdentity {
  pid_t pid = 0;  // 0: the process is in a pid namespace that this one cannot see
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary, as they were at connect
  std::string comm;           // for displays only: the process chooses it; empty when it cannot be read
  // Field 22 of /proc/PID/stat, in clock ticks since boot; 0 when it cannot be read.
  std::uint64_t start_time = 0;
  // The pidfd's inode number on pidfs, which no other process of this boot has had; 0 on kernels without pidfs (< 6.9).
  std::uint64_t pidfd_inode = 0;
  UniqueFd pidfd;  // always valid
};

// Reads the peer of a connected Unix socket. Without a pidfd there is no identity: an error then, as for a process that
// has ended already. DESCRIPTORS when this process has no descriptor left. Never blocks.
absl::StatusOr<PeerIdentity> ReadPeer(int socket);

// Whether two identities are one process: by the pidfds' inodes where both have one, otherwise by pid and start time.
// What cannot be proven is false.
bool SameProcess(const PeerIdentity& a, const PeerIdentity& b);

// OK for those who may use the admin socket: root, the daemon's own uid, and members (primary or supplementary) of the
// configured group. NOT_AN_OPERATOR otherwise.
absl::Status CheckOperator(const PeerIdentity& peer, uid_t daemon_uid, std::optional<gid_t> operators);

// From here on the kernel refuses fds that the peer sends to this socket (SO_PASSRIGHTS, Linux 6.16). Older kernels
// deliver them still.
void RefuseFds(int socket);

// Whether the process of a pidfd has ended.
bool HasEnded(int pidfd);

namespace internal {
// The pidfd on kernels without SO_PEERPIDFD (< 6.5): by number. The pid could have been reused since the connect, so
// the process found must have the peer's uid, must not change while it is looked at, and some process must still have
// the other end of the socket open.
absl::StatusOr<UniqueFd> OpenPidfdByNumber(int socket, pid_t pid, uid_t uid);
}  // namespace internal

}  // namespace gpumem::session

#endif  // GPUMEM_DAEMON_SESSION_PEER_H_
