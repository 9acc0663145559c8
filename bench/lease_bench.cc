// A one-chunk lease, mapped: allocate, fetch, import, map, set access, acknowledge, through gpumemd; held against what
// any such service must do at the least: one gRPC round trip, one SCM_RIGHTS message, and the bare driver calls.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "bench/echo.grpc.pb.h"
#include "bench/ratios.h"
#include "cuda/devices.h"
#include "cuda/driver.h"
#include "cuda/resources.h"
#include "gpumem/gpumem.h"
#include "tests/e2e/process.h"

namespace gpumem::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kChunkBytes = 2ull << 20;
const std::string kBin = BENCH_BIN_DIR;
const std::string kLibcuda = std::string(BENCH_LIB_DIR) + "/gpumem-sim/libcuda.so.1";

// A simulated machine, the daemon on it, and the echo peer. Made once; taken down at exit.
class World {
 public:
  static World& Get() {
    static World world;
    return world;
  }
  bool ok() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  gpumem_client* client = nullptr;
  std::uint64_t holder = 0;
  std::string uuid;
  std::unique_ptr<cuda::Driver> driver;
  CUdevice device = 0;
  std::unique_ptr<EchoService::Stub> echo;
  UniqueFd peer;

 private:
  World() {
    char path[] = "/dev/shm/gpumem-bench-XXXXXX";
    if (::mkdtemp(path) == nullptr) {
      error_ = "cannot make a directory in /dev/shm";
      return;
    }
    dir_ = path;
    ::setenv("SIMCUDA_DIR", (dir_ + "/sim").c_str(), 1);
    ::setenv("GPUMEM_LIBCUDA", kLibcuda.c_str(), 1);
    e2e::RunCommand({{kBin + "/simgpu", "init", "--dir", dir_ + "/sim", "--gpus", "1", "--memory", "80GiB"}, {}});
    StartDaemon();
    StartEcho();
    StartDriver();
  }
  ~World() {
    gpumem_close(client);
    daemon_.Signal(SIGTERM);
    daemon_.Wait();
    peer.reset();
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  void StartDaemon() {
    const std::string run = dir_ + "/run";
    daemon_ = e2e::Process::Spawn({{kBin + "/gpumemd", "--driver=sim", "--socket-dir", run, "--admin-dir",
                                    dir_ + "/admin", "--keeper-socket", dir_ + "/keeper/keeper.sock"},
                                   {}});
    gpumem_options options = GPUMEM_OPTIONS_INIT;
    options.socket_dir = run.c_str();
    gpumem_status status = GPUMEM_STATUS_INIT;
    const auto deadline = Clock::now() + std::chrono::seconds(30);
    while (gpumem_connect(&options, &client, &status) != GPUMEM_OK) {
      if (Clock::now() > deadline || !daemon_.running()) {
        error_ = std::string("the daemon does not serve: ") + status.message + daemon_.errors();
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (gpumem_register_holder(client, "bench", GPUMEM_ROLE_KV_CACHE, &holder, &status) != GPUMEM_OK) {
      error_ = status.message;
    }
    gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
    gpumem_device(client, 0, &info, nullptr);
    uuid = info.uuid;
    // The device must be healthy before anything is measured.
    gpumem_chunk_spec spec{uuid.c_str(), kChunkBytes, 1};
    gpumem_lease* lease = nullptr;
    while (gpumem_allocate(client, holder, &spec, 1, &lease, &status) != GPUMEM_OK) {
      if (Clock::now() > deadline) {
        error_ = status.message;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    gpumem_lease_release(lease, nullptr, 0, nullptr);
  }
  void StartEcho() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return;
    peer.reset(fds[0]);
    const int inherited = ::fcntl(fds[1], F_DUPFD, 100);
    echo_ = e2e::Process::Spawn({{kBin + "/bench-echo-peer", dir_ + "/echo.sock", std::to_string(inherited)}, {}});
    ::close(inherited);
    ::close(fds[1]);
    std::array<std::byte, 1> byte{};
    gpumem::ReceivedFrame frame;
    if (ReceiveFrame(peer.get(), byte, true, &frame) != 0 || frame.size != 1) {
      error_ = "the echo peer does not serve: " + echo_.errors();
      return;
    }
    echo = EchoService::NewStub(grpc::CreateChannel("unix:" + dir_ + "/echo.sock", grpc::InsecureChannelCredentials()));
  }
  void StartDriver() {
    std::string error;
    driver = cuda::Driver::Load(kLibcuda.c_str(), &error);
    if (driver == nullptr || driver->Init(0) != CUDA_SUCCESS || driver->DeviceGet(&device, 0) != CUDA_SUCCESS) {
      error_ = "the driver does not load: " + error;
    }
  }

  std::string dir_;
  std::string error_;
  e2e::Process daemon_;
  e2e::Process echo_;
};

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

void BM_LeaseMapped(benchmark::State& state) {
  World& world = World::Get();
  if (!world.ok()) return state.SkipWithError(world.error().c_str());
  const gpumem_chunk_spec spec{world.uuid.c_str(), kChunkBytes, 1};
  gpumem_status status = GPUMEM_STATUS_INIT;
  for (auto _ : state) {
    gpumem_lease* lease = nullptr;
    gpumem_device_ptr address = 0;
    const auto start = Clock::now();
    if (gpumem_allocate(world.client, world.holder, &spec, 1, &lease, &status) != GPUMEM_OK ||
        gpumem_lease_map(lease, 0, GPUMEM_ACCESS_READ_WRITE, &address, &status) != GPUMEM_OK) {
      return state.SkipWithError(status.message);
    }
    state.SetIterationTime(Seconds(start));
    gpumem_lease_release(lease, nullptr, 0, nullptr);
  }
}

void BM_BareRoundTrip(benchmark::State& state) {
  World& world = World::Get();
  if (!world.ok()) return state.SkipWithError(world.error().c_str());
  EchoMessage request;
  EchoMessage response;
  request.set_payload(std::string(80, 'x'));
  std::array<std::byte, 1> byte{};
  gpumem::ReceivedFrame frame;
  const cuda::Driver& driver = *world.driver;
  for (auto _ : state) {
    cuda::PhysicalHandle created;
    cuda::PhysicalHandle imported;
    cuda::AddressRange range;
    cuda::Mapping mapping;
    UniqueFd exported;
    const auto start = Clock::now();
    grpc::ClientContext context;
    bool good = world.echo->Echo(&context, request, &response).ok();
    good = good && SendFrame(world.peer.get(), byte, {}, true) == 0;
    good = good && ReceiveFrame(world.peer.get(), byte, true, &frame) == 0 && frame.fds.size() == 1;
    good = good && cuda::PhysicalHandle::Create(driver, world.device, kChunkBytes, true, &created) == CUDA_SUCCESS;
    good = good && created.Export(&exported) == CUDA_SUCCESS && created.Release() == CUDA_SUCCESS;
    good = good && cuda::PhysicalHandle::Import(driver, exported.get(), kChunkBytes, &imported) == CUDA_SUCCESS;
    good = good && cuda::AddressRange::Reserve(driver, kChunkBytes, 0, 0, &range) == CUDA_SUCCESS;
    good = good && cuda::Mapping::Map(driver, range.address(), imported, &mapping) == CUDA_SUCCESS;
    good = good && mapping.SetAccess(world.device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE) == CUDA_SUCCESS;
    state.SetIterationTime(Seconds(start));
    if (!good) return state.SkipWithError("a bare step failed");
  }
}

GPUMEM_RATIO_ROW_MANUAL(
    lease_mapped, "lease of one chunk, mapped", BM_LeaseMapped, BM_BareRoundTrip, 3.0,
    "one gRPC echo, one SCM_RIGHTS round trip, and the bare create, export, import, map and set-access");

}  // namespace
}  // namespace gpumem::bench
