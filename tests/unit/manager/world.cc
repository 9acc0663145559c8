// tests/unit/manager/world.cc: the simulated node.
#include "tests/unit/manager/world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/text.h"

namespace gpumem::manager::testing {

using core::Error;
using core::Reason;

namespace {

absl::Status ArenaGone(const DeviceUuid& device) {
  return Error(Reason::DEVICE_UNAVAILABLE, Cat("the arena of ", device.ToString(), " is not running"));
}
// As the real keeper answers (daemon/keeper/keeper_wire.h).
absl::Status NotKept() { return Error(Reason::HANDLE_LOST, "the keeper holds no handle under that id"); }
absl::Status KeeperGone() { return Error(Reason::KEEPER_UNAVAILABLE, "the keeper is not connected"); }

}  // namespace

DeviceUuid TestDevice(std::uint8_t n) {
  DeviceUuid::Raw raw{};
  raw[15] = n;
  return DeviceUuid(DeviceUuid::Kind::kGpu, raw);
}

World::Block::Block(World* world_in, const DeviceUuid& device_in, std::uint64_t bytes_in)
    : world(world_in), device(device_in), bytes(bytes_in) {
  world->physical_[device] += bytes;
}
World::Block::~Block() { world->physical_[device] -= bytes; }

World::World(const Setup& setup) {
  Options options = setup.options;
  if (options.instance == std::array<std::uint8_t, 16>{}) options.instance.fill(7);
  Ports ports;
  ports.clock = this;
  ports.timers = this;
  ports.random = this;
  ports.arenas = this;
  ports.keeper = this;
  ports.journal = this;
  ports.channels = this;
  ports.events = this;
  ports.log = this;
  manager_ = std::make_unique<Manager>(options, ports);
  for (int i = 0; i < setup.devices; ++i) {
    const DeviceUuid device = TestDevice(static_cast<std::uint8_t>(i));
    arenas_[device].name = Cat("arena", i);
    EXPECT_TRUE(
        manager_
            ->AddDevice({device, Cat("simulated ", i), Bytes(setup.capacity), Bytes(setup.headroom), Bytes(kGranule)})
            .ok());
    if (setup.start) StartArena(device);
  }
  if (setup.start) StartKeeper();
  RunUntilIdle();
}

World::~World() = default;

// --- running ------------------------------------------------------------------------------------------------------

bool World::Step() {
  std::vector<std::function<void()>> ready;
  const auto take = [&ready](auto* queue, auto run) {
    if (queue->empty()) return;
    ready.push_back([queue, run] {
      auto task = std::move(queue->front());
      queue->pop_front();
      run(task);
    });
  };
  take(&strand_, [](auto& task) { task(); });
  if (!held_back.contains("journal")) take(&journal_commands_, [](auto& task) { task(); });
  for (auto& [device, arena] : arenas_) {
    if (!held_back.contains(arena.name)) take(&arena.commands, [](auto& task) { task(true); });
  }
  if (!held_back.contains("keeper")) take(&keeper_commands_, [](auto& task) { task(absl::OkStatus()); });
  if (ready.empty()) return false;
  ready[random_ == nullptr ? 0 : (*random_)() % ready.size()]();
  return true;
}

void World::RunUntilIdle() {
  while (Step()) {
  }
}

void World::Advance(absl::Duration by) {
  const absl::Time until = now_ + by;
  while (!timed_.empty() && timed_.begin()->first <= until) {
    const auto first = timed_.begin();
    now_ = first->first;
    Strand(std::move(first->second));
    timed_.erase(first);
    RunUntilIdle();
  }
  now_ = until;
}

void World::After(absl::Duration delay, std::function<void()> fn) {
  if (delay <= absl::ZeroDuration()) {
    Strand(std::move(fn));
  } else {
    timed_.emplace(now_ + delay, std::move(fn));
  }
}

// --- workers ------------------------------------------------------------------------------------------------------

World::Worker* World::ConnectSoon(const std::string& name) {
  const absl::StatusOr<SessionId> session = manager_->OpenSession(
      {.pid = static_cast<std::int64_t>(1000 + workers_.size()), .uid = 1, .gid = 1, .comm = name});
  if (!session.ok()) return nullptr;
  Worker& worker = workers_.emplace_back();
  worker.session = *session;
  manager_->RegisterHolder(worker.session, worker.next_request++, name, core::Role::kKvCache,
                           [&worker](const absl::StatusOr<HolderId>& holder) {
                             if (holder.ok()) worker.holder = *holder;
                           });
  return &worker;
}

World::Worker& World::Connect(const std::string& name) {
  Worker* worker = ConnectSoon(name);
  EXPECT_NE(worker, nullptr);
  RunUntilIdle();
  return *worker;
}

void World::ReceiveAll(Worker& worker, core::Access access) {
  while (!worker.inbox.empty()) {
    const Frame frame = std::move(worker.inbox.front());
    worker.inbox.pop_front();
    for (std::size_t i = 0; i < frame.chunks.size(); ++i) worker.imports[frame.chunks[i].chunk] = frame.memory[i];
    if (!worker.socket_open) continue;  // what was queued can still be read, but not answered
    manager_->OnAcknowledge(worker.session, frame.sequence, std::vector<bool>(frame.chunks.size(), true), access);
  }
}

void World::DropImports(Worker& worker, const std::vector<ChunkId>& chunks) {
  for (const ChunkId chunk : chunks) worker.imports.erase(chunk);
}

void World::Kill(Worker& worker, bool child_lives) {
  if (worker.socket_open) {
    worker.socket_open = false;
    Strand([this, id = worker.session] { manager_->OnSocketClosed(id); });
  }
  if (!worker.pidfd_told) {
    worker.pidfd_told = true;
    Strand([this, id = worker.session] { manager_->OnPidfdReadable(id); });
  }
  if (!child_lives) EndChild(worker);
}

void World::EndChild(Worker& worker) {
  worker.imports.clear();
  worker.inbox.clear();  // its end of the socket is gone
  if (worker.witness_told) return;
  worker.witness_told = true;
  Strand([this, id = worker.session] { manager_->OnWitnessClosed(id); });
}

World::Worker* World::Find(SessionId session) {
  for (Worker& worker : workers_) {
    if (worker.session == session) return &worker;
  }
  return nullptr;
}

// --- other processes -----------------------------------------------------------------------------------------------

void World::EndArena(const DeviceUuid& device) {
  Arena& arena = arenas_.at(device);
  if (!arena.running) return;
  arena.running = false;
  arena.memory.clear();
  for (Command& command : std::exchange(arena.commands, {})) command(false);
  Strand([this, device] {
    arenas_.at(device).end_told = true;
    manager_->OnArenaEnded(device, "killed by signal 9");
  });
}

void World::StartArena(const DeviceUuid& device) {
  Strand([this, device] {
    Arena& arena = arenas_.at(device);
    if (arena.running || !arena.end_told) return;
    arena.running = true;
    arena.end_told = false;
    manager_->OnArenaReady(device);
  });
}

void World::LoseKeeper(std::size_t executed, bool memory_lost) {
  if (!keeper_up_) return;
  keeper_up_ = false;
  unanswered_ = true;
  for (auto& command : std::exchange(keeper_commands_, {})) {
    command(executed > 0 ? absl::OkStatus() : KeeperGone());
    if (executed > 0) --executed;
  }
  unanswered_ = false;
  if (memory_lost) kept_.clear();
  Strand([this] {
    keeper_loss_told_ = true;
    manager_->OnKeeperLost("the connection closed");
  });
}

void World::StartKeeper() {
  Strand([this] {
    if (keeper_up_ || !keeper_loss_told_) return;
    keeper_up_ = true;
    keeper_loss_told_ = false;
    manager_->OnKeeperReady(KeeperList());
  });
}

std::vector<KeptEntry> World::KeeperList() const {
  std::vector<KeptEntry> list;
  for (const auto& [key, kept] : kept_) list.push_back(kept.entry);
  return list;
}

void World::Plant(const KeptEntry& entry) {
  kept_[{entry.name.ledger, entry.name.id}] = {entry, std::make_shared<Block>(this, entry.device, entry.bytes.value())};
}

void World::EndKept(const KeptName& name) { EXPECT_EQ(kept_.erase({name.ledger, name.id}), 1u); }

// --- faults --------------------------------------------------------------------------------------------------------

void World::InjectAt(Injection what, int nth, Worker* victim) {
  injection_ = what;
  injection_in_ = nth;
  victim_ = victim;
  injected_ = false;
}

bool World::Call(const std::string& name) {
  calls.push_back(name);
  if (injection_ == Injection::kNone || --injection_in_ != 0) return false;
  injected_ = true;
  switch (std::exchange(injection_, Injection::kNone)) {
    case Injection::kNone:
      break;
    case Injection::kFail:
      return true;
    case Injection::kKill:
      Strand([this] { Kill(*victim_); });
      break;
    case Injection::kFault:
      Strand([this] {
        manager_->ReportFault(victim_->session, 1u << 20, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "", ""},
                              [](const absl::StatusOr<Bytes>&) {});
      });
      break;
    case Injection::kSocket:
      Strand([this] {
        victim_->socket_open = false;
        manager_->OnSocketClosed(victim_->session);
      });
      break;
    case Injection::kArenaEnd:
      Strand([this] { EndArena(TestDevice(0)); });
      break;
    case Injection::kKeeperEnd:
      Strand([this] { LoseKeeper(/*executed=*/1000, /*memory_lost=*/false); });
      break;
    case Injection::kKeeperRestart:
      Strand([this] { LoseKeeper(/*executed=*/0, /*memory_lost=*/true); });
      break;
  }
  return false;
}

// --- truth ---------------------------------------------------------------------------------------------------------

std::uint64_t World::physical(const DeviceUuid& device) const {
  const auto it = physical_.find(device);
  return it == physical_.end() ? 0 : it->second;
}

std::string World::Check() const {
  if (const absl::Status status = books().Verify(); !status.ok()) return Cat("Verify: ", status.message());
  // Of a segment whose handles are gone, the books cannot know which chunks its readers really imported.
  std::map<DeviceUuid, std::uint64_t> slack;
  for (const core::QuarantineRow& row : books().Quarantine(core::QuarantineId(), 1u << 30)) {
    if (row.reason == core::QuarantineReason::kKeptFdMissing) slack[row.device] += row.bytes.value();
  }
  // While the keeper is away, the books must go on counting what it held: only its list can tell.
  for (const ChunkId chunk : keeper_up_ ? std::vector<ChunkId>() : books().ReferencedByKeeper()) {
    const core::ChunkView view = *books().Chunk(chunk);
    slack[view.device] += view.bytes.value();
  }
  for (const core::DeviceRow& row : books().Devices()) {
    const std::uint64_t truth = physical(row.device);
    const std::uint64_t booked = row.physical.value();
    if (booked < truth || booked - truth > slack[row.device]) {
      return Cat(row.device.ToString(), ": the books say ", booked, " physical bytes, the hardware ", truth);
    }
    if (row.charged < row.physical) return Cat(row.device.ToString(), ": charged less than physical");
  }
  if (!fds_.empty()) return Cat("the front still holds ", fds_.size(), " fds");
  return "";
}

// --- the ports -----------------------------------------------------------------------------------------------------

HandleFd World::NewFd(const MemoryPtr& memory) {
  const int fd = next_fd_++;
  fds_[fd] = memory;
  max_open_fds_ = std::max(max_open_fds_, fds_.size());
  return HandleFd(fd, this);
}

void World::Close(int fd) { EXPECT_EQ(fds_.erase(fd), 1u) << "fd " << fd << " closed twice"; }

void World::Enqueue(const DeviceUuid& device, Command command) {
  Arena& arena = arenas_.at(device);
  if (arena.running) {
    arena.commands.push_back(std::move(command));
  } else {
    command(false);
  }
}

void World::Create(const DeviceUuid& device, std::vector<ArenaChunk> chunks, std::uint32_t want_fds,
                   std::function<void(absl::StatusOr<ArenaCreated>)> done) {
  const bool fail = Call("arena.create");
  Enqueue(device, [this, device, chunks, want_fds, fail, done = std::move(done)](bool alive) {
    if (!alive) return Strand([done, device] { done(ArenaGone(device)); });
    auto answer = std::make_shared<ArenaCreated>();
    bool complete = true;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const bool refuse = create_limit == 0 || (fail && i == chunks.size() / 2);
      if (create_limit > 0) --create_limit;
      if (refuse) {
        answer->chunks.push_back(Error(create_reason, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"));
        complete = false;
        continue;
      }
      EXPECT_FALSE(arenas_.at(device).memory.contains(chunks[i].chunk));
      auto memory = std::make_shared<Block>(this, device, chunks[i].bytes.value());
      arenas_.at(device).memory[chunks[i].chunk] = memory;
      if (short_create && i + 1 == chunks.size()) break;
      answer->chunks.push_back(absl::OkStatus());
      if (complete && i < want_fds) answer->fds.push_back(NewFd(memory));
    }
    Strand([done, answer] { done(std::move(*answer)); });
  });
}

void World::Fetch(const DeviceUuid& device, std::vector<ChunkId> chunks,
                  std::function<void(absl::StatusOr<std::vector<HandleFd>>)> done) {
  const bool fail = Call("arena.fetch");
  Enqueue(device, [this, device, chunks, fail, done = std::move(done)](bool alive) {
    if (!alive) return Strand([done, device] { done(ArenaGone(device)); });
    auto fds = std::make_shared<std::vector<HandleFd>>();
    absl::Status status;
    if (fail) status = Error(Reason::DESCRIPTORS, "dup: too many open files");
    for (const ChunkId chunk : chunks) {
      const auto it = arenas_.at(device).memory.find(chunk);
      if (it == arenas_.at(device).memory.end()) status = Error(Reason::HANDLE_LOST, "the arena has no such chunk");
      if (status.ok()) fds->push_back(NewFd(it->second));
    }
    Strand([done, fds, status] {
      if (status.ok()) return done(std::move(*fds));
      fds->clear();
      done(status);
    });
  });
}

void World::Close(const DeviceUuid& device, std::vector<ChunkId> chunks,
                  std::function<void(absl::StatusOr<std::vector<absl::Status>>)> done) {
  const bool fail = Call("arena.close") || fail_close;
  Enqueue(device, [this, device, chunks, fail, done = std::move(done)](bool alive) {
    if (!alive) return Strand([done, device] { done(ArenaGone(device)); });
    std::vector<absl::Status> answer;
    for (const ChunkId chunk : chunks) {
      if (fail) {
        answer.push_back(Error(Reason::DRIVER_FAILED, "close: EIO"));
        continue;
      }
      EXPECT_EQ(arenas_.at(device).memory.erase(chunk), 1u) << "chunk " << chunk << " closed twice at its arena";
      answer.push_back(absl::OkStatus());
    }
    Strand([done, answer] { done(answer); });
  });
}

void World::Memory(const DeviceUuid& device, std::function<void(absl::StatusOr<ArenaMemory>)> done) {
  calls.push_back("arena.memory");
  Enqueue(device, [this, device, done = std::move(done)](bool alive) {
    if (!alive) return Strand([done, device] { done(ArenaGone(device)); });
    const ArenaMemory memory{Bytes(1u << 30), Bytes(physical(device) + driver_used_extra[device])};
    Strand([done, memory] { done(memory); });
  });
}

void World::EnqueueKeeper(std::function<void(const absl::Status& lost)> command) {
  if (keeper_up_) {
    keeper_commands_.push_back(std::move(command));
  } else {
    command(KeeperGone());
  }
}

void World::Put(const KeptEntry& entry, HandleFd fd, std::function<void(absl::Status)> done) {
  const bool fail = Call("keeper.put") || fail_put_after == 0;
  if (fail_put_after > 0) --fail_put_after;
  const MemoryPtr memory = fds_.at(fd.get());  // in the message to the keeper; the front's own fd is closed now
  EnqueueKeeper([this, entry, memory, fail, done = std::move(done)](const absl::Status& lost) {
    absl::Status status = lost;
    if (lost.ok() && fail) status = Error(Reason::DESCRIPTORS, "the keeper is out of file descriptors");
    if (status.ok()) {
      const bool stored = kept_.emplace(KeptKey(entry.name.ledger, entry.name.id), Kept{entry, memory}).second;
      EXPECT_TRUE(stored) << "stored twice under one name";
    }
    if (unanswered_) status = KeeperGone();
    Strand([done, status] { done(status); });
  });
}

void World::Get(const KeptName& name, std::function<void(absl::StatusOr<HandleFd>)> done) {
  const bool fail = Call("keeper.get");
  EnqueueKeeper([this, name, fail, done = std::move(done)](const absl::Status& lost) {
    const auto it = kept_.find({name.ledger, name.id});
    absl::Status status = unanswered_ ? KeeperGone() : lost;
    if (status.ok() && fail) status = Error(Reason::DESCRIPTORS, "the keeper is out of file descriptors");
    if (status.ok() && it == kept_.end()) status = NotKept();
    auto fd = std::make_shared<HandleFd>();
    if (status.ok()) *fd = NewFd(it->second.memory);
    Strand([done, fd, status] {
      if (status.ok()) return done(std::move(*fd));
      done(status);
    });
  });
}

void World::Del(const KeptName& name, std::function<void(absl::Status)> done) {
  const bool fail = Call("keeper.del") || fail_del;
  EnqueueKeeper([this, name, fail, done = std::move(done)](const absl::Status& lost) {
    absl::Status status = lost;
    if (lost.ok() && fail) status = Error(Reason::INTERNAL, "the keeper could not close it");
    if (status.ok() && kept_.erase({name.ledger, name.id}) == 0) status = NotKept();
    if (unanswered_) status = KeeperGone();
    Strand([done, status] { done(status); });
  });
}

void World::Record(core::Transitions moves, std::function<void(absl::Status)> done) {
  const bool fail = Call("journal.record") || fail_journal;
  journal.insert(journal.end(), moves.begin(), moves.end());
  journal_commands_.push_back([this, fail, done = std::move(done)] {
    Strand([fail, done] { done(fail ? Error(Reason::INTERNAL, "the journal's disk is full") : absl::OkStatus()); });
  });
}

absl::StatusOr<std::uint64_t> World::SendHandles(SessionId session, OutboundHandles handles) {
  const bool fail = Call("channel.send");
  EXPECT_LE(handles.fds.size(), wire::kMaxFdsPerFrame);
  EXPECT_EQ(handles.fds.size(), handles.chunks.size());
  Worker* worker = Find(session);
  if (worker == nullptr || !worker->socket_open) return absl::UnavailableError("no socket");
  if (fail || socket_room == 0) return absl::ResourceExhaustedError("the socket is full");
  if (socket_room > 0) --socket_room;
  Frame frame;
  frame.sequence = worker->next_sequence++;
  frame.request_id = handles.request_id;
  frame.lease = handles.lease;
  frame.chunks = handles.chunks;
  for (const HandleFd& fd : handles.fds) frame.memory.push_back(fds_.at(fd.get()));
  worker->inbox.push_back(frame);
  return frame.sequence;
}

absl::Status World::SendFetchRefused(SessionId session, std::uint64_t request_id, const absl::Status& why) {
  Worker* worker = Find(session);
  if (worker == nullptr || !worker->socket_open) return absl::UnavailableError("no socket");
  worker->refusals.push_back({request_id, why});
  return absl::OkStatus();
}

absl::Status World::SendFenced(SessionId session, core::QuarantineReason reason, std::string_view) {
  Worker* worker = Find(session);
  if (worker == nullptr || !worker->socket_open) return absl::UnavailableError("no socket");
  worker->fences.push_back(reason);
  return absl::OkStatus();
}

void World::Close(SessionId session) {
  calls.push_back("channel.close");
  Worker* worker = Find(session);
  if (worker != nullptr) worker->socket_open = false;
}

void World::Forget(SessionId session) {
  Worker* worker = Find(session);
  if (worker == nullptr) return;
  EXPECT_FALSE(worker->forgotten);
  worker->forgotten = true;
}

}  // namespace gpumem::manager::testing
