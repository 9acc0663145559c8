// The whole library through its C++ layer, on the simulated driver, against a daemon that the test plays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "cuda/kernels.h"
#include "gpumem/gpumem.hpp"
#include "tests/unit/client/fake_daemon.h"

namespace gpumem::client_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::SizeIs;
using namespace std::chrono_literals;  // NOLINT: durations in tests

constexpr std::uint64_t kChunk = FakeDaemon::kChunkBytes;

ConnectOptions OptionsFor(const std::string& socket_dir) {
  ConnectOptions options;
  options.socket_dir = socket_dir;
  options.client_name = "test";
  options.libcuda_path = Machine::Get().library;
  options.timeout_ms = 20'000;
  return options;
}

class ClientTest : public testing::Test {
 protected:
  ClientTest() : physical_before_(Machine::Get().PhysicalBytes()) { Connect(); }

  void Connect(std::uint32_t timeout_ms = 20'000) {
    ConnectOptions options = OptionsFor(daemon_.socket_dir());
    options.timeout_ms = timeout_ms;
    auto connected = Client::Connect(options);
    ASSERT_TRUE(connected.ok()) << connected.status().ToString();
    client_ = *std::move(connected);
  }
  Result<Lease> Allocate(std::uint32_t count) {
    return client_.Allocate(42, {{daemon_.device_uuid(), kChunk - 1, count}});
  }
  std::uint64_t Physical() const { return Machine::Get().PhysicalBytes() - physical_before_; }
  static void UseContext() {
    cuda::Driver& driver = *Machine::Get().driver;
    CUcontext context = nullptr;
    ASSERT_EQ(driver.DevicePrimaryCtxRetain(&context, Machine::Get().devices[0].ordinal), CUDA_SUCCESS);
    ASSERT_EQ(driver.CtxSetCurrent(context), CUDA_SUCCESS);
  }
  // The daemon reads its frames on threads of its own.
  static void Eventually(const std::function<bool()>& holds) {
    for (int i = 0; i < 20'000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(holds());
  }

  FakeDaemon daemon_;
  const std::uint64_t physical_before_;
  Client client_;
};

TEST_F(ClientTest, SessionAndDevices) {
  const auto session = client_.Session();
  ASSERT_TRUE(session.ok());
  EXPECT_GT(session->session_id, 0u);
  EXPECT_EQ(std::string(session->instance), "abababababababababababababababab");
  EXPECT_STREQ(session->daemon_version, "9.9.9");
  EXPECT_STREQ(session->driver, "sim");
  EXPECT_STREQ(session->tenant, "default");
  const auto devices = client_.Devices();
  ASSERT_TRUE(devices.ok());
  ASSERT_THAT(*devices, SizeIs(2));
  EXPECT_EQ((*devices)[1].uuid, daemon_.device_uuid(1));
  EXPECT_EQ((*devices)[1].ordinal, Machine::Get().devices[1].ordinal);
  EXPECT_EQ((*devices)[0].granularity_bytes, kChunk);
  EXPECT_EQ(*client_.RegisterHolder("kv", Role::kKvCache), 42u);
}

TEST_F(ClientTest, LeaseFromGrantToRelease) {
  auto lease = Allocate(7);
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  Eventually([this] { return daemon_.acknowledged() == 7; });
  EXPECT_EQ(Physical(), 7 * kChunk);
  auto info = lease->Info();
  EXPECT_EQ(info->bytes, 7 * kChunk);
  EXPECT_EQ(info->chunk_count, 7u);
  EXPECT_EQ(info->address, 0u);
  EXPECT_EQ(info->access, static_cast<std::uint32_t>(GPUMEM_ACCESS_NONE));
  const auto address = lease->Map();
  ASSERT_TRUE(address.ok()) << address.status().ToString();
  EXPECT_EQ(lease->Info()->address, *address);
  UseContext();
  cuda::Driver& driver = *Machine::Get().driver;
  EXPECT_EQ(driver.MemsetD8(*address, 0x5a, 7 * kChunk), CUDA_SUCCESS);
  unsigned char last = 0;
  EXPECT_EQ(driver.MemcpyDtoH(&last, *address + 7 * kChunk - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(last, 0x5a);
  EXPECT_EQ(lease->Map().status().reason(), GPUMEM_ALREADY_MAPPED);
  ASSERT_TRUE(lease->Unmap({nullptr}).ok());
  EXPECT_EQ(lease->Unmap().reason(), GPUMEM_NOT_MAPPED);
  ASSERT_TRUE(lease->Map(Access::kReadOnly).ok());
  EXPECT_TRUE(lease->Release().ok());
  EXPECT_FALSE(*lease);
  EXPECT_EQ(lease->Release().reason(), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(Physical(), 0u);
  const auto releases = daemon_.releases();
  ASSERT_THAT(releases, SizeIs(1));
  EXPECT_THAT(releases[0].outcomes(), testing::ElementsAre(v1::OUTCOME_UNMAPPED));
  Eventually([this] { return daemon_.mappings().size() == 3; });
  EXPECT_EQ(daemon_.mappings()[0].access, wire::MappedAccess::kReadWrite);
  EXPECT_EQ(daemon_.mappings()[0].count, 7u);
  EXPECT_EQ(daemon_.mappings()[1].access, wire::MappedAccess::kNone);
  EXPECT_EQ(daemon_.mappings()[2].access, wire::MappedAccess::kReadOnly);
}

TEST_F(ClientTest, WhatIsNotPushedIsFetched) {
  daemon_.push_at_most = 2;
  const auto lease = Allocate(11);
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  Eventually([this] { return daemon_.acknowledged() == 11; });
}

TEST_F(ClientTest, DestroyingALeaseReleasesIt) {
  ASSERT_TRUE(Allocate(2).ok());
  EXPECT_THAT(daemon_.releases(), SizeIs(1));
  EXPECT_EQ(Physical(), 0u);
}

TEST_F(ClientTest, AnImportThatFailsAnywhereLeavesNothing) {
  const std::size_t descriptors = OpenDescriptors();
  for (int k = 0; k < 6; ++k) {
    daemon_.bad_chunk = k;
    daemon_.push_at_most = k % 2 == 0 ? 6 : 1;
    const auto lease = Allocate(6);
    EXPECT_EQ(lease.status().reason(), GPUMEM_CUDA) << k;
    EXPECT_THAT(lease.status().message(), HasSubstr("chunk " + std::to_string(k)));
    EXPECT_NE(lease.status().cuda_error(), 0);
    EXPECT_THAT(daemon_.releases(), SizeIs(k + 1));
    EXPECT_EQ(Physical(), 0u);
  }
  daemon_.bad_chunk = -1;
  EXPECT_TRUE(Allocate(6).ok());
  EXPECT_LE(OpenDescriptors(), descriptors + 2);  // the connection of the first call, both ends in this process
}

TEST_F(ClientTest, AMappingThatFailsAnywhereLeavesNothingMapped) {
  for (int k = 0; k < 4; ++k) {
    daemon_.oversize_chunk = k;
    auto lease = Allocate(4);
    ASSERT_TRUE(lease.ok());
    const auto address = lease->Map();
    EXPECT_EQ(address.status().reason(), GPUMEM_CUDA);
    EXPECT_THAT(address.status().message(), HasSubstr("cuMemMap of chunk " + std::to_string(k)));
    EXPECT_EQ(lease->Info()->address, 0u);
    EXPECT_TRUE(lease->Release().ok());
    EXPECT_EQ(Physical(), 0u);
  }
}

TEST_F(ClientTest, AHandleOfAnotherChunkIsRefused) {
  using Lie = FakeDaemon::Lie;
  std::size_t refused = 0;
  for (const Lie lie : {Lie::kId, Lie::kGeneration, Lie::kBytes, Lie::kLease, Lie::kIndex, Lie::kTwice}) {
    daemon_.lie = lie;
    EXPECT_EQ(Allocate(2).status().reason(), GPUMEM_PROTOCOL) << static_cast<int>(lie);
    EXPECT_THAT(daemon_.releases(), SizeIs(++refused));
    EXPECT_EQ(Physical(), 0u);
  }
  daemon_.lie = Lie::kNone;
  EXPECT_TRUE(Allocate(2).ok());
}

TEST_F(ClientTest, OnlyWhatWasImportedIsAcknowledged) {
  daemon_.bad_chunk = 2;
  EXPECT_EQ(Allocate(6).status().reason(), GPUMEM_CUDA);
  Eventually([this] { return daemon_.acknowledged() == 2; });  // chunks 0 and 1: the import of 2 failed
}

TEST_F(ClientTest, AMappingThatTheDaemonDoesNotHearOfIsUndone) {
  Connect(50);
  auto lease = Allocate(1);
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  daemon_.deaf = true;
  gpumem_reason reason = GPUMEM_OK;
  for (int i = 0; i < 10'000 && reason == GPUMEM_OK; ++i) {  // until the socket is full
    reason = lease->Map().status().reason();
    if (reason == GPUMEM_OK) (void)lease->Unmap();
  }
  EXPECT_EQ(reason, GPUMEM_DEADLINE);
  EXPECT_EQ(lease->Map().status().reason(), GPUMEM_DEADLINE) << "and not mapped already";
  daemon_.deaf = false;
}

TEST_F(ClientTest, ADaemonOfAnotherProtocolOrDriverIsRefused) {
  daemon_.protocol = 2;
  EXPECT_EQ(Client::Connect(OptionsFor(daemon_.socket_dir())).status().reason(), GPUMEM_VERSION_MISMATCH);
  daemon_.protocol = 1;
  daemon_.other_driver = true;
  EXPECT_EQ(Client::Connect(OptionsFor(daemon_.socket_dir())).status().reason(), GPUMEM_DRIVER_MISMATCH);
}

TEST_F(ClientTest, WantedAddress) {
  auto first = Allocate(1);
  auto second = Allocate(1);
  const auto address = first->Map();
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(second->Map(Access::kReadWrite, *address).status().reason(), GPUMEM_ADDRESS_TAKEN);
  ASSERT_TRUE(first->Unmap().ok());
  const auto there = second->Map(Access::kReadWrite, *address);
  ASSERT_TRUE(there.ok()) << there.status().ToString();
  EXPECT_EQ(*there, *address);
}

TEST_F(ClientTest, ADeviceThatIsNotVisibleIsNamedBeforeAnythingIsAsked) {
  daemon_.invisible = true;
  Connect();
  EXPECT_EQ(client_.Devices()->at(2).ordinal, -1);
  const std::size_t asked = daemon_.request_ids().size();
  const auto lease = client_.Allocate(42, {{daemon_.device_uuid(), kChunk, 1}, {daemon_.other_uuid(), kChunk, 1}});
  EXPECT_EQ(lease.status().reason(), GPUMEM_DEVICE_NOT_VISIBLE);
  EXPECT_THAT(lease.status().message(), HasSubstr(daemon_.other_uuid()));
  EXPECT_THAT(lease.status().message(), HasSubstr(daemon_.device_uuid(1)));
  EXPECT_EQ(client_.Allocate(42, {{"0", kChunk, 1}}).status().reason(), GPUMEM_UNKNOWN_DEVICE);
  EXPECT_EQ(daemon_.request_ids().size(), asked);
}

TEST_F(ClientTest, SegmentFromBuildToDetach) {
  daemon_.refuse_seals = 1;
  auto lease = client_.BuildSegment(42, "models/m", {{daemon_.device_uuid(), kChunk, 5}});
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  const auto address = lease->Map();
  ASSERT_TRUE(address.ok());
  UseContext();
  cuda::Driver& driver = *Machine::Get().driver;
  ASSERT_EQ(driver.MemsetD8Async(*address, 7, 5 * kChunk, nullptr), CUDA_SUCCESS);
  const std::vector<Tensor> tensors = {{"w", "F32", {2, 3}, 0, 24}, {"scalar", "I8", {}, 32, 1}};
  EXPECT_EQ(lease->Seal(tensors, {nullptr}).status().reason(), GPUMEM_MANIFEST_INVALID);
  EXPECT_EQ(lease->Info()->address, 0u);
  EXPECT_EQ(lease->Map().status().reason(), GPUMEM_ALREADY_RELEASED);
  const auto name = lease->Seal(tensors);
  ASSERT_TRUE(name.ok()) << name.status().ToString();
  EXPECT_EQ(*name, "models/m@1");
  EXPECT_FALSE(*lease);

  const auto listed = client_.ListSegments("models/");
  ASSERT_THAT(*listed, SizeIs(1));
  EXPECT_STREQ(listed->at(0).name, "models/m@1");
  EXPECT_THAT(*client_.ListSegments("other"), SizeIs(0));
  EXPECT_EQ(client_.AttachSegment(42, "no/such").status().reason(), GPUMEM_UNKNOWN_SEGMENT);
  auto segment = client_.AttachSegment(42, "models/m@1");
  ASSERT_TRUE(segment.ok()) << segment.status().ToString();
  EXPECT_EQ(segment->Name(), "models/m@1");
  const auto got = segment->Tensors();
  ASSERT_THAT(*got, SizeIs(2));
  EXPECT_EQ((*got)[0].name, "w");
  EXPECT_EQ((*got)[0].dtype, "F32");
  EXPECT_THAT((*got)[0].shape, testing::ElementsAre(2u, 3u));
  EXPECT_THAT((*got)[1].shape, SizeIs(0));
  EXPECT_EQ((*got)[1].offset_bytes, 32u);
  const auto there = segment->Map();
  ASSERT_TRUE(there.ok()) << there.status().ToString();
  unsigned char byte = 0;
  EXPECT_EQ(driver.MemcpyDtoH(&byte, *there + 5 * kChunk - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(byte, 7);
  EXPECT_NE(driver.MemcpyHtoD(*there, &byte, 1), CUDA_SUCCESS);
  EXPECT_EQ(segment->Info()->access, static_cast<std::uint32_t>(GPUMEM_ACCESS_READ_ONLY));
  EXPECT_TRUE(segment->Detach({nullptr}).ok());
  ASSERT_THAT(daemon_.detaches(), SizeIs(1));
  EXPECT_THAT(daemon_.detaches()[0].outcomes(), testing::ElementsAre(v1::OUTCOME_UNMAPPED));
}

TEST_F(ClientTest, AttachThatFailsIsDetached) {
  auto lease = client_.BuildSegment(42, "m", {{daemon_.device_uuid(), kChunk, 3}});
  ASSERT_TRUE(lease->Seal({}).ok());
  daemon_.bad_chunk = 1;
  const std::size_t descriptors = OpenDescriptors();
  EXPECT_EQ(client_.AttachSegment(42, "m@1").status().reason(), GPUMEM_CUDA);
  EXPECT_THAT(daemon_.detaches(), SizeIs(1));
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST_F(ClientTest, PrivateMemoryIsNotSealed) {
  auto lease = Allocate(1);
  EXPECT_EQ(lease->Seal({}).status().reason(), GPUMEM_INVALID_ARGUMENT);
  EXPECT_TRUE(lease->Map().ok());
}

TEST_F(ClientTest, NamesThatAreNotTextAreRefusedHere) {
  const std::size_t asked = daemon_.request_ids().size();
  EXPECT_EQ(client_.RegisterHolder("", Role::kOther).status().reason(), GPUMEM_NAME_INVALID);
  EXPECT_EQ(client_.RegisterHolder("\xff", Role::kOther).status().reason(), GPUMEM_NAME_INVALID);
  EXPECT_EQ(client_.BuildSegment(1, "\xff", {{daemon_.device_uuid(), 1, 1}}).status().reason(), GPUMEM_NAME_INVALID);
  EXPECT_EQ(client_.AttachSegment(1, "\xff").status().reason(), GPUMEM_NAME_INVALID);
  EXPECT_EQ(client_.Allocate(1, {}).status().reason(), GPUMEM_SIZE_ZERO);
  EXPECT_EQ(daemon_.request_ids().size(), asked);
}

TEST_F(ClientTest, ThreadsShareAClient) {
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        auto lease = Allocate(3);
        if (!lease.ok() || !lease->Map().ok() || !lease->Release().ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(Physical(), 0u);
}

TEST_F(ClientTest, CloseWithLiveMemoryAndADaemonThatDoesNotAnswer) {
  const std::size_t before = OpenDescriptors();
  Connect();
  auto lease = Allocate(3);
  ASSERT_TRUE(lease->Map().ok());
  daemon_.hang = true;
  std::atomic<bool> entered{false};
  std::thread waiting([&] {
    entered = true;
    EXPECT_EQ(client_.RegisterHolder("x", Role::kOther).status().reason(), GPUMEM_DISCONNECTED);
  });
  Eventually([&] { return entered.load(); });
  std::this_thread::sleep_for(20ms);
  gpumem_client* const raw = client_.get();
  const auto started = std::chrono::steady_clock::now();
  gpumem_close(raw);
  waiting.join();
  EXPECT_LT(std::chrono::steady_clock::now() - started, 15s);  // the call's own bound is 20 s
  new (&client_) Client();                                     // raw is gone
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  EXPECT_EQ(gpumem_lease_info(lease->get(), &info, nullptr), GPUMEM_OK);
  EXPECT_EQ(lease->Map().status().reason(), GPUMEM_DISCONNECTED);
  EXPECT_EQ(lease->Release().reason(), GPUMEM_DISCONNECTED);
  EXPECT_FALSE(*lease);
  EXPECT_THAT(daemon_.releases(), SizeIs(0));
  daemon_.hang = false;
  // The daemon's own ends and exported fds go a little later.
  Eventually([&] { return OpenDescriptors() <= before + 3; });
}

TEST_F(ClientTest, AGrantThatCameTooLateIsGivenBackBeforeTheNext) {
  Connect(300);
  daemon_.hang = true;
  EXPECT_EQ(Allocate(2).status().reason(), GPUMEM_DEADLINE);
  daemon_.hang = false;
  // The daemon did it all the same, for nobody.
  Eventually([this] { return daemon_.leases() == 1; });
  auto lease = Allocate(3);
  ASSERT_TRUE(lease.ok()) << lease.status().ToString();
  EXPECT_EQ(daemon_.leases(), 1u);
  EXPECT_EQ(Physical(), 3 * kChunk);
}

TEST_F(ClientTest, AReleaseThatWasNotAnsweredIsSaidAgain) {
  Connect(300);
  auto lease = Allocate(2);
  ASSERT_TRUE(lease.ok());
  daemon_.drop_release = 1;
  EXPECT_EQ(lease->Release().reason(), GPUMEM_DEADLINE);
  EXPECT_FALSE(*lease);
  EXPECT_EQ(daemon_.leases(), 1u);
  ASSERT_TRUE(Allocate(1).ok());
  EXPECT_EQ(daemon_.leases(), 0u);
}

TEST_F(ClientTest, AnAttachOrDetachThatWasNotAnsweredIsSettledBeforeTheNextCall) {
  auto lease = client_.BuildSegment(42, "m", {{daemon_.device_uuid(), kChunk, 1}});
  ASSERT_TRUE(lease.ok() && lease->Seal({}).ok());
  Connect(300);
  daemon_.hang = true;
  EXPECT_EQ(client_.AttachSegment(42, "m@1").status().reason(), GPUMEM_DEADLINE);
  daemon_.hang = false;
  Eventually([this] { return daemon_.attachments() == 1; });  // for nobody
  ASSERT_TRUE(Allocate(1).ok());
  EXPECT_EQ(daemon_.attachments(), 0u);
  auto segment = client_.AttachSegment(42, "m@1");
  ASSERT_TRUE(segment.ok()) << segment.status().ToString();
  daemon_.drop_detach = 1;
  EXPECT_EQ(segment->Detach().reason(), GPUMEM_DEADLINE);
  EXPECT_EQ(daemon_.attachments(), 1u);
  ASSERT_TRUE(Allocate(1).ok());
  EXPECT_EQ(daemon_.attachments(), 0u);
}

TEST_F(ClientTest, AWatchThatIsRefusedIsToldOnceAndCanBeBegunAgain) {
  daemon_.refuse_watches = 1;
  const auto fd = client_.EventFd();
  ASSERT_TRUE(fd.ok());
  pollfd entry{*fd, POLLIN, 0};
  gpumem_reason reason = GPUMEM_OK;
  while (reason == GPUMEM_OK && ::poll(&entry, 1, 20'000) == 1) reason = client_.NextEvent().status().reason();
  EXPECT_EQ(reason, GPUMEM_LIMIT);
  EXPECT_TRUE(client_.NextEvent().ok());
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  EXPECT_EQ(*client_.EventFd(), *fd);
  bool got = false;
  while (!got && ::poll(&entry, 1, 20'000) == 1) got = client_.NextEvent()->has_value();
  EXPECT_TRUE(got);
}

TEST_F(ClientTest, MemoryStaysWhenTheDaemonIsGone) {
  auto mapped = Allocate(2);
  auto other = Allocate(1);
  const auto address = mapped->Map();
  ASSERT_TRUE(address.ok());
  const auto fd = client_.EventFd();
  ASSERT_TRUE(fd.ok());
  daemon_.Kill();
  pollfd entry{*fd, POLLIN, 0};
  bool told = false;
  while (!told && ::poll(&entry, 1, 20'000) == 1) {
    const auto event = client_.NextEvent();
    ASSERT_TRUE(event.ok()) << event.status().ToString();
    told = event->has_value() && (*event)->kind == GPUMEM_EVENT_DISCONNECTED;
  }
  EXPECT_TRUE(told);
  EXPECT_FALSE(client_.NextEvent()->has_value());
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  UseContext();
  EXPECT_EQ(Machine::Get().driver->MemsetD8(*address, 1, 2 * kChunk), CUDA_SUCCESS);
  EXPECT_TRUE(other->Map().ok());
  EXPECT_EQ(Allocate(1).status().reason(), GPUMEM_DISCONNECTED);
  EXPECT_EQ(mapped->Release({nullptr}).reason(), GPUMEM_DISCONNECTED);
  EXPECT_FALSE(*mapped);
}

TEST_F(ClientTest, EventsComeThroughOneDescriptor) {
  const auto fd = client_.EventFd();
  ASSERT_TRUE(fd.ok()) << fd.status().ToString();
  EXPECT_EQ(*client_.EventFd(), *fd);
  pollfd entry{*fd, POLLIN, 0};
  std::vector<std::uint64_t> sequences;
  while (sequences.size() < 2) {
    ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
    const auto event = client_.NextEvent();
    ASSERT_TRUE(event.ok());
    if (!event->has_value()) continue;
    EXPECT_EQ((*event)->kind, GPUMEM_EVENT_DEVICE_CHANGED);
    EXPECT_EQ((*event)->state, static_cast<std::uint32_t>(v1::DEVICE_STATE_SUSPECT));
    EXPECT_EQ((*event)->name, daemon_.device_uuid());
    sequences.push_back((*event)->sequence);
  }
  EXPECT_THAT(sequences, testing::ElementsAre(2u, 3u));
  while (client_.NextEvent()->has_value()) {
  }
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  daemon_.Fence();
  ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
  const auto fence = client_.NextEvent();
  ASSERT_TRUE(fence->has_value());
  EXPECT_EQ((*fence)->kind, GPUMEM_EVENT_SESSION_FENCED);
}

TEST_F(ClientTest, AFenceThatAnotherCallReadsIsAnEventToo) {
  const auto fd = client_.EventFd();
  pollfd entry{*fd, POLLIN, 0};
  int seen = 0;
  while (seen < 2 && ::poll(&entry, 1, 20'000) == 1) seen += client_.NextEvent()->has_value() ? 1 : 0;
  while (client_.NextEvent()->has_value()) {
  }
  daemon_.Fence();
  ASSERT_TRUE(Allocate(1).ok());  // reads the fence before its handles
  ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
  const auto event = client_.NextEvent();
  ASSERT_TRUE(event->has_value());
  EXPECT_EQ((*event)->kind, GPUMEM_EVENT_SESSION_FENCED);
}

TEST_F(ClientTest, AnotherInstanceIsNotThisSession) {
  daemon_.answer_as_other_instance = 1;
  EXPECT_EQ(client_.RegisterHolder("x", Role::kOther).status().reason(), GPUMEM_DISCONNECTED);
}

TEST_F(ClientTest, AStormOfSignalsDisturbsNothing) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<int> alarms{0};
  action.sa_handler = [](int) { ++alarms; };
  sigaction(SIGALRM, &action, &before);
  const itimerval storm = {{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &storm, nullptr);
  int failed = 0;
  for (int i = 0; i < 100; ++i) {
    auto lease = Allocate(2);
    if (!lease.ok() || !lease->Map().ok() || !lease->Release().ok()) ++failed;
  }
  const itimerval calm = {};
  setitimer(ITIMER_REAL, &calm, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(failed, 0);
  EXPECT_GT(alarms, 10);
}

// --- fork -----------------------------------------------------------------------------------------------------------

// Runs `child` in a forked child; its result is the exit status. The child must not use the test's other threads.
int InChild(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    ::_exit(child());
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST_F(ClientTest, AForkedChildFindsEverythingDeadAndTheParentGoesOn) {
  auto lease = Allocate(2);
  ASSERT_TRUE(lease->Map().ok());
  auto build = client_.BuildSegment(42, "m", {{daemon_.device_uuid(), kChunk, 1}});
  ASSERT_TRUE(build->Seal({}).ok());
  auto segment = client_.AttachSegment(42, "m@1");
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(client_.EventFd().ok());
  const int result = InChild([&]() -> int {
    int line = 0;
    const auto forked = [&line](gpumem_reason reason) {
      ++line;
      return reason == GPUMEM_FORKED;
    };
    gpumem_client* const c = client_.get();
    gpumem_lease* const l = lease->get();
    gpumem_segment* const s = segment->get();
    gpumem_session_info session = GPUMEM_SESSION_INFO_INIT;
    gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
    gpumem_memory_info memory = GPUMEM_MEMORY_INFO_INIT;
    gpumem_tensor tensor = GPUMEM_TENSOR_INIT;
    gpumem_event event = {};
    event.struct_size = sizeof(event);
    gpumem_device_ptr address = 0;
    std::uint64_t holder = 0;
    std::int32_t got = 0;
    gpumem_status status = GPUMEM_STATUS_INIT;
    gpumem_lease* new_lease = nullptr;
    gpumem_segment* new_segment = nullptr;
    const gpumem_chunk_spec spec = {"GPU-x", 1, 1};
    const auto each = [](const gpumem_segment_entry*, void*) { return 0; };
    const bool all =
        forked(gpumem_session(c, &session, nullptr)) && forked(gpumem_device(c, 0, &device, nullptr)) &&
        forked(gpumem_register_holder(c, "x", 1, &holder, nullptr)) &&
        forked(gpumem_allocate(c, 1, &spec, 1, &new_lease, nullptr)) &&
        forked(gpumem_segment_build(c, 1, "x", &spec, 1, &new_lease, nullptr)) &&
        forked(gpumem_segment_attach(c, 1, "x", &new_segment, nullptr)) &&
        forked(gpumem_list_segments(c, "", each, nullptr, nullptr)) &&
        forked(gpumem_report_fault(c, 700, "x", nullptr)) && forked(gpumem_next_event(c, &event, &got, nullptr)) &&
        gpumem_event_fd(c, nullptr) < 0 && forked(gpumem_lease_info(l, &memory, nullptr)) &&
        forked(gpumem_lease_map(l, 0, GPUMEM_ACCESS_READ_WRITE, &address, nullptr)) &&
        forked(gpumem_lease_unmap(l, nullptr, 0, nullptr)) &&
        forked(gpumem_segment_seal(l, nullptr, 0, nullptr, 0, nullptr, 0, nullptr)) &&
        forked(gpumem_segment_info(s, &memory, nullptr)) && forked(gpumem_segment_map(s, 0, &address, nullptr)) &&
        forked(gpumem_segment_tensor(s, 0, &tensor, nullptr)) &&
        forked(gpumem_segment_detach(s, nullptr, 0, nullptr)) && forked(gpumem_lease_release(l, nullptr, 0, &status));
    if (!all) return line;
    if (gpumem_device_count(c) != 0 || gpumem_segment_tensor_count(s) != 0 || gpumem_segment_name(s) != nullptr) {
      return 100;
    }
    if (std::strstr(status.message, "gpumem_connect") == nullptr) return 101;
    gpumem_close(c);
    return 0;
  });
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(client_.RegisterHolder("still here", Role::kOther).ok());
  EXPECT_EQ(daemon_.sessions(), 1u);
  EXPECT_TRUE(lease->Release().ok());
}

TEST_F(ClientTest, AChildKeepsTheWitnessAndNoSocket) {
  // The table of what the library has open, as its own handler leaves it: no descriptor that reaches the daemon.
  const auto sockets_to_daemon = [this] {
    int count = 0;
    for (int fd = 3; fd < 256; ++fd) {
      sockaddr_un address{};
      socklen_t size = sizeof(address);
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 || size <= sizeof(sa_family_t)) continue;
      if (std::string(address.sun_path).rfind(daemon_.socket_dir(), 0) == 0) ++count;
    }
    return count;
  };
  const auto pipes = [] {
    int count = 0;
    for (int fd = 3; fd < 256; ++fd) {
      struct stat info {};
      if (::fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode)) ++count;
    }
    return count;
  };
  ASSERT_TRUE(client_.RegisterHolder("x", Role::kOther).ok());
  ASSERT_TRUE(client_.EventFd().ok());
  EXPECT_GE(sockets_to_daemon(), 3);
  const int in_parent = pipes();
  EXPECT_EQ(InChild([&] { return sockets_to_daemon(); }), 0);
  EXPECT_EQ(InChild([&] { return pipes(); }), in_parent);
  // A child that closes the client keeps it all the same: the driver's descriptors are still in it.
  EXPECT_EQ(InChild([&] {
              gpumem_close(client_.get());
              return pipes();
            }),
            in_parent);
}

TEST_F(ClientTest, ForksWhileThreadsCall) {
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        auto lease = Allocate(2);
        if (!lease.ok() || !lease->Release().ok()) ++failed;
      }
    });
  }
  int wrong = 0;
  for (int i = 0; i < 10; ++i) {
    wrong += InChild([&] { return client_.RegisterHolder("x", Role::kOther).status().reason() == GPUMEM_FORKED; }) != 1;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(daemon_.sessions(), 1u);
}

// --- faults: in processes of their own, because a CUDA error stays
// ----------------------------------------------------

using ClientDeathTest = ClientTest;

// A store through a read-only mapping, then the calls that a worker would make.
int FaultAndReport(Client* client, Lease* lease, FakeDaemon* daemon) {
  cuda::Driver& driver = *Machine::Get().driver;
  std::unique_ptr<cuda::Kernels> kernels;
  CUcontext context = nullptr;
  driver.DevicePrimaryCtxRetain(&context, Machine::Get().devices[0].ordinal);
  driver.CtxSetCurrent(context);
  if (cuda::Kernels::Load(driver, &kernels) != CUDA_SUCCESS) return 1;
  const auto address = lease->Map(Access::kReadOnly);
  if (!address.ok() || kernels->Store(nullptr, *address, 1) != CUDA_SUCCESS) return 2;
  const Status unmapped = lease->Unmap({nullptr});
  if (unmapped.reason() != GPUMEM_CUDA_FATAL || unmapped.cuda_error() != CUDA_ERROR_ILLEGAL_ADDRESS) return 3;
  if (client->RegisterHolder("x", Role::kOther).status().reason() != GPUMEM_CUDA_FATAL) return 4;
  if (!client->ReportFault(unmapped.cuda_error(), "kernel store").ok()) return 5;
  const auto faults = daemon->faults();
  if (faults.size() != 1 || faults[0].cuda_error_name() != "CUDA_ERROR_ILLEGAL_ADDRESS") return 6;
  if (lease->Release().reason() != GPUMEM_CUDA_FATAL || *lease) return 7;
  if (!daemon->releases().empty()) return 8;
  client->Close();
  // What was mapped is still in this process, and a child of it would keep it.
  if (daemon->WitnessClosed()) return 10;
  return 0;
}

// The release itself is the call that learns of the fault.
int FaultAndRelease(Client* client, Lease* lease, FakeDaemon* daemon) {
  cuda::Driver& driver = *Machine::Get().driver;
  std::unique_ptr<cuda::Kernels> kernels;
  CUcontext context = nullptr;
  driver.DevicePrimaryCtxRetain(&context, Machine::Get().devices[0].ordinal);
  driver.CtxSetCurrent(context);
  if (cuda::Kernels::Load(driver, &kernels) != CUDA_SUCCESS) return 1;
  const auto address = lease->Map(Access::kReadOnly);
  if (!address.ok() || kernels->Store(nullptr, *address, 1) != CUDA_SUCCESS) return 2;
  if (lease->Release({nullptr}).reason() != GPUMEM_CUDA_FATAL) return 3;
  if (*lease) return 4;
  if (!daemon->releases().empty()) return 5;
  client->Close();
  return daemon->WitnessClosed() ? 6 : 0;
}

TEST_F(ClientDeathTest, AfterAFatalErrorNothingIsAskedOfTheDriver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto lease = Allocate(2);
        const int result = FaultAndReport(&client_, &*lease, &daemon_);
        // What was mapped is still there: its end is the process's.
        const int code = result != 0 ? result : Physical() == 2 * kChunk ? 0 : 9;
        TempDir::RemoveAll();
        ::_exit(code);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ClientDeathTest, AReleaseThatLearnsOfTheFaultReleasesNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto lease = Allocate(2);
        const int result = FaultAndRelease(&client_, &*lease, &daemon_);
        const int code = result != 0 ? result : Physical() == 2 * kChunk ? 0 : 9;
        TempDir::RemoveAll();
        ::_exit(code);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(ClientDeathTest, ReportingAFaultIsEnough) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto lease = Allocate(2);
        bool good = lease.ok() && client_.ReportFault(700, "\xff").ok();
        good = good && Allocate(1).status().reason() == GPUMEM_CUDA_FATAL;
        good = good && lease->Map().status().reason() == GPUMEM_CUDA_FATAL;
        good = good && lease->Info().status().reason() == GPUMEM_CUDA_FATAL;
        good = good && client_.NextEvent().status().reason() == GPUMEM_CUDA_FATAL;
        client_.Close();
        good = good && Physical() == 2 * kChunk;
        TempDir::RemoveAll();
        ::_exit(good ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gpumem::client_test
