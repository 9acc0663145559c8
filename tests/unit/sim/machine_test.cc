// Machines and what a process sees of them: the state directory, initialisation, devices, entry points, NVML, the
// truth in C, and the tool.
#include <dlfcn.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "cuda/devices.h"
#include "cuda/nvml.h"
#include "cuda/sim/simcuda.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::cuda::Driver;
using gpumem::cuda::Nvml;
using testing::Test;

class MachineViewTest : public MachineTest {};

std::unique_ptr<Driver> Load() {
  std::string error;
  auto driver = Driver::Load(CudaLibrary().c_str(), &error);
  EXPECT_NE(driver, nullptr) << error;
  return driver;
}

std::string OutputOf(const std::string& command, int* status) {
  std::string out;
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 512> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) out += buffer.data();
  *status = ::pclose(pipe);
  return out;
}

TEST_F(MachineViewTest, CallsBeforeInitAreRefused) {
  InChild([&] {
    const auto driver = Load();
    int number = 0;
    EXPECT_EQ(driver->DriverGetVersion(&number), CUDA_SUCCESS);
    EXPECT_EQ(driver->DeviceGetCount(&number), CUDA_ERROR_NOT_INITIALIZED);
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = gpumem::cuda::DeviceMemoryProp(0, true);
    EXPECT_EQ(driver->MemCreate(&handle, 2 * kMiB, &prop, 0), CUDA_ERROR_NOT_INITIALIZED);
    CUcontext context = nullptr;
    EXPECT_EQ(driver->DevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(driver->Init(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(driver->Init(0), CUDA_SUCCESS);
    EXPECT_EQ(driver->Init(0), CUDA_SUCCESS);
    EXPECT_EQ(driver->DeviceGetCount(&number), CUDA_SUCCESS);
  });
}

TEST_F(MachineViewTest, AForkedChildOfAnInitialisedProcessIsRefused) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    Child forked([&](int) {
      char byte = 0;
      int count = 0;
      EXPECT_EQ(gpu->Init(0), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(gpu->DeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(gpu->MemcpyDtoH(&byte, mapped.address(), 1), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(gpu->MemUnmap(mapped.address(), 2 * kMiB), CUDA_ERROR_NOT_INITIALIZED);
      EXPECT_EQ(gpu->DescribeError(CUDA_SUCCESS), "CUDA_SUCCESS (0): no error");
    });
    EXPECT_EQ(forked.Wait(), 0);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);  // the parent goes on
  });
}

// A forked child that outlives its parent shares what the parent had open. Would that include the device's lock, a
// parent that is killed at the wrong moment would stop the whole machine: this test would not end.
TEST_F(MachineViewTest, AKilledParentLeavesNoLockWithItsChildren) {
  for (int round = 0; round < 20; ++round) {
    Child parent([&](int socket) {
      Gpu gpu(false);
      if (::fork() == 0) {
        Receive(socket);  // until the test has looked
        ::_exit(0);
      }
      Send(socket);
      while (true) CreateHandle(gpu, 2 * kMiB);
    });
    Receive(parent.socket());
    ::usleep(static_cast<useconds_t>(round * 100));
    parent.Kill();
    EXPECT_LE(Truth().objects.size(), 1u);  // what the parent held at the fork, at most
    Send(parent.socket());
  }
}

TEST_F(MachineViewTest, ForksWhileOthersAllocate) {
  InChild([&] {
    Gpu gpu(false);
    std::atomic<bool> stop{false};
    std::thread allocating([&] {
      while (!stop) CreateHandle(gpu, 2 * kMiB);
    });
    std::vector<pid_t> children;
    for (int i = 0; i < 20; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        int count = 0;
        ::_exit(gpu->DeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
      }
      children.push_back(pid);
    }
    stop = true;
    allocating.join();
    for (const pid_t pid : children) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      EXPECT_EQ(status, 0);
    }
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
}

TEST_F(MachineViewTest, NoMachineIsSaidAloud) {
  Child child([&](int) {
    ::unsetenv("SIMCUDA_DIR");
    testing::internal::CaptureStderr();
    EXPECT_EQ(Load()->Init(0), CUDA_ERROR_NO_DEVICE);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("SIMCUDA_DIR is not set"), std::string::npos);
    ::setenv("SIMCUDA_DIR", "/nowhere/at/all", 1);
    testing::internal::CaptureStderr();
    EXPECT_EQ(Load()->Init(0), CUDA_ERROR_NO_DEVICE);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("simgpu init --dir /nowhere/at/all"), std::string::npos);
    ::setenv("SIMCUDA_DIR", dir_.c_str(), 1);
    EXPECT_EQ(Load()->Init(0), CUDA_SUCCESS);  // a failure is not remembered
  });
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(MachineViewTest, DevicesAreListedByUuid) {
  InChild([&] {
    Gpu gpu(false);
    std::vector<gpumem::cuda::DeviceInfo> devices;
    std::string failed;
    ASSERT_EQ(gpumem::cuda::ListDevices(*gpu, &devices, &failed), CUDA_SUCCESS) << failed;
    ASSERT_EQ(devices.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(devices[i].uuid, config_.devices[i].uuid);
      EXPECT_EQ(devices[i].ordinal, static_cast<int>(i));
      EXPECT_EQ(devices[i].total_bytes, 80 * kGiB);
      EXPECT_EQ(devices[i].granularity_bytes, 2 * kMiB);
      EXPECT_TRUE(devices[i].vmm_supported);
      EXPECT_TRUE(devices[i].posix_fd_supported);
      EXPECT_FALSE(devices[i].pci_bus_id.empty());
    }
    EXPECT_NE(devices[0].pci_bus_id, devices[1].pci_bus_id);
    EXPECT_EQ(gpumem::cuda::FindDevice(devices, config_.devices[1].uuid)->ordinal, 1);
    EXPECT_FALSE(gpumem::cuda::FindDevice(devices, gpumem::DeviceUuid()).has_value());
    EXPECT_TRUE(gpu->is_simulated());
    CUdevice device = 0;
    EXPECT_EQ(gpu->DeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(gpu->DeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  });
}

TEST_F(MachineViewTest, VisibleDevicesBecomeOrdinals) {
  const std::string second = config_.devices[1].uuid.ToString();
  const struct {
    std::string variable;
    std::vector<int> expected;
  } cases[] = {{"1", {1}},
               {"1,0", {1, 0}},
               {second, {1}},
               {second.substr(0, 14), {1}},
               {second + ",0", {1, 0}},
               {"0,7,1", {0}},
               {"0,-1,1", {0}},
               {"", {}},
               {"GPU-", {}},
               {"x", {}},
               {"0,0", {}}};
  for (const auto& c : cases) {
    EXPECT_EQ(simcuda::SelectVisible(config_, c.variable.c_str()), c.expected) << c.variable;
  }
  EXPECT_EQ(simcuda::SelectVisible(config_, nullptr), (std::vector<int>{0, 1}));

  ::setenv("CUDA_VISIBLE_DEVICES", second.c_str(), 1);
  InChild([&] {
    Gpu gpu(false);
    std::vector<gpumem::cuda::DeviceInfo> devices;
    std::string failed;
    ASSERT_EQ(gpumem::cuda::ListDevices(*gpu, &devices, &failed), CUDA_SUCCESS);
    ASSERT_EQ(devices.size(), 1u);
    EXPECT_EQ(devices[0].uuid, config_.devices[1].uuid);
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    EXPECT_EQ(PhysicalBytes(0), 0u);
    EXPECT_EQ(PhysicalBytes(1), 2 * kMiB);
  });
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  InChild([&] { EXPECT_EQ(Load()->Init(0), CUDA_ERROR_NO_DEVICE); });
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(MachineViewTest, AnFdOfADeviceThatIsNotVisibleIsRefused) {
  Child creator([&](int socket) {
    Gpu gpu(false);
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    gpumem::UniqueFd fd;
    EXPECT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
  });
  gpumem::UniqueFd fd = Receive(creator.socket());
  EXPECT_EQ(creator.Wait(), 0);
  ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  InChild([&] {
    Gpu gpu(false);
    gpumem::cuda::PhysicalHandle handle;
    EXPECT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &handle), CUDA_ERROR_INVALID_DEVICE);
  });
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(MachineViewTest, EntryPointsByNameAndVersion) {
  InChild([&] {
    const auto driver = Load();
    const auto get =
        reinterpret_cast<CUresult (*)(const char*, void**, int, uint64_t, CUdriverProcAddressQueryResult*)>(
            driver->FindSymbol("cuGetProcAddress_v2"));
    void* found = nullptr;
    auto status = CU_GET_PROC_ADDRESS_SUCCESS;
    EXPECT_EQ(get("cuMemCreate", &found, 10020, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, driver->FindSymbol("cuMemCreate"));
    EXPECT_EQ(get("cuMemCreate", &found, 10010, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(get("cuNothing", &found, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(get("cuMemCreate", &found, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);  // newer than the driver
    // The same base name, another ABI.
    EXPECT_EQ(get("cuGetProcAddress", &found, 12000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, driver->FindSymbol("cuGetProcAddress_v2"));
    EXPECT_EQ(get("cuGetProcAddress", &found, 11080, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, driver->FindSymbol("cuGetProcAddress"));
    const auto old = reinterpret_cast<CUresult (*)(const char*, void**, int, uint64_t)>(found);
    EXPECT_EQ(old("cuMemCreate", &found, 11030, 0), CUDA_SUCCESS);
    EXPECT_EQ(old("cuNothing", &found, 11030, 0), CUDA_ERROR_NOT_FOUND);
  });
}

TEST_F(MachineViewTest, NvmlTellsTheSameTruth) {
  Child worker([&](int socket) {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, kGiB);
    Send(socket);
    Hang();
  });
  Child without_context([&](int socket) {
    Gpu gpu(false);
    Send(socket);
    Hang();
  });
  Receive(worker.socket());
  Receive(without_context.socket());
  std::string error;
  const auto nvml = Nvml::Load(NvmlLibrary().c_str(), &error);
  ASSERT_NE(nvml, nullptr) << error;
  const auto& uuid = config_.devices[0].uuid;
  Nvml::Memory memory;
  EXPECT_EQ(nvml->GetMemory(uuid, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total_bytes, 80 * kGiB);
  EXPECT_EQ(memory.used_bytes, kGiB);
  EXPECT_EQ(memory.free_bytes, 79 * kGiB);
  std::vector<Nvml::Process> processes;
  EXPECT_EQ(nvml->GetComputeProcesses(uuid, &processes), NVML_SUCCESS);
  ASSERT_EQ(processes.size(), 1u);  // only who has a context
  EXPECT_EQ(processes[0].pid, static_cast<std::uint32_t>(worker.pid()));
  EXPECT_EQ(nvml->GetComputeProcesses(config_.devices[1].uuid, &processes), NVML_SUCCESS);
  EXPECT_TRUE(processes.empty());
  bool persistent = false;
  EXPECT_EQ(nvml->GetPersistenceMode(uuid, &persistent), NVML_SUCCESS);
  EXPECT_TRUE(persistent);
  std::string version;
  EXPECT_EQ(nvml->GetDriverVersion(&version), NVML_SUCCESS);
  EXPECT_FALSE(version.empty());
  EXPECT_EQ(nvml->GetMemory(gpumem::DeviceUuid(), &memory), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvml->DescribeError(NVML_ERROR_NOT_FOUND), "Not Found (6)");
  worker.Kill();
  EXPECT_EQ(nvml->GetComputeProcesses(uuid, &processes), NVML_SUCCESS);
  EXPECT_TRUE(processes.empty());
  EXPECT_EQ(nvml->GetMemory(uuid, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.used_bytes, 0u);
}

TEST_F(MachineViewTest, TheTruthInC) {
  InChild([&] {
    Gpu gpu(false);
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 6 * kMiB);
    gpumem::UniqueFd fd;
    ASSERT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    const auto read = reinterpret_cast<decltype(&simcuda_hardware_truth)>(gpu->FindSymbol("simcuda_hardware_truth"));
    const auto free = reinterpret_cast<decltype(&simcuda_truth_free)>(gpu->FindSymbol("simcuda_truth_free"));
    simcuda_truth* truth = nullptr;
    char error[200];
    ASSERT_EQ(read(nullptr, &truth, error, sizeof error), 0) << error;
    ASSERT_EQ(truth->device_count, 2u);
    EXPECT_EQ(truth->devices[0].uuid, config_.devices[0].uuid.ToString());
    EXPECT_EQ(truth->devices[0].capacity_bytes, 80 * kGiB);
    EXPECT_EQ(truth->devices[0].physical_bytes, 6 * kMiB);
    ASSERT_EQ(truth->devices[0].object_count, 1u);
    EXPECT_EQ(truth->devices[0].objects[0].bytes, 6 * kMiB);
    EXPECT_EQ(truth->devices[0].objects[0].handle_held, 1u);
    EXPECT_EQ(truth->devices[0].objects[0].exported_fds, 1u);
    EXPECT_EQ(truth->devices[1].object_count, 0u);
    free(truth);
    EXPECT_NE(read("/nowhere", &truth, error, sizeof error), 0);
    EXPECT_NE(std::string(error).find("/nowhere/config"), std::string::npos) << error;
  });
}

TEST_F(MachineViewTest, TheTool) {
  const std::string tool = TEST_BIN_DIR "/simgpu";
  int status = 0;
  const std::string made = dir_ + "/made";
  std::string out = OutputOf(tool + " init --dir " + made + " --gpus 3 --memory 1GiB", &status);
  EXPECT_EQ(status, 0) << out;
  EXPECT_EQ(out.substr(0, out.find('\n')), "export SIMCUDA_DIR=" + made);
  out = OutputOf(tool + " init --dir " + made, &status);
  EXPECT_NE(status, 0);
  EXPECT_NE(out.find("already holds a simulated machine"), std::string::npos) << out;
  out = OutputOf(tool + " init --dir " + made + "2 --memory lots", &status);
  EXPECT_NE(status, 0);
  EXPECT_NE(out.find("'lots' is no size"), std::string::npos) << out;
  out = OutputOf(tool + " init --dir " + made + "2 --memory 3MiB", &status);
  EXPECT_NE(status, 0);
  EXPECT_NE(out.find("not a multiple of the granularity"), std::string::npos) << out;

  InChild([&] {
    Gpu gpu(false);
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    int result = 0;
    std::string shown = OutputOf(tool + " ls --dir " + dir_ + " --json", &result);
    EXPECT_EQ(result, 0);
    const std::string uuid = config_.devices[0].uuid.ToString();
    EXPECT_EQ(shown.substr(0, shown.find("\"objects\"")),
              "{\"devices\":[{\"uuid\":\"" + uuid +
                  "\",\"name\":\"Simulated GPU\",\"capacity_bytes\":85899345920,\"physical_bytes\":2097152,");
    EXPECT_NE(shown.find("\"bytes\":2097152"), std::string::npos);
    shown = OutputOf(tool + " ls", &result);
    EXPECT_EQ(result, 0);
    EXPECT_NE(shown.find(uuid + "  Simulated GPU  2.0 MiB of 80.0 GiB in 1 object\n"), std::string::npos) << shown;
  });
  out = OutputOf("env -u SIMCUDA_DIR " + tool + " ls", &status);
  EXPECT_NE(status, 0);
  EXPECT_NE(out.find("--dir"), std::string::npos) << out;
}

TEST_F(MachineViewTest, ConfigsAreReadStrictly) {
  const std::string uuid = config_.devices[0].uuid.ToString();
  const auto read = [&](const std::string& text) {
    std::ofstream(dir_ + "/config") << text;
    simcuda::Config config;
    std::string error;
    return simcuda::ReadConfig(dir_, &config, &error) ? "" : error.substr(error.find("' ") + 2);
  };
  EXPECT_EQ(read("simcuda 1\n# a comment\ndevice " + uuid + " 4194304 2097152 Some name\n"), "");
  EXPECT_EQ(read("simcuda 2\n"), "line 1: expected 'simcuda 1'");
  EXPECT_EQ(read("simcuda 1\n"), "lists no device");
  const std::string form = "expected 'device UUID CAPACITY_BYTES GRANULARITY_BYTES NAME' or 'mig UUID GPU_UUID …'";
  EXPECT_EQ(read("simcuda 1\ndevice " + uuid + " 4194304 2097152\n"), "line 2: " + form);
  EXPECT_EQ(read("simcuda 1\ndevice GPU-1 4194304 2097152 x\n"), "line 2: " + form);
  EXPECT_EQ(read("simcuda 1\ndevice " + uuid + " -1 2097152 x\n"), "line 2: " + form);
  EXPECT_EQ(read("simcuda 1\ndevice " + uuid + " 4194304 3000 x\n"),
            "line 2: granularity 3000 is not a power of two of at least 64 KiB");
  EXPECT_EQ(read("simcuda 1\ndevice " + uuid + " 3145728 2097152 x\n"),
            "line 2: capacity 3145728 is not a multiple of the granularity, 2097152");
}

TEST(SimConfigTest, Sizes) {
  EXPECT_EQ(simcuda::ParseBytes("80GiB"), 80 * kGiB);
  EXPECT_EQ(simcuda::ParseBytes("4096"), 4096u);
  EXPECT_EQ(simcuda::ParseBytes("2MiB"), 2 * kMiB);
  for (const char* bad : {"", "GiB", "1.5GiB", "80GB", "-1", "99999999999TiB", "1 GiB"}) {
    EXPECT_FALSE(simcuda::ParseBytes(bad).has_value()) << bad;
  }
  EXPECT_EQ(simcuda::FormatBytes(0), "0 B");
  EXPECT_EQ(simcuda::FormatBytes(80 * kGiB), "80.0 GiB");
  EXPECT_EQ(simcuda::FormatBytes(3 * kMiB / 2), "1.5 MiB");
}

TEST(SimLibraryTest, ExportsOnlyItsOwnNames) {
  for (const auto& [library, pattern] :
       {std::pair(CudaLibrary(), " (cu[A-Z]|simcuda_)"), {NvmlLibrary(), " nvml[A-Z]"}}) {
    int status = 0;
    const std::string foreign =
        OutputOf(std::string("nm -D --defined-only ") + library + " | grep -vE '" + pattern + "'", &status);
    EXPECT_EQ(foreign, "");
  }
}

}  // namespace
}  // namespace simtest
