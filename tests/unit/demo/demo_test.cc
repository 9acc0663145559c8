// The demo's parts that need no daemon: the peer's steps, the report, messages, processes and the cleaning up.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/process.h"
#include "client/demo/cleanup.h"
#include "client/demo/messages.h"
#include "client/demo/model.h"
#include "client/demo/report.h"
#include "client/demo/screen.h"
#include "client/loader/safetensors.h"

namespace gpumem::demo {
namespace {

using ::testing::HasSubstr;

class DemoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpumem-demo-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::string dir_;
};

TEST(StepWatchTest, CountsHolesAndFailures) {
  StepWatch watch;
  watch.Add(1, 10, 0);
  watch.Add(11, 20, 0);
  EXPECT_EQ(watch.done(), 20u);
  EXPECT_EQ(watch.missed(), 0u);
  watch.Add(24, 30, 0);  // 21, 22, 23
  EXPECT_EQ(watch.missed(), 3u);
  watch.Add(31, 40, 2);
  EXPECT_EQ(watch.missed(), 5u);
  watch.Add(35, 41, 0);  // told before
  EXPECT_EQ(watch.missed(), 6u);
  EXPECT_EQ(watch.done(), 41u);
  watch.Add(42, 41, 0);  // backwards
  EXPECT_EQ(watch.missed(), 7u);
}

TEST(StepWatchTest, ALateFirstStepIsAHole) {
  StepWatch watch;
  watch.Add(3, 4, 0);
  EXPECT_EQ(watch.missed(), 2u);
}

TEST(ReportTest, PassesOnlyWhenEveryCheckHeldAndThereWasOne) {
  Report report;
  EXPECT_FALSE(report.passed());
  EXPECT_TRUE(report.Check(true, "one"));
  EXPECT_TRUE(report.passed());
  EXPECT_FALSE(report.Check(false, "two"));
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.held(), 1u);
  EXPECT_EQ(report.checks(), 2u);
}

TEST_F(DemoTest, TheReportIsJsonWithItsFactsInOrder) {
  Report report;
  report.Set("recovery_ms", 412.5);
  report.Set("tensors_verified", 225);
  report.Set("books_match_hardware", nullptr);
  report.Set("recovery_ms", 413.0);
  report.Check(true, "a \"quoted\" check");
  const std::string path = dir_ + "/r.json";
  EXPECT_EQ(report.Write(path), "");
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(text,
            "{\n"
            "  \"passed\": true,\n"
            "  \"recovery_ms\": 413.0,\n"
            "  \"tensors_verified\": 225,\n"
            "  \"books_match_hardware\": null,\n"
            "  \"checks\": [\n"
            "    {\n"
            "      \"what\": \"a \\\"quoted\\\" check\",\n"
            "      \"held\": true\n"
            "    }\n"
            "  ]\n"
            "}\n");
  EXPECT_THAT(report.Write("/no/such/dir/r.json"), HasSubstr("/no/such/dir/r.json"));
}

TEST(MessagesTest, GoBothWaysAndEndWithTheSocket) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  UniqueFd ours(pair[0]), theirs(pair[1]);
  Json message;
  EXPECT_EQ(Receive(ours.get(), /*blocking=*/false, &message), Received::kNothing);
  ASSERT_TRUE(Send(theirs.get(), {{"event", "steps"}, {"last", 12}, {"ms", 1.5}, {"bad", "\xff"}}));
  ASSERT_EQ(Receive(ours.get(), /*blocking=*/false, &message), Received::kMessage);
  EXPECT_EQ(TextOf(message, "event"), "steps");
  EXPECT_EQ(NumberOf(message, "last"), 12u);
  EXPECT_EQ(RealOf(message, "ms"), 1.5);
  EXPECT_EQ(TextOf(message, "last"), "");
  EXPECT_EQ(NumberOf(message, "event"), 0u);
  EXPECT_EQ(NumberOf(message, "missing"), 0u);
  EXPECT_FALSE(Send(theirs.get(), {{"event", std::string(kMaxMessageBytes, 'x')}}));
  ASSERT_EQ(::send(theirs.get(), "[1]", 3, 0), 3);
  EXPECT_EQ(Receive(ours.get(), /*blocking=*/false, &message), Received::kBroken);
  theirs.reset();
  EXPECT_EQ(Receive(ours.get(), /*blocking=*/true, &message), Received::kEnd);
  EXPECT_FALSE(Send(ours.get(), {{"command", "finish"}}));
}

TEST_F(DemoTest, TheDefaultModelIsTheSameEveryTimeAndWhole) {
  const std::string path = dir_ + "/m";
  ASSERT_EQ(WriteDefaultModel(path), "");
  const loader::Result<loader::File> file = loader::File::Open(path);
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->header().tensors.size(), 75u);
  EXPECT_GE(file->header().data_bytes, std::uint64_t{256} << 20);
  // Two tensors of one shape differ, and a tensor does not repeat its blocks.
  std::vector<std::byte> one(64), two(64), later(64);
  const std::vector<loader::Tensor>& tensors = file->header().tensors;
  ASSERT_FALSE(file->Read(tensors[1], 0, one));
  ASSERT_FALSE(file->Read(tensors[2], 0, two));
  ASSERT_FALSE(file->Read(tensors[1], 1 << 20, later));
  EXPECT_NE(one, two);
  EXPECT_NE(one, later);
}

TEST(ScreenTest, Numbers) {
  EXPECT_EQ(Bytes(0), "0 bytes");
  EXPECT_EQ(Bytes(std::uint64_t{256} << 20), "256 MiB");
  EXPECT_EQ(Bytes(1025), "1025 bytes");
  EXPECT_EQ(Milliseconds(412.4), "412 ms");
  EXPECT_EQ(Milliseconds(1300), "1.3 s");
  EXPECT_EQ(Count(1, "step", "steps"), "1 step");
  EXPECT_EQ(Count(2, "step", "steps"), "2 steps");
}

// A process with the mark of a demo in `directory`, in a session of its own, that would live for long.
ChildProcess StartMarked(const std::string& directory) {
  SpawnOptions options;
  options.path = "/bin/sleep";
  options.arguments = {"sleep", "1000"};
  options.set_environment = {{kMark, directory}};
  options.new_session = true;
  ChildProcess child;
  EXPECT_EQ(Spawn(options, &child), 0);
  return child;
}

std::string EndOf(const ChildProcess& child) {
  pollfd ended{child.pidfd.get(), POLLIN, 0};
  ::poll(&ended, 1, 60000);
  std::string how;
  EXPECT_TRUE(TryReap(child.pidfd.get(), &how));
  return how;
}

TEST_F(DemoTest, TheJanitorEndsWhatHasTheMarkAndNothingElse) {
  const ChildProcess ours = StartMarked(dir_);
  const ChildProcess other = StartMarked(dir_ + "x");
  std::ofstream(dir_ + "/file") << "x";
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  UniqueFd read_end(pipe[0]), write_end(pipe[1]);
  std::thread janitor([&] { EXPECT_EQ(RunJanitor(read_end.get(), dir_), 0); });
  write_end.reset();
  janitor.join();
  EXPECT_THAT(EndOf(ours), HasSubstr("signal 9"));
  EXPECT_FALSE(std::filesystem::exists(dir_));
  std::string how;
  EXPECT_FALSE(TryReap(other.pidfd.get(), &how)) << "a process of another demo was ended: " << how;
  SendSignal(other.pidfd.get(), SIGKILL);
  EndOf(other);
}

}  // namespace
}  // namespace gpumem::demo
