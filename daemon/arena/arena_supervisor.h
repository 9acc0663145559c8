// daemon/arena/arena_supervisor.h: the front's handle on its arenas: starts one process per device, speaks with it,
// restarts it. Implements manager::Arenas.
//
// Loop thread only, and never blocks it: frames that a socket does not take now wait in a queue. It includes no driver:
// the arena is another program, known by its command line and its wire.
//
// What a completion proves. DEVICE_UNAVAILABLE for a call that was sent comes only after the arena process has proven
// ended (its pidfd is readable): then nothing that the call asked for exists in the driver, beyond fds that were
// delivered before. DEVICE_UNAVAILABLE for a call that was not sent comes at once.
#ifndef GPUMEM_DAEMON_ARENA_ARENA_SUPERVISOR_H_
#define GPUMEM_DAEMON_ARENA_ARENA_SUPERVISOR_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/device_uuid.h"
#include "base/event_loop.h"
#include "daemon/arena/arena_wire.h"
#include "daemon/manager/handle_fd.h"
#include "daemon/manager/ports.h"

namespace gpumem::arena {

// What an arena says of its device when it is ready.
struct ArenaInfo {
  WireDriver driver{};
  std::int32_t driver_version = 0;  // cuDriverGetVersion
  std::string name;
  manager::Bytes total;
  manager::Bytes granularity;
  bool memory_readings = false;  // false: Memory() will fail, because NVML is missing
};

class ArenaSupervisor final : public manager::Arenas {
 public:
  struct Options {
    EventLoop* loop = nullptr;               // must outlive the supervisor
    manager::FdCloser* fd_closer = nullptr;  // must outlive the supervisor and every HandleFd it gave out
    std::string executable = "/proc/self/exe";
    std::string driver = "auto";  // --driver: auto, cuda or sim
    std::string libcuda;          // --libcuda: a path; empty: what the driver kind means
    // Set in the arena's environment, before CUDA_VISIBLE_DEVICES, which is always the device's UUID.
    std::vector<std::pair<std::string, std::string>> environment;
    // A dead arena is started again after `restart_first`, doubled for each failure in a row up to `restart_longest`.
    // One that was ready for `healthy_after` begins anew.
    std::chrono::milliseconds restart_first{100};
    std::chrono::milliseconds restart_longest{5000};
    std::chrono::milliseconds healthy_after{5000};
    // How long an arena whose socket is closed may take to end by itself before it gets SIGKILL.
    std::chrono::milliseconds end_grace{2000};

    // Posted to the loop, all optional. on_ready: each time that an arena is ready, the first and after a restart.
    // on_ended: an arena that was ready has proven ended; after the completions of every call that it owed.
    std::function<void(const DeviceUuid&, const ArenaInfo&)> on_ready;
    std::function<void(const DeviceUuid&, const std::string& how)> on_ended;
    std::function<void(manager::Log::Level, const std::string&)> log;
  };

  explicit ArenaSupervisor(Options options);
  // Kills the arenas that still run, without waiting for them: call Shutdown first.
  ~ArenaSupervisor() override;
  ArenaSupervisor(const ArenaSupervisor&) = delete;
  ArenaSupervisor& operator=(const ArenaSupervisor&) = delete;

  // The device gets an arena when Start is called, or now if it was. A second call for a device changes nothing.
  void AddDevice(const DeviceUuid& device);
  void Start();

  // Ends every arena by closing its socket (SIGKILL after end_grace) and starts none again. `done` is posted when all
  // have ended, or after another end_grace when the kernel cannot end one (a driver call that hangs). Call it once.
  void Shutdown(std::function<void()> done);

  // The running arena's pid, for displays and tests.
  std::optional<pid_t> Pid(const DeviceUuid& device) const;

  void Create(const DeviceUuid& device, std::vector<manager::ArenaChunk> chunks, std::uint32_t want_fds,
              std::function<void(absl::StatusOr<manager::ArenaCreated>)> done) override;
  void Fetch(const DeviceUuid& device, std::vector<manager::ChunkId> chunks,
             std::function<void(absl::StatusOr<std::vector<manager::HandleFd>>)> done) override;
  void Close(const DeviceUuid& device, std::vector<manager::ChunkId> chunks,
             std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done) override;
  // DRIVER_FAILED when the arena has no NVML: the answer is "not known", never a guess.
  void Memory(const DeviceUuid& device, std::function<void(absl::StatusOr<manager::ArenaMemory>)> done) override;

 private:
  class Arena;
  Arena* Find(const DeviceUuid& device) const;
  void FinishShutdown();

  std::shared_ptr<const Options> options_;  // arenas' timers may outlive this object for a moment
  std::map<DeviceUuid, std::shared_ptr<Arena>> arenas_;
  bool started_ = false;
  std::function<void()> shutdown_done_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_ARENA_SUPERVISOR_H_
