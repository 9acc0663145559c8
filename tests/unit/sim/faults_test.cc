// Faults by rule, devices that are lost, hung or recovered, and the hardware that outlives processes: each set by the
// tool while the processes that it concerns run.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/process.h"
#include "cuda/devices.h"
#include "cuda/kernels.h"
#include "cuda/nvml.h"
#include "cuda/sim/control.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::cuda::Nvml;
using testing::HasSubstr;

class FaultTest : public MachineTest {
 protected:
  // The tool's output, without the end of the line. It must end with `code`.
  std::string Simgpu(const std::string& arguments, int code = 0) {
    std::string out;
    FILE* const pipe = ::popen((TEST_BIN_DIR "/simgpu --dir " + dir_ + " " + arguments + " 2>&1").c_str(), "r");
    std::array<char, 512> buffer;
    while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
    const int status = ::pclose(pipe);
    EXPECT_EQ(WEXITSTATUS(status), code) << "simgpu " << arguments << ": " << out;
    while (!out.empty() && out.back() == '\n') out.pop_back();
    return out;
  }
  std::unique_ptr<Nvml> LoadNvml() {
    std::string error;
    auto nvml = Nvml::Load(NvmlLibrary().c_str(), &error);
    EXPECT_NE(nvml, nullptr) << error;
    return nvml;
  }
  // What the tool says of a rule.
  simcuda::RuleCounts Counts(const std::string& rule_id) {
    std::string error;
    const auto control = simcuda::Control::Open(dir_, &error);
    simcuda::Rule rule;
    rule.id = std::stoull(rule_id);
    return control->Counts(rule);
  }
  void WaitUntilBlocked(const std::string& rule_id) {
    while (Counts(rule_id).blocked_now == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

CUresult TryCreate(const Gpu& gpu, int ordinal = 0) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = gpumem::cuda::DeviceMemoryProp(ordinal, true);
  return gpu->MemCreate(&handle, 2 * kMiB, &prop, 0);
}

std::unique_ptr<gpumem::cuda::Kernels> LoadKernels(const Gpu& gpu) {
  std::unique_ptr<gpumem::cuda::Kernels> kernels;
  EXPECT_EQ(gpumem::cuda::Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
  return kernels;
}

// The engines that still write to this machine's memory.
void KillEngines(const std::string& dir) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    std::string comm;
    std::getline(std::ifstream(entry.path() / "comm") >> std::ws, comm);
    if (comm != "simcuda-engine") continue;
    std::stringstream maps;
    maps << std::ifstream(entry.path() / "maps").rdbuf();
    if (maps.str().find(dir) != std::string::npos) ::kill(std::stoi(entry.path().filename().string()), SIGKILL);
  }
}

TEST_F(FaultTest, ARuleFailsTheCallsThatItCountsOverAllProcesses) {
  Simgpu("rule add entry=cuMemCreate call=2..3 do=fail:CUDA_ERROR_OUT_OF_MEMORY");
  InChild([&] {
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(PhysicalBytes(), 2 * kMiB) << "a failed call must do nothing";
  });
  InChild([&] {
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_OUT_OF_MEMORY) << "the third call, in another process";
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
  });
}

TEST_F(FaultTest, ARuleMeansOneProcessByItsNameOrPid) {
  Simgpu("rule add process=worker-a entry=cuMemCreate do=fail:801");
  InChild([&] {
    ::setenv("SIMCUDA_PROCESS", "worker-b", 1);
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
    Simgpu("rule add process=" + std::to_string(::getpid()) + " entry=cuMemCreate do=fail:304");
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_OPERATING_SYSTEM) << "set while the process runs, by its pid";
  });
  InChild([&] {
    ::setenv("SIMCUDA_PROCESS", "worker-a", 1);
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST_F(FaultTest, ARuleMeansOneDeviceForEveryKindOfCall) {
  InChild([&] {
    Gpu gpu;
    const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    gpumem::UniqueFd fd;
    ASSERT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    Simgpu("rule add device=1 do=fail:999");
    char byte = 0;
    CUmemGenericAllocationHandle imported = 0;
    EXPECT_EQ(gpu->MemcpyDtoH(&byte, mapped.address(), 1), CUDA_SUCCESS);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
    EXPECT_EQ(TryCreate(gpu, 1), CUDA_ERROR_UNKNOWN);
    Simgpu("rule add device=0 do=fail:46");
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(gpu->MemcpyDtoH(&byte, mapped.address(), 1), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(gpu->MemUnmap(mapped.address(), 2 * kMiB), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(
        gpu->MemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd.get())),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    Simgpu("rule rm all");
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(FaultTest, ABlockedCallWaitsUntilItsRuleIsReleasedOrRemoved) {
  for (const char* const way : {"release", "rm"}) {
    const std::string rule = Simgpu("rule add entry=cuMemMap do=block");
    Child child([&](int socket) {
      Gpu gpu(false);
      Send(socket);
      CreateMapped(gpu, 2 * kMiB);
      Send(socket);
    });
    Receive(child.socket());
    WaitUntilBlocked(rule);
    pollfd poll{child.socket(), POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 20), 0) << "it went on";
    Simgpu(std::string("rule ") + way + " " + rule);
    Receive(child.socket());
    EXPECT_EQ(child.Wait(), 0);
    Simgpu("rule rm all");
  }
}

TEST_F(FaultTest, ADelayPassesBeforeTheCall) {
  Simgpu("rule add entry=cuMemCreate do=delay:30ms");
  InChild([&] {
    Gpu gpu(false);
    const auto before = std::chrono::steady_clock::now();
    CreateHandle(gpu, 2 * kMiB);
    EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(30));
  });
}

TEST_F(FaultTest, ACallCostsItsLatency) {
  Simgpu("latency a100 cuMemRelease=20ms");
  InChild([&] {
    Gpu gpu(false);
    auto handle = CreateHandle(gpu, 2 * kMiB);
    const auto before = std::chrono::steady_clock::now();
    handle = gpumem::cuda::PhysicalHandle();
    EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(20));
  });
}

TEST_F(FaultTest, ARuleKillsBeforeOrAfterTheCallTookEffect) {
  for (const bool after : {false, true}) {
    EXPECT_EQ(PhysicalBytes(), 0u);  // and what is dead has no files any more
    Simgpu(std::string("rule add entry=cuMemExportToShareableHandle call=2 do=") +
           (after ? "kill-after" : "kill-before"));
    // A bystander keeps what the victim sent it, so that the truth shows how far the call came.
    Child victim([&](int socket) {
      Gpu gpu(false);
      const auto handle = CreateHandle(gpu, 2 * kMiB);
      gpumem::UniqueFd fd;
      gpumem::UniqueFd second;
      ASSERT_EQ(handle.Export(&fd), CUDA_SUCCESS);
      Send(socket, fd.get());
      // The second export's descriptor dies with the process; its file says that it was made.
      handle.Export(&second);
      ADD_FAILURE() << "it lives";
    });
    const gpumem::UniqueFd kept = Receive(victim.socket());
    const int status = victim.Wait();
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    std::size_t exports_made = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_)) {
      if (entry.path().filename().string().rfind("fd-", 0) == 0) ++exports_made;
    }
    EXPECT_EQ(exports_made, after ? 2u : 1u);
    EXPECT_EQ(Truth().objects.at(0).exported_fds, 1u);
    Simgpu("rule rm all");
  }
}

TEST_F(FaultTest, APoisonedProcessStaysSoAndOthersDoNot) {
  Simgpu("rule add process=victim entry=cuCtxSynchronize do=poison:719");
  InChild([&] {
    ::setenv("SIMCUDA_PROCESS", "victim", 1);
    Gpu gpu;
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
    Simgpu("rule rm all");
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_LAUNCH_FAILED);
    Simgpu("answer sticky-vmm=0");
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS) << "the real driver may let memory calls go on";
  });
  InChild([&] {
    Gpu gpu;
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

TEST_F(FaultTest, AKernelFailsByRuleWhenItRuns) {
  InChild([&] {
    Gpu gpu;
    const auto kernels = LoadKernels(gpu);
    const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    Simgpu("rule add entry=kernel call=2 do=fail:719");
    EXPECT_EQ(kernels->Fill(nullptr, mapped.address(), 1024, 1), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(kernels->Fill(nullptr, mapped.address(), 1024, 1), CUDA_SUCCESS) << "the launch itself is accepted";
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  });
}

TEST_F(FaultTest, ALostDeviceFailsEveryCallAndNvmlSaysSo) {
  InChild([&] {
    Gpu gpu;
    const auto nvml = LoadNvml();
    Nvml::Memory memory;
    const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    Simgpu("device 0 state=lost recovery-action=1");
    char byte = 0;
    EXPECT_EQ(gpu->MemcpyDtoH(&byte, mapped.address(), 1), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(TryCreate(gpu, 1), CUDA_SUCCESS) << "the other one works";
    EXPECT_EQ(nvml->GetMemory(config_.devices[0].uuid, &memory), NVML_ERROR_GPU_IS_LOST);
    EXPECT_EQ(nvml->GetMemory(config_.devices[1].uuid, &memory), NVML_SUCCESS);
    Simgpu("answer device-lost=46");
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_DEVICE_UNAVAILABLE);
  });
}

TEST_F(FaultTest, ADeviceIsLostToOneProcessAndNotToAnother) {
  Simgpu("rule add process=blind device=0 do=lose");
  InChild([&] {
    ::setenv("SIMCUDA_PROCESS", "blind", 1);
    Gpu gpu(false);
    Nvml::Memory memory;
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(LoadNvml()->GetMemory(config_.devices[0].uuid, &memory), NVML_ERROR_GPU_IS_LOST);
  });
  InChild([&] {
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
  });
}

TEST_F(FaultTest, ARecoveredDeviceIsEmptyAndANewOne) {
  Child old([&](int socket) {
    Gpu gpu;
    gpumem::UniqueFd fd;
    const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    ASSERT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
    Receive(socket);
    // To a process of the earlier life the device never comes back, and what it lets go counts nowhere.
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_UNKNOWN);
    EXPECT_EQ(mapped.handle.Export(&fd), CUDA_ERROR_UNKNOWN);
  });
  const gpumem::UniqueFd kept = Receive(old.socket());
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  Simgpu("device 0 state=lost");
  Simgpu("device 0 recover");
  EXPECT_EQ(PhysicalBytes(), 0u) << "although a process and a descriptor still refer to it";
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle;
    EXPECT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, kept.get(), 2 * kMiB, &handle), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
    std::vector<Nvml::Process> processes;
    EXPECT_EQ(LoadNvml()->GetComputeProcesses(config_.devices[0].uuid, &processes), NVML_SUCCESS);
    ASSERT_EQ(processes.size(), 1u) << "the old life's process is listed";
    EXPECT_EQ(processes[0].pid, static_cast<std::uint32_t>(::getpid()));
  });
  Send(old.socket());
  EXPECT_EQ(old.Wait(), 0);
  EXPECT_EQ(PhysicalBytes(), 0u);
}

TEST_F(FaultTest, CallsOnAHungDeviceBlockUntilItIsWellOrLost) {
  for (const char* const then : {"ok", "lost"}) {
    Simgpu("device 0 state=hung");
    Child child([&](int socket) {
      Gpu gpu(false);
      Send(socket);
      EXPECT_EQ(TryCreate(gpu, 1), CUDA_SUCCESS);
      EXPECT_EQ(TryCreate(gpu, 0), std::strcmp(then, "ok") == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
      Send(socket);
    });
    Receive(child.socket());
    pollfd poll{child.socket(), POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 50), 0) << "it went on";
    Simgpu(std::string("device 0 state=") + then);
    Receive(child.socket());
    EXPECT_EQ(child.Wait(), 0);
  }
}

TEST_F(FaultTest, WithoutPersistenceTheLastOpenerOfTheNodeTakesTheMemoryAlong) {
  const auto publish = [&] {
    Child loader([&](int socket) {
      Gpu gpu(false);
      gpumem::UniqueFd fd;
      ASSERT_EQ(CreateHandle(gpu, 2 * kMiB).Export(&fd), CUDA_SUCCESS);
      Send(socket, fd.get());
      Receive(socket);
    });
    gpumem::UniqueFd kept = Receive(loader.socket());
    Send(loader.socket());
    EXPECT_EQ(loader.Wait(), 0);
    return kept;
  };
  const auto importing = [&](int fd) {
    Child child([&](int) {
      Gpu gpu(false);
      gpumem::cuda::PhysicalHandle handle;
      ::_exit(static_cast<int>(gpumem::cuda::PhysicalHandle::Import(*gpu, fd, 2 * kMiB, &handle)));
    });
    return static_cast<CUresult>(WEXITSTATUS(child.Wait()));
  };
  EXPECT_EQ(importing(publish().get()), CUDA_SUCCESS) << "persistence is on by default";

  Simgpu("device 0 persistence=off");
  gpumem::UniqueFd kept = publish();
  EXPECT_EQ(importing(kept.get()), CUDA_ERROR_INVALID_VALUE) << "seen by the next process that calls cuInit";
  kept = publish();
  EXPECT_EQ(PhysicalBytes(), 0u) << "seen by whoever looks at the truth";

  // What the keeper does: the node, held open by a process without CUDA.
  const gpumem::UniqueFd node(::open((dir_ + "/dev/nvidia0").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(node.valid());
  kept = publish();
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  EXPECT_EQ(importing(kept.get()), CUDA_SUCCESS);
}

TEST_F(FaultTest, ProcessListsLagBehindADeath) {
  // In a child: a library that the test itself loads would stay with its machine.
  const auto expect_listed = [&](const std::vector<std::uint32_t>& pids) {
    InChild([&] {
      std::vector<std::uint32_t> listed;
      std::vector<Nvml::Process> processes;
      EXPECT_EQ(LoadNvml()->GetComputeProcesses(config_.devices[0].uuid, &processes), NVML_SUCCESS);
      for (const Nvml::Process& process : processes) listed.push_back(process.pid);
      EXPECT_EQ(listed, pids);
    });
  };
  Simgpu("device 0 process-list-lag=1000s");
  Child child([&](int socket) {
    Gpu gpu;
    Send(socket);
    Hang();
  });
  Receive(child.socket());
  const auto pid = static_cast<std::uint32_t>(child.pid());
  expect_listed({pid});
  child.Kill();
  expect_listed({pid});
  Simgpu("device 0 process-list-lag=0");
  expect_listed({});
}

TEST_F(FaultTest, AKernelInFlightGoesOnWritingAfterItsProcessWasKilled) {
  Simgpu("device 0 dead-writes=1000s");
  const std::string hold = Simgpu("rule add entry=kernel do=block");
  gpumem::UniqueFd memory;
  gpumem::UniqueFd pidfd;
  gpumem::UniqueFd inherited_end;
  {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    inherited_end.reset(pipe[0]);
    Child child([&](int socket) {
      ::close(pipe[0]);
      Gpu gpu;
      const auto kernels = LoadKernels(gpu);
      const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
      gpumem::UniqueFd fd;
      ASSERT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
      ASSERT_EQ(kernels->Fill(nullptr, mapped.address(), 4096, 7), CUDA_SUCCESS);
      Send(socket, fd.get());
      Hang();
    });
    ::close(pipe[1]);
    memory = Receive(child.socket());
    WaitUntilBlocked(hold);
    child.Kill();
  }
  // The engine is no child of the test, and holds nothing of the process: its pipe is at its end.
  char byte = 0;
  EXPECT_EQ(::read(inherited_end.get(), &byte, 1), 0);
  EXPECT_TRUE(Truth().objects.at(0).handle_held) << "memory that is still written to must not be free";
  Simgpu("rule rm all");
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle;
    ASSERT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, memory.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    const Mapped mapped = MapHandle(gpu, std::move(handle));
    // It writes again and again: whoever uses the memory now is overwritten.
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(gpu->MemsetD8(mapped.address(), 0, 4096), CUDA_SUCCESS);
      unsigned char got = 0;
      while (got == 0) ASSERT_EQ(gpu->MemcpyDtoH(&got, mapped.address(), 1), CUDA_SUCCESS);
    }
  });
  // Ends it: the test must not leave it behind.
  KillEngines(dir_);
  memory.reset();
  while (PhysicalBytes() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(FaultTest, AKernelThatEndedWritesNoMore) {
  Simgpu("device 0 dead-writes=1000s");
  Child child([&](int socket) {
    Gpu gpu;
    const auto kernels = LoadKernels(gpu);
    const Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(kernels->Fill(nullptr, mapped.address(), 4096, 7), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
    Send(socket);
    Hang();
  });
  Receive(child.socket());
  child.Kill();
  // The engine of a kernel that is done ends by itself, and with it the last reference.
  while (PhysicalBytes() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// A preloaded library comes before the sanitizer's, which refuses that.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(FaultTest, AProcessWithoutCudaBlocksInTheCloseOfAnExport) {
  gpumem::UniqueFd fd;
  Child exporter([&](int socket) {
    Gpu gpu(false);
    ASSERT_EQ(CreateHandle(gpu, 2 * kMiB).Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
  });
  fd = Receive(exporter.socket());
  EXPECT_EQ(exporter.Wait(), 0);
  const std::string rule = Simgpu("rule add device=0 entry=close do=block");
  gpumem::SpawnOptions options;
  options.path = "/bin/sh";
  // Its redirection to another file closes what was there before: first /dev/null, then the export.
  options.arguments = {"sh", "-c", "exec 0<&-; exec 3<&-"};
  options.fd3 = fd.get();
  options.set_environment = {{"LD_PRELOAD", TEST_LIB_DIR "/gpumem-sim/libsimcuda-close.so"}};
  gpumem::ChildProcess child;
  ASSERT_EQ(gpumem::Spawn(options, &child), 0);
  fd.reset();
  WaitUntilBlocked(rule);
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  Simgpu("rule release " + rule);
  pollfd poll{child.pidfd.get(), POLLIN, 0};
  while (::poll(&poll, 1, -1) < 1) {
  }
  std::string how;
  EXPECT_TRUE(gpumem::TryReap(child.pidfd.get(), &how));
  EXPECT_EQ(how, "exit code 0");
  EXPECT_EQ(Counts(rule).acted, 1u) << "only the export's close is the driver's";
  EXPECT_EQ(PhysicalBytes(), 0u);
}
#endif

TEST_F(FaultTest, NvmlCallsFollowRules) {
  InChild([&] {
    const auto nvml = LoadNvml();
    Nvml::Memory memory;
    const auto uuid = config_.devices[0].uuid;
    EXPECT_EQ(nvml->GetMemory(uuid, &memory), NVML_SUCCESS);
    Simgpu("rule add entry=nvmlDeviceGetMemoryInfo do=fail:3");
    EXPECT_EQ(nvml->GetMemory(uuid, &memory), NVML_ERROR_NOT_SUPPORTED);
    bool persistent = false;
    EXPECT_EQ(nvml->GetPersistenceMode(uuid, &persistent), NVML_SUCCESS);
    EXPECT_TRUE(persistent);
    Simgpu("device 0 persistence=off");
    EXPECT_EQ(nvml->GetPersistenceMode(uuid, &persistent), NVML_SUCCESS);
    EXPECT_FALSE(persistent);
  });
}

// NVML as a program loads it that listens for events.
struct NvmlEvents {
  void* library = ::dlopen(NvmlLibrary().c_str(), RTLD_NOW | RTLD_LOCAL);
  template <typename F>
  F* Get(const char* name) const {
    return reinterpret_cast<F*>(::dlsym(library, name));
  }
};

TEST_F(FaultTest, NvmlReportsXidsRecoveryActionsAndLoss) {
  InChild([&] {
    const NvmlEvents nvml;
    const auto wait = nvml.Get<nvmlReturn_t(nvmlEventSet_t, nvmlEventData_t*, unsigned int)>("nvmlEventSetWait_v2");
    ASSERT_EQ(nvml.Get<nvmlReturn_t()>("nvmlInit_v2")(), NVML_SUCCESS);
    std::array<nvmlDevice_t, 2> devices{};
    for (unsigned int i = 0; i < 2; ++i) {
      ASSERT_EQ(nvml.Get<nvmlReturn_t(unsigned int, nvmlDevice_t*)>("nvmlDeviceGetHandleByIndex_v2")(i, &devices[i]),
                NVML_SUCCESS);
    }
    Simgpu("xid 0 79");  // before the set is made: not for it
    nvmlEventSet_t set = nullptr;
    const auto watch =
        nvml.Get<nvmlReturn_t(nvmlDevice_t, unsigned long long, nvmlEventSet_t)>("nvmlDeviceRegisterEvents");
    ASSERT_EQ(nvml.Get<nvmlReturn_t(nvmlEventSet_t*)>("nvmlEventSetCreate")(&set), NVML_SUCCESS);
    EXPECT_EQ(watch(devices[0], 0x10 | nvmlEventTypeXidCriticalError, set), NVML_ERROR_NOT_SUPPORTED);
    ASSERT_EQ(watch(devices[0], nvmlEventTypeXidCriticalError, set), NVML_SUCCESS);
    nvmlEventData_t event{};
    EXPECT_EQ(wait(set, &event, 1), NVML_ERROR_TIMEOUT);
    Simgpu("xid 1 13");  // a device that nobody registered
    Simgpu("xid 0 94");
    EXPECT_EQ(wait(set, &event, 60000), NVML_SUCCESS);
    EXPECT_EQ(event.device, devices[0]);
    EXPECT_EQ(event.eventData, 94u);

    // A fault of a kernel is reported too, from another process.
    InChild([&] {
      ::setenv("SIMCUDA_PROCESS", "victim", 1);
      Gpu gpu;
      EXPECT_EQ(LoadKernels(gpu)->Store(nullptr, 0x1000, 1), CUDA_SUCCESS);
      EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    EXPECT_EQ(wait(set, &event, 60000), NVML_SUCCESS);
    EXPECT_EQ(event.eventData, 31u);

    Simgpu("device 0 recovery-action=2");
    nvmlFieldValue_t values[2]{};
    values[0].fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
    values[1].fieldId = 1;
    EXPECT_EQ(
        nvml.Get<nvmlReturn_t(nvmlDevice_t, int, nvmlFieldValue_t*)>("nvmlDeviceGetFieldValues")(devices[0], 2, values),
        NVML_SUCCESS);
    EXPECT_EQ(values[0].nvmlReturn, NVML_SUCCESS);
    EXPECT_EQ(values[0].value.uiVal, 2u);
    EXPECT_EQ(values[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);

    Simgpu("device 0 state=lost");
    EXPECT_EQ(wait(set, &event, 60000), NVML_ERROR_GPU_IS_LOST);
    EXPECT_EQ(nvml.Get<nvmlReturn_t(nvmlEventSet_t)>("nvmlEventSetFree")(set), NVML_SUCCESS);
  });
}

TEST_F(FaultTest, AProcessSeesOneMigInstance) {
  std::string error;
  simcuda::Config config = simcuda::MakeConfig(1, 8 * kGiB);
  simcuda::DivideIntoMig(2, &config);
  const std::string machine = dir_ + "/mig";
  ASSERT_TRUE(simcuda::InitStateDir(machine, config, &error)) << error;
  ::setenv("SIMCUDA_DIR", machine.c_str(), 1);
  const std::string first = config.devices[1].uuid.ToString();
  const std::string second = config.devices[2].uuid.ToString();
  gpumem::UniqueFd fd;
  Child exporter([&](int socket) {
    ::setenv("CUDA_VISIBLE_DEVICES", (second + "," + first).c_str(), 1);
    Gpu gpu(false);
    std::vector<gpumem::cuda::DeviceInfo> devices;
    EXPECT_EQ(gpumem::cuda::ListDevices(*gpu, &devices, &error), CUDA_SUCCESS);
    ASSERT_EQ(devices.size(), 1u);
    EXPECT_EQ(devices[0].uuid.ToString(), second);
    EXPECT_EQ(devices[0].total_bytes, 4 * kGiB);
    ASSERT_EQ(CreateHandle(gpu, 2 * kMiB).Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
  });
  fd = Receive(exporter.socket());
  EXPECT_EQ(exporter.Wait(), 0);
  InChild([&] {  // nothing is named: the first instance, and never the divided GPU
    Gpu gpu(false);
    std::vector<gpumem::cuda::DeviceInfo> devices;
    EXPECT_EQ(gpumem::cuda::ListDevices(*gpu, &devices, &error), CUDA_SUCCESS);
    ASSERT_EQ(devices.size(), 1u);
    EXPECT_EQ(devices[0].uuid.ToString(), first);
    gpumem::cuda::PhysicalHandle handle;
    EXPECT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &handle), CUDA_ERROR_NOT_SUPPORTED)
        << "memory of another instance of the same GPU";
  });
  ::setenv("SIMCUDA_DIR", dir_.c_str(), 1);
}

TEST_F(FaultTest, AnAnswerIsTheSameForEveryCallThatItIsAbout) {
  Simgpu("answer fabric=801");
  InChild([&] {
    Gpu gpu(false);
    CUmemAllocationProp prop = gpumem::cuda::DeviceMemoryProp(0, true);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(gpu->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(gpu->MemImportFromShareableHandle(&handle, &prop, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST_F(FaultTest, AMistakeChangesNothingAndCanBeRepaired) {
  EXPECT_THAT(Simgpu("rule add 'process=my worker' do=fail:2", 1), HasSubstr("without spaces"));
  EXPECT_THAT(Simgpu("rule add entry=cuMemCreat do=fail:2", 1), HasSubstr("is no entry point"));
  EXPECT_THAT(Simgpu("latency cuMemCreat=5us", 1), HasSubstr("is no entry point"));
  EXPECT_THAT(Simgpu("answer fabric=0", 1), HasSubstr("refused in any case"));
  EXPECT_THAT(Simgpu("settings load /tmp", 1), HasSubstr("cannot read"));
  EXPECT_THAT(Simgpu("rule ls"), HasSubstr("no rules"));
  // A recovery that is refused has not begun.
  Child holder([&](int socket) {
    Gpu gpu(false);
    const auto handle = CreateHandle(gpu, 2 * kMiB);
    Send(socket);
    Receive(socket);
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
  });
  Receive(holder.socket());
  EXPECT_THAT(Simgpu("device 0 recover persistance=on", 1), HasSubstr("a device has no 'persistance'"));
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  Send(holder.socket());
  EXPECT_EQ(holder.Wait(), 0);
  // A text that was broken by hand is named, and replaced.
  Simgpu("rule add entry=cuMemCreate do=fail:2");
  std::ofstream(dir_ + "/settings") << "rul\n";
  EXPECT_THAT(Simgpu("rule ls", 1), HasSubstr("settings load"));
  Simgpu("settings load /dev/null");
  EXPECT_THAT(Simgpu("rule ls"), HasSubstr("no rules"));
}

TEST_F(FaultTest, ASettingsFileThatIsThereFromTheBeginningIsRead) {
  std::ofstream(dir_ + "/settings") << "rule id=1 entry=cuMemCreate do=fail:801\n";
  InChild([&] {
    Gpu gpu(false);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST_F(FaultTest, AProcessWithoutDescriptorsKeepsItsSettings) {
  InChild([&] {
    Gpu gpu(false);
    Simgpu("device 0 state=lost");
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_UNKNOWN);
    // Another change, which this process has no descriptor to read.
    gpumem::UniqueFd spare(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    std::string error;
    const auto control = simcuda::Control::Open(dir_, &error);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    control->PostXid(config_.devices[0].uuid, 1);
    const rlimit none{static_cast<rlim_t>(spare.get()), limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &none);
    EXPECT_EQ(TryCreate(gpu), CUDA_ERROR_UNKNOWN) << "a lost device works for whoever cannot read that it is lost";
    ::setrlimit(RLIMIT_NOFILE, &limit);
    Simgpu("device 0 state=ok");
    EXPECT_EQ(TryCreate(gpu), CUDA_SUCCESS);
  });
}

TEST_F(FaultTest, NvmlStartsWithALostDeviceAndDiesByRule) {
  Simgpu("rule add entry=nvmlInit_v2 do=lose");
  InChild([&] { LoadNvml(); });
  Simgpu("rule rm all");
  Simgpu("rule add entry=nvmlInit_v2 do=kill-after");
  Child child([&](int) { LoadNvml(); });
  const int status = child.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(FaultTest, TheToolSaysWhatIsWrong) {
  EXPECT_THAT(Simgpu("rule add entry=cuInit", 1), HasSubstr("a rule needs do=ACTION"));
  EXPECT_THAT(Simgpu("rule add device=9 do=block", 1), HasSubstr("'9' names no device; there are:"));
  EXPECT_THAT(Simgpu("rule rm 77", 1), HasSubstr("there is no rule '77'"));
  EXPECT_THAT(Simgpu("rule ls"), HasSubstr("no rules"));
  EXPECT_THAT(Simgpu("device 0 life=7", 1), HasSubstr("'recover' alone"));
  EXPECT_THAT(Simgpu("latency fast", 1), HasSubstr("the profiles are a100 and zero"));
  EXPECT_THAT(Simgpu("answer"), HasSubstr("hidden-device"));
  Simgpu("rule add entry=cuMemMap call=4 do=delay:1ms");
  EXPECT_THAT(Simgpu("settings show"), HasSubstr("entry=cuMemMap call=4 do=delay:1ms"));
  EXPECT_THAT(Simgpu("settings load /nonexistent", 1), HasSubstr("cannot read"));
  Simgpu("settings show > " + dir_ + "/saved");
  Simgpu("rule rm all");
  Simgpu("settings load " + dir_ + "/saved");
  EXPECT_THAT(Simgpu("rule ls"), HasSubstr("do=delay:1ms"));
}

}  // namespace
}  // namespace simtest
