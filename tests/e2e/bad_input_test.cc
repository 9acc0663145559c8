// Every refusal names the thing, the number asked, the limit and the next step, and changes no book.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>

#include "tests/e2e/node.h"

namespace gpumem::e2e {
namespace {

using nlohmann::json;

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    Node::Options options;
    options.gpus = 1;
    options.config = "[tenant]\nlimit = \"1GiB\"\n";
    node_ = std::make_unique<Node>(options);
    node_->Start();
    worker_ = node_->NewWorker("engine", "kv-cache");
  }
  // What must be the same before and after a refusal.
  json Books() {
    json books;
    for (const char* what : {"devices", "holders", "leases", "segments", "quarantine"})
      books[what] = node_->Memctl(what);
    for (json& device : books["devices"]["devices"]) device.erase("unattributed_bytes");
    return books;
  }
  void Refused(const std::string& command, const std::string& reason, const std::vector<std::string>& words = {}) {
    const json before = Books();
    worker_->Refused(command, reason, words);
    EXPECT_EQ(Books(), before) << "'" << command << "' changed the books";
  }
  const std::string& Gpu() const { return node_->uuids()[0]; }

  std::unique_ptr<Node> node_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(BadInputTest, Sizes) {
  Refused("alloc x " + Gpu() + " 0 1", "SIZE_ZERO");
  Refused("alloc x " + Gpu() + " 2097152 0", "SIZE_ZERO");
  Refused("alloc x " + Gpu() + " 18446744073709551615 1", "SIZE_OVERFLOW", {"18446744073709551615"});
  Refused("alloc x " + Gpu() + " 9223372036854775808 3", "SIZE_OVERFLOW", {"9223372036854775808"});
  Refused("alloc x " + Gpu() + " 2097152 4000000000", "TOO_MANY_CHUNKS", {"4000000000", "65536"});
}

TEST_F(BadInputTest, DevicesAndHolders) {
  Refused("alloc x GPU-00000000-0000-0000-0000-000000000000 2097152 1", "UNKNOWN_DEVICE",
          {"GPU-00000000-0000-0000-0000-000000000000", Gpu()});
  Refused("alloc x gpu0 2097152 1", "UNKNOWN_DEVICE", {"gpu0"});
  Refused("holder engine 77", "INVALID_ARGUMENT", {"77"});
  Refused("holder bad/../name\x01 kv-cache", "NAME_INVALID");
}

TEST_F(BadInputTest, QuotaAndCapacityNameWhatWasAskedAndWhatIsLeft) {
  worker_->Do("alloc kv " + Gpu() + " 536870912 1");
  Refused("alloc x " + Gpu() + " 805306368 1", "QUOTA", {"805306368", "536870912", "1073741824"});
}

TEST_F(BadInputTest, Segments) {
  Refused("attach s nothing/here", "UNKNOWN_SEGMENT", {"nothing/here"});
  Refused("attach s bad//name", "NAME_INVALID", {"bad//name"});
  Refused("build w ../escape " + Gpu() + " 2097152 1", "NAME_INVALID", {"../escape"});
  Refused("build w name@3 " + Gpu() + " 2097152 1", "NAME_INVALID", {"name@3"});
  worker_->Do("build w models/a " + Gpu() + " 2097152 1");
  Refused("build v models/a " + Gpu() + " 2097152 1", "SEGMENT_EXISTS", {"models/a"});
  Refused("attach s models/a", "NOT_SEALED", {"models/a"});
}

TEST_F(BadInputTest, ManifestsThatReachOutsideOrOverlap) {
  worker_->Do("build w models/a " + Gpu() + " 2097152 1");
  worker_->Do("map w");
  worker_->Refused("seal w big U8 0 2097153", "MANIFEST_INVALID", {"big", "2097153", "2097152"});
  worker_->Refused("seal w far U8 18446744073709551615 2", "MANIFEST_INVALID", {"far"});
  worker_->Refused("seal w one U8 0 8 two U8 7 8", "MANIFEST_INVALID", {"one", "two"});
  worker_->Refused("seal w odd XX 0 8", "MANIFEST_INVALID", {"odd", "XX"});
  EXPECT_TRUE(node_->Memctl("segments")["segments"][0]["state"] == "building");
  worker_->Do("seal w fine U8 0 8");
}

TEST_F(BadInputTest, ASegmentInUseIsNotRemoved) {
  worker_->Do("build w models/a " + Gpu() + " 2097152 1");
  worker_->Do("seal w fine U8 0 8");
  worker_->Do("attach s models/a");
  Refused("attach again models/a", "ALREADY_ATTACHED", {"models/a@1"});
  const Finished in_use = RunCommand(node_->MemctlCommand({"segments", "rm", "models/a@1"}));
  EXPECT_EQ(in_use.exit_code, 1);
  EXPECT_NE(in_use.err.find("SEGMENT_IN_USE"), std::string::npos) << in_use.err;
  worker_->Do("detach s");
  EXPECT_EQ(RunCommand(node_->MemctlCommand({"segments", "rm", "models/a@1"})).exit_code, 0);
  EXPECT_EQ(RunCommand(node_->MemctlCommand({"segments", "rm", "models/a@1"})).exit_code, 1);
  worker_->process().Kill();
  node_->ExpectNothingLeft();
}

TEST_F(BadInputTest, ASecondDaemonOnTheSameSocketsIsRefusedAndTheFirstGoesOn) {
  const Finished second = RunCommand(node_->DaemonCommand());
  EXPECT_NE(second.exit_code, 0);
  EXPECT_NE(second.err.find(node_->dir()), std::string::npos) << second.err;
  worker_->Do("alloc kv " + Gpu() + " 2097152 1");
  node_->ExpectBooksMatchHardware();
}

TEST_F(BadInputTest, ASecondDaemonAtTheSameKeeperIsRefusedAndTheFirstGoesOn) {
  Command command = node_->DaemonCommand();
  for (std::string& word : command.argv) {
    if (word == node_->socket_dir()) word += "-2";
    if (word == node_->dir() + "/admin") word += "-2";
  }
  const Finished second = RunCommand(command);
  EXPECT_NE(second.exit_code, 0);
  EXPECT_NE(second.err.find("another gpumemd uses the keeper at " + node_->dir() + "/keeper/keeper.sock"),
            std::string::npos)
      << second.err;
  EXPECT_NE(second.err.find("--keeper-socket"), std::string::npos) << second.err;
  worker_->Do("build w models/a " + Gpu() + " 2097152 1");
  node_->ExpectBooksMatchHardware();
}

TEST_F(BadInputTest, MemctlOnTheWorkersSocketIsToldWhichOneItNeeds) {
  const Finished answer =
      RunCommand(node_->MemctlCommand({"--socket", node_->socket_dir() + "/control.sock", "status"}));
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_NE(answer.err.find("admin.sock"), std::string::npos) << answer.err;
}

// timeout(1) signals its child and then its group.
TEST_F(BadInputTest, ADoubledSignalToStopIsOneCleanStop) {
  node_->daemon().Signal(SIGTERM);
  node_->daemon().Signal(SIGTERM);
  const auto status = node_->daemon().Wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status << node_->daemon().errors();
}

TEST_F(BadInputTest, AnUnprivilegedPeerIsNotAnOperator) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  Command command = node_->MemctlCommand({"status"});
  // The directory is not theirs to enter, so the refusal is the kernel's; memctl says it in a sentence.
  command.argv.insert(command.argv.begin(), {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  const Finished answer = RunCommand(command);
  EXPECT_NE(answer.exit_code, 0);
  EXPECT_NE(answer.err.find("admin.sock"), std::string::npos) << answer.err;
}

TEST(BadConfigTest, AnUnknownKeyIsNamedWithTheNearestValidOne) {
  Node::Options options;
  options.gpus = 1;
  options.config = "[tenant]\nlimt = \"1GiB\"\n";
  Node node(options);
  const Finished daemon = RunCommand(node.DaemonCommand());
  EXPECT_NE(daemon.exit_code, 0);
  EXPECT_NE(daemon.err.find("limt"), std::string::npos) << daemon.err;
  EXPECT_NE(daemon.err.find("limit"), std::string::npos) << daemon.err;
}

TEST(NoDaemonTest, MemctlSaysWhichSocketItTriedAndHowToStartTheDaemon) {
  Node node;
  const Finished answer = RunCommand(node.MemctlCommand({"status"}));
  EXPECT_EQ(answer.exit_code, 3);
  EXPECT_NE(answer.err.find(node.admin_socket()), std::string::npos) << answer.err;
  EXPECT_NE(answer.err.find("gpumemd"), std::string::npos) << answer.err;
  Worker worker(Process::Spawn(node.WorkerCommand()));
  worker.Refused("connect", "NOT_RUNNING", {node.socket_dir()});
}

}  // namespace
}  // namespace gpumem::e2e
