// daemon/keeper/keeper_client.h: the front's handle on the keeper: connects, asks, reconnects. Implements
// manager::Keeper.
//
// Loop thread only, and never blocks it. KEEPER_UNAVAILABLE for a call that was sent leaves open whether the keeper did
// it; what on_ready lists after the next connection is the truth.
#ifndef GPUMEM_DAEMON_KEEPER_KEEPER_CLIENT_H_
#define GPUMEM_DAEMON_KEEPER_KEEPER_CLIENT_H_

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/event_loop.h"
#include "base/frame_channel.h"
#include "base/process.h"
#include "daemon/keeper/keeper_wire.h"
#include "daemon/manager/handle_fd.h"
#include "daemon/manager/ports.h"

namespace gpumem::keeper {

class KeeperClient final : public manager::Keeper {
 public:
  struct Options {
    EventLoop* loop = nullptr;               // must outlive the client
    manager::FdCloser* fd_closer = nullptr;  // must outlive the client and every HandleFd it gave out
    std::string socket_path;
    std::array<std::uint8_t, 16> instance{};  // this daemon's, for the keeper's log
    // Start `executable keeper --socket=… --exit-when-idle`, in a session of its own, when nothing listens. It outlives
    // this process for as long as it holds something.
    bool spawn = false;
    std::string executable = "/proc/self/exe";
    std::string keeper_log;  // a started keeper's stdout and stderr are appended here; empty: it shares ours
    // Between attempts to connect: doubled up to the longest, and begun anew when a connection was ready.
    std::chrono::milliseconds retry_first{50};
    std::chrono::milliseconds retry_longest{5000};

    // Posted to the loop, all optional. on_ready: connected, with everything that the keeper holds. on_lost: a
    // connection that was ready has ended; after the completions of every call on it.
    std::function<void(const std::vector<manager::KeptEntry>&)> on_ready;
    std::function<void(const std::string& how)> on_lost;
    std::function<void(manager::Log::Level, const std::string&)> log;
  };

  explicit KeeperClient(Options options);
  // Closes the connection; calls still open complete with KEEPER_UNAVAILABLE. The keeper goes on.
  ~KeeperClient() override;
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  // Starts connecting, and keeps at it.
  void Start();

  bool ready() const { return state_ == State::kReady; }
  // The keeper's pid as it said, while connected: for displays and tests.
  std::optional<pid_t> keeper_pid() const { return keeper_pid_; }

  // DESCRIPTORS: the keeper is full and has not kept the fd. The client holds `fd` until the answer.
  void Put(const manager::KeptEntry& entry, manager::HandleFd fd, std::function<void(absl::Status)> done) override;
  // HANDLE_LOST: nothing is held under the name, or it is being closed.
  void Get(const manager::KeptName& name, std::function<void(absl::StatusOr<manager::HandleFd>)> done) override;
  // OK: the keeper's close(2) has returned. HANDLE_LOST: nothing is held under the name.
  void Del(const manager::KeptName& name, std::function<void(absl::Status)> done) override;

 private:
  enum class State : std::uint8_t { kDisconnected, kGreeting, kListing, kReady };
  // An open call. `done` gets an error, or OK with the fd of a Got.
  struct Call {
    KeeperFrame answer;
    std::function<void(absl::StatusOr<manager::HandleFd>)> done;
    manager::HandleFd fd;  // of a Put
  };

  void Connect();
  void ConnectLater();
  bool KeeperIsOurs(int socket) const;
  void SpawnKeeper();
  void OnSpawnedEnd();
  void OnFrame(std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated);
  void OnHelloIs(const HelloIsBody& hello);
  void AskList(const WireName* after);
  void OnListed(const ListedBody& page);
  void OnAnswer(const FixedHeader& header, const ResultBody& body, std::vector<manager::HandleFd> fds, bool fds_lost);
  void OnEnd(const std::string& how);
  void FailCalls(const std::string& how);
  template <typename Body>
  void Ask(KeeperFrame type, const Body& body, Call call);
  void Log(manager::Log::Level level, const std::string& message) const;

  const Options options_;
  State state_ = State::kDisconnected;
  std::shared_ptr<FrameChannel> channel_;
  std::chrono::milliseconds delay_;
  bool told_unreachable_ = false;  // one log line for a row of failed attempts
  std::optional<pid_t> keeper_pid_;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Call> calls_;  // in the order asked
  std::vector<manager::KeptEntry> listed_;
  ChildProcess spawned_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpumem::keeper

#endif  // GPUMEM_DAEMON_KEEPER_KEEPER_CLIENT_H_
