// What the driver can do to the daemon and its workers, by the simulation's rules: failures of single calls, processes
// killed before and after a call took effect, a device that hangs, and answers that are other than the strictest.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/e2e/node.h"

namespace gpumem::e2e {
namespace {

using nlohmann::json;

class DriverFaultsTest : public testing::Test {
 protected:
  const std::string& Gpu(std::size_t i) const { return node_.uuids()[i]; }

  // Tells the simulated machine; what it prints.
  std::string Simgpu(std::vector<std::string> args) {
    std::vector<std::string> argv = {std::string(TEST_BIN_DIR) + "/simgpu", "--dir", node_.dir() + "/sim"};
    argv.insert(argv.end(), args.begin(), args.end());
    Finished told = RunCommand({argv, {}});
    EXPECT_EQ(told.exit_code, 0) << told.err;
    while (!told.out.empty() && told.out.back() == '\n') told.out.pop_back();
    return told.out;
  }
  std::string AddRule(std::vector<std::string> fields) {
    fields.insert(fields.begin(), {"rule", "add"});
    return Simgpu(std::move(fields));
  }
  // How many calls the rule acted on.
  int Acted(const std::string& rule) {
    const std::string list = Simgpu({"rule", "ls"});
    const std::size_t at = list.find("acted on ", list.find("id=" + rule + " "));
    return at == std::string::npos ? -1 : std::stoi(list.substr(at + 9));
  }
  // A worker allocates, maps, writes, reads, and gives everything back.
  void ExpectServes(std::size_t device) {
    auto worker = node_.NewWorker("after", "kv-cache");
    worker->Do("alloc kv " + Gpu(device) + " 2097152 3");
    worker->Do("map kv");
    worker->Do("fill kv 5");
    worker->Do("check kv 5");
    worker->Do("release kv");
  }

  Node node_;
};

// The codes that cuda-facts call unknown, each another one than the strictest.
TEST_F(DriverFaultsTest, TheMainJobIsTheSameWithOtherAnswersOfTheDriver) {
  Simgpu({"answer", "device-out-of-range=1", "reserved-field=801", "fabric=801", "export-type=801", "export-no-fd=2",
          "export-cloexec=1", "foreign-fd=400", "hidden-device=801", "unaligned-reserve=2", "free-while-mapped=400",
          "map-size=999", "map-over-mapped=208", "map-unreserved=400", "access-count-0=0", "retain-unmapped=400",
          "sticky-vmm=0", "device-lost=46", "capture-vmm=900"});
  node_.Start();
  auto loader = node_.NewWorker("loader", "weights");
  loader->Do("build w models/tiny " + Gpu(0) + " 2097152 2");
  loader->Do("map w");
  loader->Do("fill w 7");
  loader->Do("seal w embed F32 0 1048576");
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("attach s models/tiny");
  a->Do("map s");
  a->Do("check s 7");
  a->Do("alloc kv " + Gpu(0) + " 2097152 3 " + Gpu(1) + " 2097152 1");
  a->Do("map kv");
  EXPECT_EQ(a->Get("store s 99", "cuda"), "700");
  a->Do("report");
  node_.ExpectBooksMatchHardware();
  a->process().Kill();
  node_.Eventually("A's charges are settled", [&] { return node_.Memctl("quarantine")["records"].empty(); });
  auto replacement = node_.NewWorker("engine", "kv-cache");
  replacement->Do("attach s models/tiny");
  replacement->Do("map s");
  replacement->Do("check s 7");
  node_.ExpectBooksMatchHardware();
}

TEST_F(DriverFaultsTest, AGrantThatTheDriverRefusesHalfWayLeavesNothing) {
  node_.Start();
  auto worker = node_.NewWorker("engine", "kv-cache");
  const struct {
    const char* entry;
    const char* code;
    const char* reason;
  } kCases[] = {{"cuMemCreate", "2", "DRIVER_OUT_OF_MEMORY"},
                {"cuMemCreate", "999", "DRIVER_FAILED"},
                {"cuMemExportToShareableHandle", "304", "DRIVER_FAILED"}};
  for (const auto& one : kCases) {
    // On the second device, after the first one gave everything: all or nothing.
    const std::string rule = AddRule(
        {"process=arena", "device=1", std::string("entry=") + one.entry, "call=2", std::string("do=fail:") + one.code});
    worker->Refused("alloc kv " + Gpu(0) + " 2097152 2 " + Gpu(1) + " 2097152 3", one.reason, {one.entry, Gpu(1)});
    EXPECT_EQ(Acted(rule), 1);
    EXPECT_EQ(node_.PhysicalTruth(), 0u) << one.entry;
    EXPECT_EQ(node_.Sum(node_.Memctl("devices")["devices"], "charged_bytes"), 0u);
    Simgpu({"rule", "rm", "all"});
    worker->Do("alloc kv " + Gpu(0) + " 2097152 2 " + Gpu(1) + " 2097152 3");
    worker->Do("release kv");
  }
  worker->process().Kill();
  node_.ExpectNothingLeft();
}

TEST_F(DriverFaultsTest, AnArenaKilledInsideADriverCallTakesNoBooksAlong) {
  node_.Start();
  for (const char* const entry : {"cuMemCreate", "cuMemExportToShareableHandle", "cuMemRelease"}) {
    for (const char* const when : {"kill-before", "kill-after"}) {
      SCOPED_TRACE(std::string(entry) + " " + when);
      const pid_t arena = node_.ArenaPid(0);
      auto worker = node_.NewWorker("engine", "kv-cache");
      const std::string rule =
          AddRule({"process=arena", "device=0", std::string("entry=") + entry, "call=2", std::string("do=") + when});
      // It fails, or it was done before the arena died: both are fine, if the books know which.
      worker->Ask("alloc kv " + Gpu(0) + " 2097152 3");
      node_.Eventually("the arena was killed there", [&] { return Acted(rule) == 1; });
      Simgpu({"rule", "rm", "all"});
      node_.Eventually("the next arena serves", [&] {
        return node_.ArenaPid(0) != arena && node_.Memctl("devices")["devices"][0]["state"] == "healthy";
      });
      node_.ExpectBooksMatchHardware();
      worker->process().Kill();
      node_.ExpectNothingLeft();
      ExpectServes(0);
    }
  }
}

TEST_F(DriverFaultsTest, AWorkerKilledInsideADriverCallLeavesNothing) {
  node_.Start();
  for (const char* const entry : {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess",
                                  "cuMemUnmap", "cuMemRelease"}) {
    for (const char* const when : {"kill-before", "kill-after"}) {
      SCOPED_TRACE(std::string(entry) + " " + when);
      const std::string rule =
          AddRule({"process=e2e-worker", std::string("entry=") + entry, std::string("do=") + when});
      auto worker = node_.NewWorker("engine", "kv-cache");
      worker->Ask("alloc kv " + Gpu(0) + " 2097152 3");
      worker->Ask("map kv");
      worker->Ask("release kv");
      EXPECT_EQ(Acted(rule), 1);
      const auto status = worker->process().Wait();
      ASSERT_TRUE(status && WIFSIGNALED(*status));
      node_.ExpectNothingLeft();
      Simgpu({"rule", "rm", "all"});
    }
  }
}

TEST_F(DriverFaultsTest, AWorkerWhoseDriverRefusesHasUndoneItAndCanTryAgain) {
  node_.Start();
  for (const char* const entry :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    SCOPED_TRACE(entry);
    auto worker = node_.NewWorker("engine", "kv-cache");
    const std::string rule = AddRule({"process=e2e-worker", std::string("entry=") + entry, "call=1", "do=fail:2"});
    // Handles are imported as they come, the rest is the mapping's.
    const bool imports = std::string(entry).find("Import") != std::string::npos;
    if (!imports) worker->Do("alloc kv " + Gpu(0) + " 2097152 3");
    worker->Refused(imports ? "alloc kv " + Gpu(0) + " 2097152 3" : "map kv", "CUDA", {entry});
    EXPECT_EQ(Acted(rule), 1);
    if (imports) {
      EXPECT_EQ(node_.PhysicalTruth(), 0u);
      worker->Do("alloc kv " + Gpu(0) + " 2097152 3");
    }
    worker->Do("map kv");
    worker->Do("fill kv 3");
    worker->Do("check kv 3");
    worker->Do("release kv");
    EXPECT_EQ(node_.PhysicalTruth(), 0u);
    Simgpu({"rule", "rm", "all"});
  }
}

TEST_F(DriverFaultsTest, AHungDeviceHoldsUpNobodyElse) {
  node_.Start();
  auto stuck = node_.NewWorker("stuck", "kv-cache");
  auto other = node_.NewWorker("other", "kv-cache");
  Simgpu({"device", "0", "state=hung"});
  stuck->Send("alloc kv " + Gpu(0) + " 2097152 3");
  other->Do("alloc kv " + Gpu(1) + " 2097152 3");
  other->Do("map kv");
  other->Do("release kv");
  EXPECT_EQ(node_.Memctl("status")["sessions_live"], 2) << "memctl answers";
  EXPECT_FALSE(stuck->HasAnswer());
  Simgpu({"device", "0", "state=ok"});
  EXPECT_EQ(stuck->process().ReadLine().value_or("").substr(0, 2), "ok");
  stuck->Do("map kv");
  node_.ExpectBooksMatchHardware();
}

}  // namespace
}  // namespace gpumem::e2e
