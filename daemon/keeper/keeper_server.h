// daemon/keeper/keeper_server.h: what the keeper does: holds fds by name for one front at a time. No policy, no driver.
#ifndef GPUMEM_DAEMON_KEEPER_KEEPER_SERVER_H_
#define GPUMEM_DAEMON_KEEPER_KEEPER_SERVER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/closing_thread.h"
#include "base/device_uuid.h"
#include "base/event_loop.h"
#include "base/frame_channel.h"
#include "base/unique_fd.h"
#include "daemon/keeper/keeper_wire.h"
#include "daemon/manager/ports.h"

namespace gpumem::keeper {

// Loop thread only; each device's closes run on a thread of that device, because a close can block in the driver.
class KeeperServer {
 public:
  struct Options {
    EventLoop* loop = nullptr;      // must outlive the server
    std::uint64_t max_entries = 0;  // a Put beyond it is refused with DESCRIPTORS
    // Set: on_idle is called once no connection and no entry has been there for `idle_grace`.
    std::function<void()> on_idle;
    std::chrono::milliseconds idle_grace{1000};
    std::chrono::milliseconds first_front_grace{30000};  // how long to wait for the first connection
    std::function<void(const std::string&)> log;
  };

  // Takes a listening SOCK_SEQPACKET socket and serves it from the loop.
  KeeperServer(UniqueFd listener, Options options);
  // Waits for the closes that are under way.
  ~KeeperServer();
  KeeperServer(const KeeperServer&) = delete;
  KeeperServer& operator=(const KeeperServer&) = delete;

  std::uint64_t entries() const { return entries_.size(); }
  std::uint64_t bytes() const;

 private:
  using Name = std::pair<std::array<std::uint8_t, 16>, std::uint64_t>;
  struct Waiter {
    std::uint64_t connection;
    std::uint64_t request;
  };
  struct Entry {
    WireEntry wire;
    UniqueFd fd;  // invalid while it is being closed
    std::vector<Waiter> waiters;
  };
  struct Connection {
    std::shared_ptr<FrameChannel> channel;
    bool is_front = false;
  };

  void Listen();
  void OnConnect();
  bool Admit(int socket);
  void OnFrame(std::uint64_t connection, std::span<const std::byte> bytes, std::vector<UniqueFd> fds, bool truncated);
  void OnHello(std::uint64_t connection, std::uint64_t request, const KeeperHelloBody& hello);
  void OnPut(std::uint64_t connection, std::uint64_t request, const WireEntry& entry, UniqueFd fd);
  void OnGet(std::uint64_t connection, std::uint64_t request, const WireName& name);
  void OnDel(std::uint64_t connection, std::uint64_t request, const WireName& name);
  void OnList(std::uint64_t connection, std::uint64_t request, const ListBody& list);
  void OnClosed(const Name& name);
  void Answer(std::uint64_t connection, KeeperFrame type, std::uint64_t request, std::uint32_t reason,
              const std::string& message, int fd = -1);
  void Drop(std::uint64_t connection, const std::string& why);
  bool HasCloser(const WireEntry& entry);
  void CheckIdleAfter(std::chrono::milliseconds grace);
  void Log(const std::string& message) const;

  const Options options_;
  UniqueFd listener_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_connection_ = 1;
  std::map<Name, Entry> entries_;
  std::uint64_t activity_ = 0;  // changes with each connection and entry, so that a timer knows whether all was quiet
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  // Last: destroyed first, while what their threads post to is still there.
  ClosingThread refused_;  // closes what was not kept
  std::map<DeviceUuid, std::unique_ptr<ClosingThread>> closers_;
};

}  // namespace gpumem::keeper

#endif  // GPUMEM_DAEMON_KEEPER_KEEPER_SERVER_H_
