// The whole demo with a small model: what it reports, and that it leaves nothing behind however it ends.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/process.h"
#include "client/loader/safetensors.h"

namespace gpumem::demo {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class WholeDemoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/dev/shm/gpumem-whole-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    dir_ = pattern;
    std::filesystem::create_directory(dir_ + "/place");
    // Sizes that are no multiple of a word, and an empty tensor.
    std::vector<loader::TensorToWrite> tensors;
    for (const std::uint64_t bytes :
         {std::uint64_t{3}, std::uint64_t{0}, std::uint64_t{4099}, std::uint64_t{1} << 20}) {
      tensors.push_back({"t" + std::to_string(bytes), "U8", {bytes}, [](std::uint64_t from, std::span<std::byte> out) {
                           for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(from + i * 7);
                         }});
    }
    ASSERT_FALSE(loader::Write(dir_ + "/model", tensors, {}));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Starts the demo, and reads what it says until `until` (or its end).
  void Start(const std::vector<std::string>& arguments, const std::string& until) {
    int pipe[2];
    ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
    said_.reset(pipe[0]);
    UniqueFd write_end(pipe[1]);
    SpawnOptions options;
    options.path = TEST_BIN_DIR "/gpumem-demo";
    options.arguments = {"gpumem-demo", "--dir", dir_ + "/place", "--report", dir_ + "/report.json"};
    options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
    options.stdout_fd = options.stderr_fd = write_end.get();
    ASSERT_EQ(Spawn(options, &demo_), 0);
    write_end.reset();
    char block[4096];
    while (until.empty() || output_.find(until) == std::string::npos) {
      const ssize_t n = ::read(said_.get(), block, sizeof block);
      if (n <= 0) break;
      output_.append(block, static_cast<std::size_t>(n));
    }
  }
  std::string End() {
    pollfd ended{demo_.pidfd.get(), POLLIN, 0};
    ::poll(&ended, 1, 100'000);
    std::string how;
    EXPECT_TRUE(TryReap(demo_.pidfd.get(), &how));
    return how;
  }

  // Waits until nothing is left in the place, nor a process that knows of it.
  bool NothingIsLeft() {
    for (int i = 0; i < 3000; ++i) {
      if (std::filesystem::is_empty(dir_ + "/place") && Processes().empty()) return true;
      ::poll(nullptr, 0, 10);
    }
    return false;
  }
  std::vector<std::string> Processes() {
    std::vector<std::string> found;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      std::stringstream text;
      text << file.rdbuf();  // a process may end while it is read: that is an empty line, not an exception
      const std::string line = text.str();
      if (line.find(dir_) != std::string::npos) found.push_back(entry.path().string() + " " + line);
    }
    return found;
  }
  Json Report() {
    std::ifstream file(dir_ + "/report.json");
    return Json::parse(file, nullptr, /*allow_exceptions=*/false);
  }

  std::string dir_, output_;
  UniqueFd said_;
  ChildProcess demo_;
};

TEST_F(WholeDemoTest, EveryCheckHoldsAndTheReportSaysSo) {
  Start({"--model", dir_ + "/model"}, "");
  EXPECT_EQ(End(), "exit code 0") << output_;
  EXPECT_TRUE(NothingIsLeft());
  const Json report = Report();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["passed"], true);
  EXPECT_EQ(report["tensors"], 4);
  EXPECT_EQ(report["tensors_verified"], 12);
  EXPECT_EQ(report["tensors_verified_by"], Json::parse(R"({"A":4,"A2":4,"B":4})"));
  EXPECT_EQ(report["peer_missed_steps"], 0);
  EXPECT_GT(report["peer_steps"], 0);
  EXPECT_GT(report["recovery_ms"], 0);
  EXPECT_EQ(report["quarantined_bytes"], (64 + 2) << 20);
  EXPECT_EQ(report["quarantine_reason"], "writer-faulted");
  EXPECT_EQ(report["books_match_hardware"], true);
  EXPECT_EQ(report["hardware"].size(), 2u);
  EXPECT_EQ(report["interrupted"], false);
  for (const Json& check : report["checks"]) EXPECT_EQ(check["held"], true) << check;
  EXPECT_EQ(output_.find('\x1b'), std::string::npos) << "colours, and this is no terminal";
}

TEST_F(WholeDemoTest, ALyingModelFailsWithItsReason) {
  std::filesystem::resize_file(dir_ + "/model", 1 << 20);
  Start({"--model", dir_ + "/model"}, "");
  EXPECT_EQ(End(), "exit code 1") << output_;
  EXPECT_THAT(output_, HasSubstr("loader says: " + dir_ + "/model: tensor \"t1048576\" ends at byte"));
  EXPECT_TRUE(NothingIsLeft());
  EXPECT_EQ(Report()["passed"], false);
}

TEST_F(WholeDemoTest, AnInterruptCleansUp) {
  Start({"--model", dir_ + "/model"}, "3  Two workers");
  SendSignal(demo_.pidfd.get(), SIGINT);
  EXPECT_EQ(End(), "exit code 130");
  EXPECT_TRUE(NothingIsLeft());
  EXPECT_EQ(Report()["interrupted"], true);
}

TEST_F(WholeDemoTest, AKilledDemoLeavesNothing) {
  Start({"--model", dir_ + "/model"}, "4  A faults");
  EXPECT_FALSE(Processes().empty());
  SendSignal(demo_.pidfd.get(), SIGKILL);
  EXPECT_THAT(End(), HasSubstr("signal 9"));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(WholeDemoTest, AWrongCommandLineExitsWith2) {
  Start({"--driver", "voodoo"}, "");
  EXPECT_EQ(End(), "exit code 2") << output_;
}

TEST_F(WholeDemoTest, AMissingModelExitsWith2) {
  Start({"--model", dir_ + "/missing"}, "");
  EXPECT_EQ(End(), "exit code 2") << output_;
}

}  // namespace
}  // namespace gpumem::demo
