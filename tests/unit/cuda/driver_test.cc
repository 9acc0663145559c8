// Loading the driver and NVML, what they say when something is missing, and what errors mean.
#include "cuda/driver.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "cuda/devices.h"
#include "cuda/fault.h"
#include "cuda/nvml.h"
#include "cuda/resources.h"

namespace gpumem::cuda {
namespace {

constexpr char kSimulated[] = TEST_LIB_DIR "/gpumem-sim/libcuda.so.1";

TEST(DriverLoadTest, AMissingLibraryIsNamed) {
  std::string error;
  EXPECT_EQ(Driver::Load("/nowhere/libcuda.so.1", &error), nullptr);
  EXPECT_EQ(error.find("cannot load the CUDA driver '/nowhere/libcuda.so.1': "), 0u) << error;
  EXPECT_NE(error.find("install the NVIDIA driver"), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(DriverLoadTest, AMissingEntryPointIsNamedWithBothVersions) {
  std::string error;
  EXPECT_EQ(Driver::Load(INCOMPLETE_DRIVER, &error), nullptr);
  EXPECT_EQ(error, "the CUDA driver '" INCOMPLETE_DRIVER
                   "' (CUDA 11.2) has no entry point cuDeviceGetUuid_v2, which CUDA 11.4 introduced; update the NVIDIA "
                   "driver");
}

TEST(DriverLoadTest, ALibraryThatIsNoDriverIsNamed) {
  std::string error;
  EXPECT_EQ(Driver::Load("libc.so.6", &error), nullptr);
  EXPECT_NE(error.find("has no entry point cuInit"), std::string::npos) << error;
  EXPECT_NE(error.find("check that this file is a complete CUDA driver library"), std::string::npos) << error;
}

TEST(DriverLoadTest, EveryEntryPointIsFound) {
  std::string error;
  const auto driver = Driver::Load(kSimulated, &error);
  ASSERT_NE(driver, nullptr) << error;
  std::set<void*> distinct;
  int count = 0;
#define GPUMEM_CUDA_ENTRY(member, base, exported, since, group, parameters)                       \
  EXPECT_NE(driver->member, nullptr) << #exported;                                                \
  EXPECT_EQ(reinterpret_cast<void*>(driver->member), driver->FindSymbol(#exported)) << #exported; \
  distinct.insert(reinterpret_cast<void*>(driver->member));                                       \
  ++count;
#include "cuda/entry_points.def"
#undef GPUMEM_CUDA_ENTRY
  EXPECT_EQ(distinct.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(driver->version(), 13000);
  EXPECT_TRUE(driver->is_simulated());
  EXPECT_EQ(driver->path(), kSimulated);
}

TEST(DriverLoadTest, ErrorsAreDescribedInTheDriversWords) {
  std::string error;
  const auto driver = Driver::Load(kSimulated, &error);
  ASSERT_NE(driver, nullptr) << error;
  EXPECT_EQ(driver->DescribeError(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  EXPECT_EQ(driver->DescribeError(static_cast<CUresult>(12345)), "unknown CUDA error (12345)");
}

TEST(DriverLoadTest, VersionsAreWrittenAsPeopleDo) {
  EXPECT_EQ(CudaVersionText(12040), "12.4");
  EXPECT_EQ(CudaVersionText(10020), "10.2");
  EXPECT_EQ(CudaVersionText(13000), "13.0");
}

TEST(DriverResourcesTest, AFailedCallKeepsTheResourceAndTheOutput) {
  ::unsetenv("SIMCUDA_DIR");
  std::string error;
  const auto driver = Driver::Load(kSimulated, &error);
  ASSERT_NE(driver, nullptr) << error;
  // Nothing was initialised: each call is refused.
  PhysicalHandle handle;
  EXPECT_EQ(PhysicalHandle::Create(*driver, 0, 1 << 21, true, &handle), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_FALSE(handle.valid());
  AddressRange range;
  EXPECT_EQ(AddressRange::Reserve(*driver, 1 << 21, 0, 0, &range), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_FALSE(range.valid());
  PhysicalHandle owned(driver.get(), 7, 1 << 21);
  EXPECT_EQ(owned.Release(), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_TRUE(owned.valid());
  PhysicalHandle moved(std::move(owned));
  EXPECT_TRUE(moved.valid());
  EXPECT_FALSE(owned.valid());  // NOLINT: that a move leaves nothing behind is the point
  std::vector<DeviceInfo> devices;
  std::string failed_call;
  EXPECT_EQ(ListDevices(*driver, &devices, &failed_call), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(failed_call, "cuDeviceGetCount");
}

TEST(NvmlLoadTest, AMissingLibraryIsANormalAnswer) {
  std::string error;
  EXPECT_EQ(Nvml::Load("/nowhere/libnvidia-ml.so.1", &error), nullptr);
  EXPECT_EQ(error.find("cannot load NVML '/nowhere/libnvidia-ml.so.1': "), 0u) << error;
  EXPECT_EQ(Nvml::Load("libc.so.6", &error), nullptr);
  EXPECT_NE(error.find("has no entry point nvmlInit_v2"), std::string::npos) << error;
}

TEST(NvmlLoadTest, ALibraryWithoutADriverSaysSo) {
  ::unsetenv("SIMCUDA_DIR");
  std::string error;
  EXPECT_EQ(Nvml::Load(TEST_LIB_DIR "/gpumem-sim/libnvidia-ml.so.1", &error), nullptr);
  EXPECT_NE(error.find("does not start: "), std::string::npos) << error;
  EXPECT_NE(error.find("(9)"), std::string::npos) << error;
}

TEST(FaultTest, Classes) {
  for (const int none : {0, 1, 2, 3, 100, 101, 201, 400, 500, 600, 800, 801, 900, 901, 906, 908}) {
    EXPECT_EQ(Classify(static_cast<CUresult>(none)), FaultClass::kNone) << none;
  }
  for (const int process : {4, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 806, 807, 808, 809, 810}) {
    EXPECT_EQ(Classify(static_cast<CUresult>(process)), FaultClass::kProcess) << process;
  }
  for (const int ecc : {214, 226}) EXPECT_EQ(Classify(static_cast<CUresult>(ecc)), FaultClass::kEcc) << ecc;
  for (const int device : {46, 220, 802, 911, 999}) {
    EXPECT_EQ(Classify(static_cast<CUresult>(device)), FaultClass::kDevice) << device;
  }
  static_assert(Classify(CUDA_ERROR_ILLEGAL_ADDRESS) == FaultClass::kProcess);
}

TEST(FindDeviceTest, TheKindIsNotCompared) {
  DeviceUuid::Raw raw{};
  raw[0] = 1;
  std::vector<DeviceInfo> devices(2);
  devices[1].uuid = DeviceUuid(DeviceUuid::Kind::kGpu, raw);
  devices[1].ordinal = 1;
  const auto found = FindDevice(devices, DeviceUuid(DeviceUuid::Kind::kMig, raw));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->ordinal, 1);
  raw[0] = 2;
  EXPECT_FALSE(FindDevice(devices, DeviceUuid(DeviceUuid::Kind::kGpu, raw)).has_value());
}

}  // namespace
}  // namespace gpumem::cuda
