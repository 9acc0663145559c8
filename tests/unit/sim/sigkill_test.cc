// Processes that die at any instruction leave nothing behind: no memory, no lock, no wrong number.
//
// Workers in batches create, export, send, receive, import, map, launch and give back as fast as they can, and are
// killed one by one at random times, some of them while they still start. What they did is in a page that they share
// with the test, so that a run in which nothing much happened is no success.
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <random>
#include <utility>

#include "cuda/kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::UniqueFd;
using gpumem::cuda::PhysicalHandle;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kBatches = 6;
#else
constexpr int kBatches = 50;
#endif
constexpr int kWorkers = 8;  // in one batch, at once

enum Deed { kCreated, kExported, kSent, kImported, kMapped, kLaunched, kGaveBack, kDeeds };

// Shared by the test and the workers; nothing in it is protected by more than being atomic.
struct Page {
  std::array<std::atomic<std::uint64_t>, kDeeds> deeds{};
  std::array<std::atomic<int>, kWorkers> running{};  // 1: the worker has a context
  std::atomic<int> failed_line{0};                   // of this file: where a call failed that should not
  std::atomic<int> failed_result{0};
};

class SharedPage {
 public:
  SharedPage() {
    void* const got = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) std::abort();
    page_ = new (got) Page;
  }
  ~SharedPage() { ::munmap(page_, sizeof(Page)); }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  Page* operator->() { return page_; }
  Page* get() { return page_; }

 private:
  Page* page_;
};

// One worker's life, which only a signal ends.
class Worker {
 public:
  Worker(Page* page, std::uint64_t seed, int send_to, int receive_from)
      : page_(*page), random_(seed), send_to_(send_to), receive_from_(receive_from) {}

  [[noreturn]] void Run(int index) {
    Check(gpumem::cuda::Kernels::Load(*gpu_, &kernels_), __LINE__);
    Check(gpu_->StreamCreate(&stream_, CU_STREAM_NON_BLOCKING), __LINE__);
    page_.running[static_cast<std::size_t>(index)] = 1;
    while (true) Step();
  }

 private:
  struct Held {
    PhysicalHandle handle;
    gpumem::cuda::AddressRange range;
    gpumem::cuda::Mapping mapping;
  };

  void Check(CUresult result, int line) {
    if (result == CUDA_SUCCESS) return;
    int none = 0;
    if (page_.failed_line.compare_exchange_strong(none, line)) page_.failed_result = result;
    Hang();
  }
  void Count(Deed deed) { ++page_.deeds[deed]; }
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }

  void Step() {
    constexpr std::size_t kMost = 6;  // allocations at once
    if (held_.size() >= kMost) held_.erase(held_.begin());
    switch (Below(4)) {
      case 0:
        Create();
        break;
      case 1:
        Send();
        break;
      case 2:
        Receive();
        break;
      default:
        GiveBack();
    }
  }

  void Create() {
    Held held;
    const std::uint64_t bytes = static_cast<std::uint64_t>(1 + Below(4)) * 2 * kMiB;
    Check(PhysicalHandle::Create(*gpu_, Below(2), bytes, true, &held.handle), __LINE__);
    Count(kCreated);
    Map(std::move(held), bytes);
  }

  void Map(Held held, std::uint64_t bytes) {
    Check(gpumem::cuda::AddressRange::Reserve(*gpu_, bytes, 0, 0, &held.range), __LINE__);
    Check(gpumem::cuda::Mapping::Map(*gpu_, held.range.address(), held.handle, &held.mapping), __LINE__);
    Check(held.mapping.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), __LINE__);
    Count(kMapped);
    Check(kernels_->Fill(stream_, held.range.address(), 1000, 7), __LINE__);
    Check(gpu_->StreamSynchronize(stream_), __LINE__);
    Count(kLaunched);
    held_.push_back(std::move(held));
  }

  // The message's one byte is the size, which an import does not tell.
  void Send() {
    if (held_.empty()) return;
    const PhysicalHandle& handle = held_[static_cast<std::size_t>(Below(static_cast<int>(held_.size())))].handle;
    UniqueFd fd;
    Check(handle.Export(&fd), __LINE__);
    Count(kExported);
    const auto units = static_cast<std::byte>(handle.bytes() / (2 * kMiB));
    const int number = fd.get();
    if (gpumem::SendFrame(send_to_, {&units, 1}, {&number, 1}, false) == 0) Count(kSent);
  }

  void Receive() {
    std::byte units{};
    gpumem::ReceivedFrame frame;
    if (gpumem::ReceiveFrame(receive_from_, {&units, 1}, false, &frame) != 0 || frame.fds.size() != 1) return;
    Held held;
    const std::uint64_t bytes = static_cast<std::uint64_t>(units) * 2 * kMiB;
    Check(PhysicalHandle::Import(*gpu_, frame.fds[0].get(), bytes, &held.handle), __LINE__);
    Count(kImported);
    if (Below(2) == 0) frame.fds.clear();
    Map(std::move(held), bytes);
  }

  void GiveBack() {
    if (held_.empty()) return;
    held_.erase(held_.begin() + Below(static_cast<int>(held_.size())));
    Count(kGaveBack);
  }

  Page& page_;
  std::mt19937_64 random_;
  const int send_to_;
  const int receive_from_;
  Gpu gpu_;
  std::unique_ptr<gpumem::cuda::Kernels> kernels_;
  CUstream stream_ = nullptr;
  std::vector<Held> held_;
};

class SigkillTest : public MachineTest {
 protected:
  // By itself, which no worker should; Wait still reaps it.
  static bool HasEnded(pid_t pid) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
  }

  std::uint64_t AllObjects() const { return Truth(0).objects.size() + Truth(1).objects.size(); }

  // Nothing is there, nobody is there, and all of it can be had.
  void ExpectAsNew() {
    for (std::size_t device = 0; device < 2; ++device) {
      std::string error;
      const auto store = simcuda::DeviceStore::Open(dir_, config_.devices[device], &error);
      ASSERT_NE(store, nullptr) << error;
      std::vector<std::uint32_t> pids;
      EXPECT_EQ(store->Processes(std::chrono::microseconds(0), &pids), simcuda::DeviceStore::Outcome::kOk);
      EXPECT_TRUE(pids.empty());
      // All of it, before anybody counts: what the dead left in the books must not be in the way.
      std::shared_ptr<simcuda::Object> all;
      EXPECT_EQ(store->Create(80 * kGiB, &all), simcuda::DeviceStore::Outcome::kOk);
      all = nullptr;
      EXPECT_EQ(Truth(device).physical_bytes, 0u);
      EXPECT_EQ(Truth(device).objects.size(), 0u);
    }
  }
};

TEST_F(SigkillTest, ProcessesKilledAnywhereLeaveNothing) {
  const char* const given = std::getenv("SIGKILL_TEST_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("SIGKILL_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  SCOPED_TRACE(testing::Message() << "SIGKILL_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto below = [&random](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  SharedPage page;
  std::uint64_t in_flight = 0;  // allocations that only a socket's queue kept
  for (int batch = 0; batch < kBatches && !HasFailure(); ++batch) {
    SCOPED_TRACE(testing::Message() << "batch " << batch);
    for (auto& running : page->running) running = 0;
    // A ring: each worker sends to the next one.
    std::array<UniqueFd, kWorkers> send_ends;
    std::array<UniqueFd, kWorkers> receive_ends;
    for (int i = 0; i < kWorkers; ++i) {
      int sockets[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets), 0);
      send_ends[static_cast<std::size_t>(i)].reset(sockets[0]);
      receive_ends[static_cast<std::size_t>((i + 1) % kWorkers)].reset(sockets[1]);
    }
    std::vector<std::unique_ptr<Child>> workers;
    for (int i = 0; i < kWorkers; ++i) {
      const std::uint64_t its_seed = random();
      workers.push_back(std::make_unique<Child>([&, i](int) {
        const auto at = static_cast<std::size_t>(i);
        Worker(page.get(), its_seed, send_ends[at].get(), receive_ends[at].get()).Run(i);
      }));
    }
    for (int i = 0; i < kWorkers; ++i) {
      // Three of four have begun their work when they die; the others die wherever they are.
      const bool begun = below(4) != 0;
      while (begun && page->running[static_cast<std::size_t>(i)] == 0 && page->failed_line == 0 &&
             !HasEnded(workers[static_cast<std::size_t>(i)]->pid())) {
        ::usleep(100);
      }
      ::usleep(static_cast<useconds_t>(below(3000)));
      workers[static_cast<std::size_t>(i)]->Kill();
    }
    if (batch % 2 == 0) in_flight += AllObjects();  // counting sets the books right: not always
    for (int i = 0; i < kWorkers; ++i) {
      send_ends[static_cast<std::size_t>(i)].reset();
      receive_ends[static_cast<std::size_t>(i)].reset();
    }
    ExpectAsNew();
    ASSERT_EQ(page->failed_line, 0) << "a worker's call at that line gave " << page->failed_result;
  }
  for (int deed = 0; deed < kDeeds; ++deed) {
    EXPECT_GT(page->deeds[static_cast<std::size_t>(deed)], 0u) << "no worker ever came to deed " << deed;
  }
  EXPECT_GT(in_flight, 0u);
}

}  // namespace
}  // namespace simtest
