#include "daemon/arena/probe.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "cuda/sim/config.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

constexpr char kHost[] = TEST_BIN_DIR "/arena_keeper_host";
constexpr char kSimCuda[] = TEST_LIB_DIR "/gpumem-sim/libcuda.so.1";

TEST(Probe, ListsTheSimulatedDevices) {
  char dir[] = "/dev/shm/gpumem-probe-XXXXXX";
  ASSERT_NE(::mkdtemp(dir), nullptr);
  const std::string machine = std::string(dir) + "/sim";
  const simcuda::Config config = simcuda::MakeConfig(2, 64u << 20);
  std::string error;
  ASSERT_TRUE(simcuda::InitStateDir(machine, config, &error)) << error;
  ProbeOptions options;
  options.executable = kHost;
  options.driver = "sim";
  options.libcuda = kSimCuda;
  options.environment = {{"SIMCUDA_DIR", machine}};
  const absl::StatusOr<ProbeResult> result = ProbeDevices(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->simulated);
  EXPECT_GT(result->driver_version, 11000);
  ASSERT_EQ(result->devices.size(), 2u);
  EXPECT_EQ(result->devices[0].uuid, config.devices[0].uuid);
  EXPECT_EQ(result->devices[1].uuid, config.devices[1].uuid);
  EXPECT_EQ(result->devices[0].total_bytes, 64u << 20);
  EXPECT_EQ(result->devices[0].granularity_bytes, config.devices[0].granularity_bytes);
  EXPECT_TRUE(result->devices[0].posix_fd_supported);

  // The simulation is never taken for the real thing.
  options.driver = "cuda";
  EXPECT_NE(ProbeDevices(options).status().message().find("kind sim"), absl::string_view::npos);
  std::filesystem::remove_all(dir);
}

TEST(Probe, AMissingDriverIsNamed) {
  ProbeOptions options;
  options.executable = kHost;
  options.libcuda = "/nowhere/libcuda.so.1";
  const absl::StatusOr<ProbeResult> result = ProbeDevices(options);
  EXPECT_EQ(core::ReasonOf(result.status()), core::Reason::NO_DRIVER);
  EXPECT_NE(result.status().message().find("/nowhere/libcuda.so.1"), absl::string_view::npos) << result.status();
}

TEST(Probe, AProgramThatIsNotThereIsNamed) {
  ProbeOptions options;
  options.executable = "/nowhere/gpumemd";
  EXPECT_NE(ProbeDevices(options).status().message().find("/nowhere/gpumemd"), absl::string_view::npos);
}

TEST(Probe, AnAnswerThatIsNoneIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", R"({"driver":{"kind":"sim","version":1,"path":""}})",
                           R"({"driver":{"kind":1,"version":1,"path":""},"devices":[]})",
                           R"({"driver":{"kind":"sim","version":1,"path":""},"devices":[{"uuid":"GPU-1"}]})"}) {
    EXPECT_FALSE(ParseProbe(text).ok()) << text;
  }
}

}  // namespace
}  // namespace gpumem::arena
