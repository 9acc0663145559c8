// daemon/keeper/keeper_process.h: the program `gpumemd keeper`.
//
//   gpumemd keeper --socket=PATH [--exit-when-idle] [--max-handles=N]
//
// Holds the fds of durable memory for the front, through the front's death, restart and upgrade. Loads no driver. It
// listens on PATH (mode 0600), or on the one socket that systemd passes to it (LISTEN_FDS), and tells systemd when it
// is ready (NOTIFY_SOCKET). A second keeper for a path is refused: PATH.lock is held with flock(2) for the keeper's
// life, and a socket on which something still answers is never taken over.
//
// Signals: SIGTERM and SIGINT end it, and DROP EVERYTHING IT HOLDS; SIGHUP is ignored. It never ends because a front
// did, unless --exit-when-idle: then it ends when no front is connected and it holds nothing.
#ifndef GPUMEM_DAEMON_KEEPER_KEEPER_PROCESS_H_
#define GPUMEM_DAEMON_KEEPER_KEEPER_PROCESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace gpumem::keeper {

struct KeeperFlags {
  std::string socket;           // path of keeper.sock; may be empty when systemd passes the socket
  bool exit_when_idle = false;  // for a keeper that a daemon started for itself
  std::chrono::milliseconds idle_grace{1000};
  std::uint64_t max_handles = 0;  // 0: what RLIMIT_NOFILE allows, less a reserve
};

// Returns the process's exit code: 0, or 1 after one line on stderr that says what failed.
int KeeperMain(const KeeperFlags& flags);

}  // namespace gpumem::keeper

#endif  // GPUMEM_DAEMON_KEEPER_KEEPER_PROCESS_H_
