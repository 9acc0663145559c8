// The main job, step by step: a worker faults, is killed and replaced, and nothing is lost.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/e2e/node.h"

namespace gpumem::e2e {
namespace {

using nlohmann::json;

// Numbers of gpumem.h and cuda.h, spelled here because a test must not take them from the code that it checks.
constexpr const char* kIllegalAddress = "700";

class MainJobTest : public testing::Test {
 protected:
  void SetUp() override { node_.Start(); }
  const std::string& Gpu(std::size_t i) const { return node_.uuids()[i]; }

  // A loader publishes `name`: two chunks of 2 MiB filled with `value`, two tensors.
  void Publish(const std::string& name, std::uint32_t value) {
    auto loader = node_.NewWorker("loader", "weights");
    loader->Do("build w " + name + " " + Gpu(0) + " 2097152 2");
    loader->Do("map w");
    loader->Do("fill w " + std::to_string(value));
    EXPECT_EQ(loader->Get("seal w embed F32 0 1048576 head BF16 2097152 1048576", "name"), name + "@1");
    loader->Do("close");
  }

  Node node_;
};

TEST_F(MainJobTest, ASealedSegmentOutlivesItsPublisherAndIsChargedOnceForAllItsReaders) {
  Publish("models/tiny", 0xabcd1234);
  node_.Eventually("the loader's session is settled", [&] { return node_.Memctl("sessions")["sessions"].empty(); });
  auto a = node_.NewWorker("engine", "weights");
  auto b = node_.NewWorker("engine", "weights");
  for (Worker* worker : {a.get(), b.get()}) {
    EXPECT_EQ(worker->Get("attach s models/tiny", "name"), "models/tiny@1");
    worker->Do("map s");
    worker->Do("check s " + std::to_string(0xabcd1234u));
    EXPECT_EQ(worker->Get("tensors s", "tensors"), "embed:F32:0:1048576,head:BF16:2097152:1048576,");
  }
  const json device = node_.Memctl("devices")["devices"][0];
  EXPECT_EQ(device["charged_bytes"], 4 * kMiB);
  EXPECT_EQ(device["physical_bytes"], 4 * kMiB);
  node_.Eventually("both mappings are in the books",
                   [&] { return node_.Memctl("devices")["devices"][0]["mapped_read_only_bytes"] == 8 * kMiB; });
  const json segment = node_.Memctl("segments")["segments"][0];
  EXPECT_EQ(segment["readers"], 2);
  EXPECT_EQ(segment["state"], "sealed");
  node_.ExpectBooksMatchHardware();
}

TEST_F(MainJobTest, AFaultedWorkerIsFencedAndWhatItCouldWriteToIsQuarantinedUntilItsProcessHasEnded) {
  Publish("models/tiny", 7);
  auto a = node_.NewWorker("engine-a", "kv-cache");
  a->Do("attach s models/tiny");
  a->Do("map s");
  a->Do("alloc kv " + Gpu(0) + " 2097152 3");
  a->Do("map kv");
  a->Do("fill kv 1");
  auto b = node_.NewWorker("engine-b", "kv-cache");
  b->Do("attach s models/tiny");
  b->Do("map s");
  b->Do("alloc kv " + Gpu(0) + " 2097152 1");
  b->Do("map kv");
  b->Do("fill kv 2");

  // A stores through its read-only mapping: a sticky fault of A alone.
  EXPECT_EQ(a->Get("store s 99", "cuda"), kIllegalAddress);
  EXPECT_EQ(a->Get("store kv 99", "cuda"), kIllegalAddress);  // it stays
  a->Do("report");
  a->Refused("alloc more " + Gpu(0) + " 2097152 1", "CUDA_FATAL");

  const json quarantine = node_.Memctl("quarantine")["records"];
  ASSERT_EQ(quarantine.size(), 1u) << quarantine.dump(1);
  EXPECT_EQ(quarantine[0]["reason"], "writer-faulted");
  EXPECT_EQ(quarantine[0]["bytes"], 6 * kMiB);
  EXPECT_EQ(quarantine[0]["holder"], "engine-a");
  EXPECT_EQ(quarantine[0]["pid"], a->pid());
  EXPECT_EQ(quarantine[0]["evidence"], json::array({"fault-reported"}));
  EXPECT_EQ(quarantine[0]["waiting_for"], json::array({"pidfd-readable", "witness-closed"}));
  // The segment is untouched, and B goes on.
  EXPECT_EQ(node_.Memctl("segments")["segments"][0]["state"], "sealed");
  b->Do("check s 7");
  b->Do("check kv 2");
  b->Do("fill kv 3");
  // Charged still, to the tenant, until the process is gone.
  EXPECT_EQ(node_.Memctl("devices")["devices"][0]["charged_bytes"], (4 + 6 + 2) * kMiB);
  node_.ExpectBooksMatchHardware();

  a->process().Kill();
  node_.Eventually("A's charges are settled", [&] { return node_.Memctl("quarantine")["records"].empty(); });
  EXPECT_EQ(node_.Memctl("devices")["devices"][0]["charged_bytes"], (4 + 2) * kMiB);
  node_.ExpectBooksMatchHardware();

  auto replacement = node_.NewWorker("engine-a", "kv-cache");
  replacement->Do("attach s models/tiny");
  replacement->Do("map s");
  replacement->Do("check s 7");
  replacement->Do("alloc kv " + Gpu(0) + " 2097152 3");
  replacement->Do("map kv");
  replacement->Do("check kv 0");  // nobody's old bytes
  b->Do("check kv 3");
  node_.ExpectBooksMatchHardware();
}

TEST_F(MainJobTest, AWorkerKilledWithoutAReportIsSettledByItsProcessEnd) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(1) + " 2097152 8");
  a->Do("map kv");
  EXPECT_EQ(node_.PhysicalTruth(), 16 * kMiB);
  a->process().Kill();
  node_.ExpectNothingLeft();
}

TEST_F(MainJobTest, AWorkerThatJustExitsLeavesNothing) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(1) + " 2097152 8");
  a->Do("map kv");
  a->process().CloseInput();
  ASSERT_TRUE(a->process().Wait());
  node_.ExpectNothingLeft();
}

TEST_F(MainJobTest, ABuilderThatDiesBeforeSealingLeavesNothingVisible) {
  auto builder = node_.NewWorker("loader", "weights");
  builder->Do("build w models/half " + Gpu(0) + " 2097152 2");
  builder->Do("map w");
  auto reader = node_.NewWorker("engine", "weights");
  reader->Refused("attach s models/half", "NOT_SEALED", {"models/half"});
  builder->process().Kill();
  reader->Do("close");
  reader->process().Kill();
  node_.ExpectNothingLeft();
  EXPECT_TRUE(node_.Memctl("segments")["segments"].empty());
}

TEST_F(MainJobTest, ReleaseGivesTheMemoryBackAtOnce) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(0) + " 2097152 4 " + Gpu(1) + " 4194304 1");
  a->Do("map kv");
  EXPECT_EQ(node_.PhysicalTruth(), 12 * kMiB);
  a->Do("release kv");
  EXPECT_EQ(node_.PhysicalTruth(), 0u);
  node_.ExpectBooksMatchHardware();
  EXPECT_TRUE(node_.Memctl("leases")["leases"].empty());
}

TEST_F(MainJobTest, ALeaseOfMoreChunksThanTheFrameWindowIsFetchedInFull) {
  auto a = node_.NewWorker("engine", "kv-cache");
  // Four frames of 253 are the window.
  EXPECT_EQ(a->Get("alloc kv " + Gpu(0) + " 2097152 1100", "chunks"), "1100");
  a->Do("map kv");
  node_.ExpectBooksMatchHardware();
  a->Do("release kv");
  a->process().Kill();
  node_.ExpectNothingLeft();
}

TEST_F(MainJobTest, AForkedChildThatOutlivesItsParentKeepsTheMemoryInQuarantine) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(0) + " 2097152 2");
  a->Do("map kv");
  const pid_t child = static_cast<pid_t>(std::stol(a->Get("fork", "pid")));
  a->process().Kill();
  node_.Eventually("the process's end is seen, and the witness is still waited for", [&] {
    const json rows = node_.Memctl("quarantine")["records"];
    return rows.size() == 1 && rows[0]["waiting_for"] == json::array({"witness-closed"}) &&
           rows[0]["reason"] == "writer-died";
  });
  EXPECT_EQ(node_.Memctl("devices")["devices"][0]["quarantined_bytes"], 4 * kMiB);
  node_.ExpectBooksMatchHardware();
  ::kill(child, SIGKILL);
  node_.ExpectNothingLeft();
}

TEST_F(MainJobTest, AnExecedChildDoesNotHoldTheMemory) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(0) + " 2097152 2");
  a->Do("map kv");
  const pid_t child = static_cast<pid_t>(std::stol(a->Get("forkexec", "pid")));
  a->process().Kill();
  node_.ExpectNothingLeft();
  ::kill(child, SIGKILL);
}

TEST_F(MainJobTest, AForkedChildFindsADeadClientAndTheParentGoesOn) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(0) + " 2097152 2");
  a->Refused("inchild alloc more " + Gpu(0) + " 2097152 1", "FORKED");
  EXPECT_EQ(a->Ask("inchild close"), "ok");
  a->Do("map kv");
  a->Do("fill kv 4");
  a->Do("check kv 4");
  a->Do("alloc more " + Gpu(0) + " 2097152 1");
  EXPECT_EQ(node_.Memctl("devices")["devices"][0]["charged_bytes"], 6 * kMiB);
  node_.ExpectBooksMatchHardware();
}

TEST_F(MainJobTest, AWorkerSeesTheDaemonStopOnItsEventDescriptor) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("alloc kv " + Gpu(0) + " 2097152 1");
  a->Do("map kv");
  // Another worker comes and goes, until A hears of it: then A's subscription is known to stand.
  a->Do("subscribe");
  a->Send("event 6");
  for (bool heard = false; !heard;) {
    auto other = node_.NewWorker("other", "other");
    other->process().Kill();
    heard = a->HasAnswer();
  }
  EXPECT_EQ(a->process().ReadLine().value_or("").rfind("ok kind=6", 0), 0u);
  a->Send("event 4");
  node_.daemon().Signal(SIGTERM);
  EXPECT_EQ(a->process().ReadLine().value_or("").rfind("ok kind=4", 0), 0u);
  const auto status = node_.daemon().Wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) == 0) << *status << node_.daemon().errors();
  // What is mapped stays usable without a daemon.
  a->Do("fill kv 9");
  a->Do("check kv 9");
}

}  // namespace
}  // namespace gpumem::e2e
