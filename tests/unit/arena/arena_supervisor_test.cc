// The supervisor with real arena processes on the simulated driver; the truth is read from the simulated hardware.
#include "daemon/arena/arena_supervisor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "cuda/sim/config.h"
#include "cuda/sim/store.h"
#include "daemon/arena/fd_closer.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;
using manager::ArenaChunk;
using manager::ArenaCreated;
using manager::Bytes;
using manager::ChunkId;
using manager::HandleFd;

constexpr char kHost[] = TEST_BIN_DIR "/arena_keeper_host";
constexpr char kSimCuda[] = TEST_LIB_DIR "/gpumem-sim/libcuda.so.1";
constexpr std::uint64_t kChunk = 2u << 20;
constexpr std::uint64_t kCapacity = 1024 * kChunk;

class ArenaSupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char dir[] = "/dev/shm/gpumem-arena-XXXXXX";
    ASSERT_NE(::mkdtemp(dir), nullptr);
    dir_ = dir;
    config_ = simcuda::MakeConfig(2, kCapacity);
    std::string error;
    ASSERT_TRUE(simcuda::InitStateDir(dir_ + "/sim", config_, &error)) << error;
    device_ = config_.devices[0].uuid;
  }
  void TearDown() override {
    StopAll();
    std::filesystem::remove_all(dir_);
  }

  ArenaSupervisor::Options OptionsForSim() {
    ArenaSupervisor::Options options;
    options.loop = &loop_;
    options.fd_closer = &closer_;
    options.executable = kHost;
    options.driver = "sim";
    options.libcuda = kSimCuda;
    options.environment = {{"SIMCUDA_DIR", dir_ + "/sim"}};
    options.restart_first = std::chrono::milliseconds(5);
    // A sanitizer's work at exit must not be cut short, however slow the machine is.
    options.end_grace = std::chrono::minutes(5);
    options.on_ready = [this](const DeviceUuid& device, const ArenaInfo& info) {
      journal_.push_back("ready");
      ready_[device] = info;
    };
    options.on_ended = [this](const DeviceUuid& device, const std::string& how) {
      journal_.push_back("ended");
      ready_.erase(device);
      how_ = how;
    };
    options.log = [this](manager::Log::Level, const std::string& line) { log_.push_back(line); };
    return options;
  }
  void Start(ArenaSupervisor::Options options) {
    supervisor_ = std::make_unique<ArenaSupervisor>(std::move(options));
    supervisor_->AddDevice(device_);
    supervisor_->Start();
  }
  void StartAndWait() {
    Start(OptionsForSim());
    RunUntil([&] { return ready_.count(device_) == 1; });
  }
  void StopAll() {
    if (!supervisor_) return;
    bool done = false;
    supervisor_->Shutdown([&] { done = true; });
    RunUntil([&] { return done; });
    supervisor_.reset();
  }

  // The test's own timeout ends a wait that never ends.
  void RunUntil(const std::function<bool()>& condition) {
    while (!condition()) loop_.RunOnce(std::chrono::milliseconds(100));
  }

  static std::vector<ArenaChunk> Chunks(std::uint64_t first, std::size_t count, std::uint64_t bytes = kChunk) {
    std::vector<ArenaChunk> chunks;
    for (std::size_t i = 0; i < count; ++i) chunks.push_back(ArenaChunk{ChunkId(first + i), Bytes(bytes)});
    return chunks;
  }
  static std::vector<ChunkId> Ids(std::uint64_t first, std::size_t count) {
    std::vector<ChunkId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(ChunkId(first + i));
    return ids;
  }

  absl::StatusOr<ArenaCreated> Create(std::vector<ArenaChunk> chunks, std::uint32_t want_fds) {
    std::optional<absl::StatusOr<ArenaCreated>> result;
    supervisor_->Create(device_, std::move(chunks), want_fds,
                        [&](absl::StatusOr<ArenaCreated> r) { result = std::move(r); });
    EXPECT_FALSE(result.has_value()) << "a completion came from inside the call";
    RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }
  absl::StatusOr<std::vector<HandleFd>> Fetch(std::vector<ChunkId> chunks) {
    std::optional<absl::StatusOr<std::vector<HandleFd>>> result;
    supervisor_->Fetch(device_, std::move(chunks), [&](auto r) { result = std::move(r); });
    RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }
  absl::StatusOr<std::vector<absl::Status>> Close(std::vector<ChunkId> chunks) {
    std::optional<absl::StatusOr<std::vector<absl::Status>>> result;
    supervisor_->Close(device_, std::move(chunks), [&](auto r) { result = std::move(r); });
    RunUntil([&] { return result.has_value(); });
    return *std::move(result);
  }

  // Physical bytes of the device, as the simulated hardware has them. The front's closes run on a thread, so the truth
  // is waited for.
  std::uint64_t Physical() {
    std::vector<simcuda::DeviceTruth> devices;
    std::string error;
    EXPECT_TRUE(simcuda::ReadTruth(dir_ + "/sim", &devices, &error)) << error;
    return devices.empty() ? 0 : devices[0].physical_bytes;
  }
  void ExpectPhysical(std::uint64_t bytes) {
    RunUntil([&] { return Physical() == bytes; });
  }

  std::string dir_;
  simcuda::Config config_;
  DeviceUuid device_;
  EventLoop loop_;
  ThreadFdCloser closer_;
  std::vector<std::string> journal_;
  std::map<DeviceUuid, ArenaInfo> ready_;
  std::string how_;
  std::vector<std::string> log_;
  std::unique_ptr<ArenaSupervisor> supervisor_;
};

std::size_t OpenDescriptors(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_F(ArenaSupervisorTest, ReadySaysWhatTheDeviceIs) {
  StartAndWait();
  const ArenaInfo& info = ready_.at(device_);
  EXPECT_EQ(info.driver, WireDriver::kSim);
  EXPECT_EQ(info.total, Bytes(kCapacity));
  EXPECT_EQ(info.granularity, Bytes(kChunk));
  EXPECT_EQ(info.name, config_.devices[0].name);
}

TEST_F(ArenaSupervisorTest, OneArenaForEachDevice) {
  StartAndWait();
  const DeviceUuid other = config_.devices[1].uuid;
  supervisor_->AddDevice(other);
  RunUntil([&] { return ready_.count(other) == 1; });
  EXPECT_NE(supervisor_->Pid(device_), supervisor_->Pid(other));
  std::ifstream file("/proc/" + std::to_string(*supervisor_->Pid(other)) + "/environ");
  const std::string environment{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(environment.find("CUDA_VISIBLE_DEVICES=" + other.ToString()), std::string::npos);
}

TEST_F(ArenaSupervisorTest, CreateFetchClose) {
  StartAndWait();
  absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 3), 2);
  ASSERT_TRUE(created.ok()) << created.status();
  for (const absl::Status& chunk : created->chunks) EXPECT_TRUE(chunk.ok()) << chunk;
  EXPECT_EQ(created->chunks.size(), 3u);
  EXPECT_EQ(created->fds.size(), 2u);
  EXPECT_EQ(Physical(), 3 * kChunk);

  absl::StatusOr<std::vector<HandleFd>> fetched = Fetch(Ids(1, 3));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->size(), 3u);

  absl::StatusOr<std::vector<absl::Status>> closed = Close(Ids(1, 4));
  ASSERT_TRUE(closed.ok()) << closed.status();
  EXPECT_TRUE((*closed)[0].ok());
  EXPECT_EQ(core::ReasonOf((*closed)[3]), Reason::HANDLE_LOST);
  EXPECT_EQ(Physical(), 3 * kChunk);  // our copies of the fds are the memory now
  created = absl::CancelledError();
  fetched = absl::CancelledError();
  ExpectPhysical(0);
}

TEST_F(ArenaSupervisorTest, MoreChunksThanOneFrameHolds) {
  StartAndWait();
  const std::size_t count = 2 * kMaxChunksPerFrame + 10;
  const absl::StatusOr<ArenaCreated> created = Create(Chunks(1, count), kMaxChunksPerFrame + 5);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->chunks.size(), count);
  EXPECT_EQ(created->fds.size(), kMaxChunksPerFrame + 5);
  const absl::StatusOr<std::vector<HandleFd>> fetched = Fetch(Ids(1, count));
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->size(), count);
  const absl::StatusOr<std::vector<absl::Status>> closed = Close(Ids(1, count));
  ASSERT_TRUE(closed.ok());
  EXPECT_EQ(closed->size(), count);
}

TEST_F(ArenaSupervisorTest, OutOfMemoryIsToldApartAndStopsTheRest) {
  StartAndWait();
  const absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 3, kCapacity / 2), 3);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_TRUE(created->chunks[0].ok());
  EXPECT_TRUE(created->chunks[1].ok());
  EXPECT_EQ(core::ReasonOf(created->chunks[2]), Reason::DRIVER_OUT_OF_MEMORY);
  EXPECT_NE(created->chunks[2].message().find("CUDA_ERROR_OUT_OF_MEMORY"), absl::string_view::npos);
  EXPECT_EQ(created->fds.size(), 2u);
  const absl::StatusOr<ArenaCreated> more = Create(Chunks(10, 2), 0);
  ASSERT_TRUE(more.ok());
  EXPECT_EQ(core::ReasonOf(more->chunks[0]), Reason::DRIVER_OUT_OF_MEMORY);
  EXPECT_EQ(core::ReasonOf(more->chunks[1]), Reason::DRIVER_OUT_OF_MEMORY);
  EXPECT_EQ(Physical(), kCapacity);
}

TEST_F(ArenaSupervisorTest, ASizeThatTheDriverRefusesIsNotOutOfMemory) {
  StartAndWait();
  const absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 1, kChunk + 1), 0);
  ASSERT_TRUE(created.ok());
  EXPECT_EQ(core::ReasonOf(created->chunks[0]), Reason::DRIVER_FAILED);
  EXPECT_NE(created->chunks[0].message().find("cuMemCreate"), absl::string_view::npos);
}

TEST_F(ArenaSupervisorTest, AnArenaWithoutDescriptorsSaysSo) {
  StartAndWait();
  const pid_t pid = *supervisor_->Pid(device_);
  rlimit before{};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit tight{OpenDescriptors(pid) + 2, before.rlim_max};
  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &tight, nullptr), 0);
  const absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 8), 0);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(core::ReasonOf(created->chunks.back()), Reason::DESCRIPTORS) << created->chunks.back();
  std::size_t good = 0;
  for (const absl::Status& chunk : created->chunks) good += chunk.ok() ? 1 : 0;
  EXPECT_EQ(Physical(), good * kChunk);  // a failed export leaves nothing behind

  ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &before, nullptr), 0);
  const absl::StatusOr<ArenaCreated> again = Create(Chunks(20, 8), 0);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->chunks.back().ok()) << again->chunks.back();
}

TEST_F(ArenaSupervisorTest, AFrontWithoutDescriptorsTakesTheChunksBack) {
  StartAndWait();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{OpenDescriptors(::getpid()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 8), 8);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(created.ok()) << created.status();
  for (const absl::Status& chunk : created->chunks) EXPECT_EQ(core::ReasonOf(chunk), Reason::DESCRIPTORS) << chunk;
  EXPECT_TRUE(created->fds.empty());
  ExpectPhysical(0);
}

TEST_F(ArenaSupervisorTest, AFrontWithoutDescriptorsFetchesNothingAndTheArenaGoesOn) {
  StartAndWait();
  ASSERT_TRUE(Create(Chunks(1, 8), 0).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{OpenDescriptors(::getpid()) + 1, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  const absl::StatusOr<std::vector<HandleFd>> refused = Fetch(Ids(1, 8));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(core::ReasonOf(refused.status()), Reason::DESCRIPTORS) << refused.status();
  const absl::StatusOr<std::vector<HandleFd>> again = Fetch(Ids(1, 8));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->size(), 8u);
}

TEST_F(ArenaSupervisorTest, AnArenaThatDoesNotEndIsKilled) {
  ArenaSupervisor::Options options = OptionsForSim();
  options.end_grace = std::chrono::milliseconds(20);
  Start(std::move(options));
  RunUntil([&] { return ready_.count(device_) == 1; });
  ASSERT_EQ(::kill(*supervisor_->Pid(device_), SIGSTOP), 0);
  bool done = false;
  supervisor_->Shutdown([&] { done = true; });
  RunUntil([&] { return done && journal_.back() == "ended"; });
  EXPECT_NE(how_.find("signal 9"), std::string::npos) << how_;
  supervisor_.reset();
}

TEST_F(ArenaSupervisorTest, AKilledArenaAnswersEverythingThenEndsThenIsStartedAgain) {
  StartAndWait();
  ASSERT_TRUE(Create(Chunks(1, 4), 0).ok());
  EXPECT_EQ(Physical(), 4 * kChunk);
  const pid_t first = *supervisor_->Pid(device_);
  // Stopped, so that the calls are surely open when it is killed.
  ASSERT_EQ(::kill(first, SIGSTOP), 0);
  std::vector<absl::Status> ends;
  supervisor_->Create(device_, Chunks(10, 1), 1, [&](const auto& r) {
    journal_.push_back("answer");
    ends.push_back(r.status());
  });
  supervisor_->Fetch(device_, Ids(1, 1), [&](const auto& r) {
    journal_.push_back("answer");
    ends.push_back(r.status());
  });
  supervisor_->Close(device_, Ids(1, 1), [&](const auto& r) {
    journal_.push_back("answer");
    ends.push_back(r.status());
  });
  supervisor_->Memory(device_, [&](const auto& r) {
    journal_.push_back("answer");
    ends.push_back(r.status());
  });
  ASSERT_EQ(::kill(first, SIGKILL), 0);
  RunUntil([&] { return journal_.size() == 7; });
  EXPECT_EQ(journal_, (std::vector<std::string>{"ready", "answer", "answer", "answer", "answer", "ended", "ready"}));
  for (const absl::Status& end : ends) EXPECT_EQ(core::ReasonOf(end), Reason::DEVICE_UNAVAILABLE) << end;
  EXPECT_NE(how_.find("signal 9"), std::string::npos) << how_;
  EXPECT_NE(*supervisor_->Pid(device_), first);
  EXPECT_EQ(Physical(), 0u);
  EXPECT_TRUE(Create(Chunks(20, 1), 1).ok());
}

TEST_F(ArenaSupervisorTest, DeliveredDescriptorsOutliveTheArena) {
  StartAndWait();
  absl::StatusOr<ArenaCreated> created = Create(Chunks(1, 4), 1);
  ASSERT_TRUE(created.ok());
  ASSERT_EQ(::kill(*supervisor_->Pid(device_), SIGKILL), 0);
  RunUntil([&] { return journal_.size() == 3; });
  EXPECT_EQ(Physical(), kChunk);
  created = absl::CancelledError();
  ExpectPhysical(0);
}

TEST_F(ArenaSupervisorTest, CallsWithoutAnArenaAreAnsweredAtOnce) {
  StartAndWait();
  EXPECT_TRUE(Create({}, 0).ok());  // nothing asked, nothing sent
  std::optional<absl::Status> unknown;
  const DeviceUuid stranger(DeviceUuid::Kind::kMig, {});
  supervisor_->Memory(stranger, [&](const auto& r) { unknown = r.status(); });
  RunUntil([&] { return unknown.has_value(); });
  EXPECT_EQ(core::ReasonOf(*unknown), Reason::UNKNOWN_DEVICE);

  bool done = false;
  supervisor_->Shutdown([&] { done = true; });
  RunUntil([&] { return done; });
  EXPECT_EQ(core::ReasonOf(Fetch(Ids(1, 1)).status()), Reason::DEVICE_UNAVAILABLE);
  EXPECT_EQ(supervisor_->Pid(device_), std::nullopt);
  supervisor_.reset();
}

TEST_F(ArenaSupervisorTest, MemoryIsReadOrNotKnownButNeverDerived) {
  StartAndWait();
  ASSERT_TRUE(Create(Chunks(1, 4), 0).ok());
  std::optional<absl::StatusOr<manager::ArenaMemory>> memory;
  supervisor_->Memory(device_, [&](const auto& r) { memory = r; });
  RunUntil([&] { return memory.has_value(); });
  if (ready_.at(device_).memory_readings) {
    ASSERT_TRUE(memory->ok()) << memory->status();
    EXPECT_EQ((*memory)->total, Bytes(kCapacity));
    EXPECT_GE((*memory)->used, Bytes(4 * kChunk));
  } else {
    EXPECT_EQ(core::ReasonOf(memory->status()), Reason::DRIVER_FAILED);
    EXPECT_NE(memory->status().message().find("not known"), absl::string_view::npos);
  }
}

TEST_F(ArenaSupervisorTest, AnArenaThatCannotStartSaysWhyAndIsTriedAgain) {
  ArenaSupervisor::Options options = OptionsForSim();
  options.libcuda = "/nowhere/libcuda.so.1";
  Start(std::move(options));
  const auto failures = [&] {
    return std::count_if(log_.begin(), log_.end(), [](const std::string& line) {
      return line.find("/nowhere/libcuda.so.1") != std::string::npos &&
             line.find("ended: exit code 1") != std::string::npos;
    });
  };
  RunUntil([&] { return failures() >= 2; });
  EXPECT_TRUE(journal_.empty());
  const absl::Status why = Fetch(Ids(1, 1)).status();
  EXPECT_EQ(core::ReasonOf(why), Reason::DEVICE_UNAVAILABLE);
}

TEST_F(ArenaSupervisorTest, AnArenaEndsWhenItsFrontIsGone) {
  StartAndWait();
  ASSERT_TRUE(Create(Chunks(1, 4), 0).ok());
  StopAll();
  EXPECT_EQ(Physical(), 0u);
  EXPECT_EQ(journal_.back(), "ended");
  EXPECT_EQ(how_, "exit code 0");
}

}  // namespace
}  // namespace gpumem::arena
