// tests/unit/manager/world.h: a simulated node for the manager: arenas, keeper, journal, sockets and worker processes,
// single-threaded, on a virtual clock, with a truth of its own about which physical memory exists.
//
// Physical memory is a shared object: the arenas' tables, the keeper's table, the front's fds, frames in sockets and
// the workers' imports each hold it, and it is gone when the last of them lets go. Nothing here reads the books to know
// that.
#ifndef GPUMEM_TESTS_UNIT_MANAGER_WORLD_H_
#define GPUMEM_TESTS_UNIT_MANAGER_WORLD_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/core/books.h"
#include "daemon/core/reasons.h"
#include "daemon/manager/manager.h"
#include "daemon/manager/ports.h"

namespace gpumem::manager::testing {

inline constexpr std::uint64_t kMiB = 1u << 20;
inline constexpr std::uint64_t kGranule = 2 * kMiB;

DeviceUuid TestDevice(std::uint8_t n);

// The answer of one call: how often it came, and what it was.
template <typename T>
class Answer {
 public:
  Reply<T> reply() {
    return [state = state_](absl::StatusOr<T> value) {
      ++state->times;
      state->value = std::move(value);
    };
  }
  int times() const { return state_->times; }
  bool ok() const { return state_->times == 1 && state_->value.ok(); }
  absl::Status status() const { return state_->value.status(); }
  core::Reason reason() const { return core::ReasonOf(state_->value.status()); }
  const T& value() const { return *state_->value; }

 private:
  struct State {
    int times = 0;
    absl::StatusOr<T> value = absl::UnknownError("not answered");
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class World : public Clock,
              public Timers,
              public Random,
              public Arenas,
              public Keeper,
              public Journal,
              public HandleChannels,
              public EventSink,
              public Log,
              public FdCloser {
 public:
  // Physical memory of one chunk. Counts itself in the world's truth.
  struct Block {
    Block(World* world_in, const DeviceUuid& device_in, std::uint64_t bytes_in);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    World* world;
    DeviceUuid device;
    std::uint64_t bytes;
  };
  using MemoryPtr = std::shared_ptr<Block>;

  struct Frame {
    std::uint64_t sequence = 0;
    std::uint64_t request_id = 0;
    LeaseId lease;
    std::vector<OutboundChunk> chunks;
    std::vector<MemoryPtr> memory;
  };
  struct Refusal {
    std::uint64_t request_id = 0;
    absl::Status why;
  };
  // A worker process and its end of the socket.
  struct Worker {
    SessionId session;
    HolderId holder;
    bool socket_open = true;
    bool witness_told = false;
    bool pidfd_told = false;
    bool forgotten = false;
    std::deque<Frame> inbox;
    std::vector<Refusal> refusals;
    std::vector<core::QuarantineReason> fences;
    std::map<ChunkId, MemoryPtr> imports;
    std::uint64_t next_sequence = 1;
    std::uint64_t next_request = 1;
  };

  struct Setup {
    int devices = 2;
    std::uint64_t capacity = 1024 * kMiB;
    std::uint64_t headroom = 64 * kMiB;
    Options options;
    bool start = true;  // arenas ready, keeper connected

    static Setup Large() {
      Setup setup;
      setup.capacity = 8ull << 30;
      return setup;
    }
    static Setup OneDevice() {
      Setup setup;
      setup.devices = 1;
      return setup;
    }
    static Setup Stopped() {
      Setup setup;
      setup.start = false;
      return setup;
    }
  };
  explicit World(const Setup& setup);
  World() : World(Setup()) {}
  ~World() override;

  Manager& manager() { return *manager_; }
  const core::Books& books() const { return manager_->books(); }

  // --- running ---
  // Runs one thing that is ready: the strand's next task, or a command of an arena, the keeper or the journal.
  bool Step();
  void RunUntilIdle();
  void Advance(absl::Duration by);
  // Chooses what runs next at random instead of strand first.
  void Shuffle(std::mt19937_64* random) { random_ = random; }

  // --- worker processes ---
  // Each opens a session and registers a holder.
  Worker& Connect(const std::string& name = "worker");
  // The same without waiting for the holder. Null when the daemon refuses the session.
  Worker* ConnectSoon(const std::string& name);
  // Takes every frame in the inbox, imports it and acknowledges.
  void ReceiveAll(Worker& worker, core::Access access = core::Access::kReadWrite);
  void DropImports(Worker& worker, const std::vector<ChunkId>& chunks);
  // The process is killed. A child that keeps the driver's fds keeps the imports and the witness.
  void Kill(Worker& worker, bool child_lives = false);
  void EndChild(Worker& worker);

  // --- other processes ---
  void EndArena(const DeviceUuid& device);
  void StartArena(const DeviceUuid& device);
  // The connection breaks: of the commands that wait, the keeper still runs the first `executed`, unanswered.
  void LoseKeeper(std::size_t executed, bool memory_lost);
  void StartKeeper();

  // --- faults ---
  enum class Injection { kNone, kFail, kKill, kFault, kSocket, kArenaEnd, kKeeperEnd, kKeeperRestart };
  // At the n-th port call from now (1 is the next) something happens to the call or to `victim`.
  void InjectAt(Injection what, int nth, Worker* victim);
  bool injected() const { return injected_; }
  // Chunks after this many are refused by the driver: out of memory. -1: never.
  int create_limit = -1;
  // The socket takes so many frames more. -1: any number.
  int socket_room = -1;
  bool fail_close = false;
  bool fail_del = false;
  int fail_put_after = -1;    // PUTs after so many are refused
  bool short_create = false;  // the last chunk of each Create is made and left out of the answer
  bool fail_journal = false;
  core::Reason create_reason = core::Reason::DRIVER_OUT_OF_MEMORY;

  // --- truth ---
  std::uint64_t physical(const DeviceUuid& device) const;
  std::size_t open_fds() const { return fds_.size(); }
  std::size_t max_open_fds() const { return max_open_fds_; }
  // Empty when the books are consistent and agree with the truth; else the first difference.
  std::string Check() const;

  // --- what was seen ---
  std::vector<Event> events;
  std::vector<std::pair<Log::Level, std::string>> lines;
  std::vector<std::string> calls;  // of the ports, e.g. "arena.create"
  core::Transitions journal;
  std::set<std::string> held_back;  // queues that do not run: "arena0", "keeper", "journal"
  std::map<DeviceUuid, std::uint64_t> driver_used_extra;
  std::vector<KeptEntry> KeeperList() const;
  // The keeper holds something that it was not given by this manager.
  void Plant(const KeptEntry& entry);
  // The keeper's close of an entry ends, for a Del that an earlier connection brought.
  void EndKept(const KeptName& name);
  std::deque<Worker>& workers() { return workers_; }
  std::size_t at_arena(const DeviceUuid& device) const { return arenas_.at(device).memory.size(); }
  std::size_t at_keeper() const { return kept_.size(); }
  // How many events of a kind came.
  template <typename Kind>
  int Count() const {
    int count = 0;
    for (const Event& event : events) count += std::holds_alternative<Kind>(event.kind) ? 1 : 0;
    return count;
  }
  template <typename Kind>
  const Kind& Last() const {
    const Kind* last = nullptr;
    for (const Event& event : events) {
      if (const Kind* kind = std::get_if<Kind>(&event.kind)) last = kind;
    }
    return *last;
  }

  // --- the ports ---
  absl::Time Now() override { return now_; }
  void After(absl::Duration delay, std::function<void()> fn) override;
  std::array<std::uint8_t, 16> Token() override { return {}; }
  void Create(const DeviceUuid& device, std::vector<ArenaChunk> chunks, std::uint32_t want_fds,
              std::function<void(absl::StatusOr<ArenaCreated>)> done) override;
  void Fetch(const DeviceUuid& device, std::vector<ChunkId> chunks,
             std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done) override;
  void Close(const DeviceUuid& device, std::vector<ChunkId> chunks,
             std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done) override;
  void Memory(const DeviceUuid& device, std::function<void(absl::StatusOr<ArenaMemory>)> done) override;
  void Put(const KeptEntry& entry, HandleFd fd, std::function<void(absl::Status)> done) override;
  void Get(const KeptName& name, std::function<void(absl::StatusOr<HandleFd>)> done) override;
  void Del(const KeptName& name, std::function<void(absl::Status)> done) override;
  void Record(core::Transitions moves, std::function<void(absl::Status)> done) override;
  absl::StatusOr<std::uint64_t> SendHandles(SessionId session, OutboundHandles handles) override;
  absl::Status SendFetchRefused(SessionId session, std::uint64_t request_id, const absl::Status& why) override;
  absl::Status SendFenced(SessionId session, core::QuarantineReason reason, std::string_view message) override;
  void Close(SessionId session) override;
  void Forget(SessionId session) override;
  void Publish(const Event& event) override { events.push_back(event); }
  void Write(Log::Level level, std::string_view message) override { lines.emplace_back(level, message); }
  void Close(int fd) override;

 private:
  // A command of another process: run there (true), or answered with an error because the process is gone (false).
  using Command = std::function<void(bool alive)>;
  struct Arena {
    bool running = false;
    bool end_told = true;  // a new one starts only after the manager heard of the old one's end
    std::string name;
    std::deque<Command> commands;
    std::map<ChunkId, MemoryPtr> memory;
  };
  using KeptKey = std::pair<std::array<std::uint8_t, 16>, std::uint64_t>;

  struct Kept {
    KeptEntry entry;
    MemoryPtr memory;
  };

  // Counts a port call; true when this very call is to fail.
  bool Call(const std::string& name);
  void Strand(std::function<void()> task) { strand_.push_back(std::move(task)); }
  HandleFd NewFd(const MemoryPtr& memory);
  Worker* Find(SessionId session);
  void Enqueue(const DeviceUuid& device, Command command);
  void EnqueueKeeper(std::function<void(const absl::Status& lost)> command);

  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::mt19937_64* random_ = nullptr;
  std::map<DeviceUuid, std::uint64_t> physical_;
  std::map<int, MemoryPtr> fds_;
  int next_fd_ = 100;
  std::size_t max_open_fds_ = 0;
  std::map<DeviceUuid, Arena> arenas_;
  bool keeper_up_ = false;
  bool keeper_loss_told_ = true;
  std::deque<std::function<void(const absl::Status& lost)>> keeper_commands_;
  std::map<KeptKey, Kept> kept_;
  std::deque<std::function<void()>> journal_commands_;
  std::deque<std::function<void()>> strand_;
  std::multimap<absl::Time, std::function<void()>> timed_;
  std::deque<Worker> workers_;
  Injection injection_ = Injection::kNone;
  int injection_in_ = 0;
  Worker* victim_ = nullptr;
  bool injected_ = false;
  bool unanswered_ = false;  // the keeper runs commands whose answers are lost
  std::unique_ptr<Manager> manager_;
};

}  // namespace gpumem::manager::testing

#endif  // GPUMEM_TESTS_UNIT_MANAGER_WORLD_H_
