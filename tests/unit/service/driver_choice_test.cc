// Which driver is chosen, and that there is never a quiet fallback.
#include "daemon/driver_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class DriverChoiceTest : public ::testing::Test {
 protected:
  absl::StatusOr<DriverChoice> Choose(const std::string& driver) {
    config_.driver = driver;
    Surroundings surroundings;
    surroundings.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto it = environment_.find(name);
      return it == environment_.end() ? std::nullopt : std::optional(it->second);
    };
    surroundings.exists = [this](const std::string& path) { return files_.count(path) != 0; };
    surroundings.executable_dir = "/b/bin";
    return ChooseDriver(config_, surroundings);
  }
  std::string ErrorOf(const std::string& driver) { return std::string(Choose(driver).status().message()); }

  Config config_;
  std::map<std::string, std::string> environment_;
  std::set<std::string> files_ = {"/node", "/b/bin/../lib/gpumem-sim/libcuda.so.1"};
};

TEST_F(DriverChoiceTest, AutoIsCudaUnlessASimulatedNodeIsNamed) {
  ASSERT_TRUE(Choose("auto").ok());
  EXPECT_FALSE(Choose("auto")->simulated);
  EXPECT_EQ(Choose("auto")->libcuda, "");
  environment_["SIMCUDA_DIR"] = "/node";
  EXPECT_TRUE(Choose("auto")->simulated);
  environment_.clear();
  config_.sim_dir = "/node";
  EXPECT_TRUE(Choose("auto")->simulated);
}

TEST_F(DriverChoiceTest, SimTellsTheArenasWhereTheNodeIs) {
  environment_["SIMCUDA_DIR"] = "/elsewhere";
  config_.sim_dir = "/node";
  const auto choice = Choose("sim");
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->libcuda, "/b/bin/../lib/gpumem-sim/libcuda.so.1");
  ASSERT_EQ(choice->environment.size(), 1u);
  EXPECT_EQ(choice->environment[0], std::pair(std::string("SIMCUDA_DIR"), std::string("/node")));
}

TEST_F(DriverChoiceTest, SimWithoutANodeSaysHowToMakeOne) {
  EXPECT_THAT(ErrorOf("sim"), testing::AllOf(HasSubstr("simgpu init"), HasSubstr("SIMCUDA_DIR")));
  environment_["SIMCUDA_DIR"] = "/gone";
  EXPECT_THAT(ErrorOf("sim"), testing::AllOf(HasSubstr("/gone does not exist"), HasSubstr("simgpu init")));
}

TEST_F(DriverChoiceTest, ANamedLibraryDirectoryIsTheOnlyOneLookedIn) {
  environment_ = {{"SIMCUDA_DIR", "/node"}, {"GPUMEM_SIM_LIBRARY_DIR", "/env"}};
  EXPECT_THAT(ErrorOf("sim"), testing::AllOf(HasSubstr("no libcuda.so.1 in /env."), HasSubstr("--sim-library-dir")));
  files_.insert("/env/libcuda.so.1");
  EXPECT_EQ(Choose("sim")->libcuda, "/env/libcuda.so.1");
  config_.sim_library_dir = "/flag";
  EXPECT_THAT(ErrorOf("sim"), HasSubstr("/flag"));
}

TEST_F(DriverChoiceTest, CudaTakesTheLibraryThatIsNamedOrFails) {
  environment_["SIMCUDA_DIR"] = "/node";
  config_.cuda_library = "/opt/libcuda.so.1";
  EXPECT_THAT(ErrorOf("cuda"), HasSubstr("/opt/libcuda.so.1"));
  files_.insert("/opt/libcuda.so.1");
  EXPECT_EQ(Choose("cuda")->libcuda, "/opt/libcuda.so.1");
  EXPECT_FALSE(Choose("cuda")->simulated);
}

}  // namespace
}  // namespace gpumem
