// Kills: a worker at every step of allocate / fetch / import / map / acknowledge / release, and of build / seal; each
// of the daemon's own processes. The last word is always the hardware's.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tests/e2e/kill_points.h"
#include "tests/e2e/node.h"

namespace gpumem::e2e {
namespace {

using nlohmann::json;

class KillTest : public testing::Test {
 protected:
  void SetUp() override { node_.Start(); }
  const std::string& Gpu() const { return node_.uuids()[0]; }

  // Kills a worker that runs `script` at each of its kill points. `sealing`: the script may leave a segment. After each
  // nothing is left: a segment that was sealed in time is removed, as an operator would.
  void KillEverywhere(const std::vector<std::string>& script, bool sealing) {
    KillEverywhere(script, [this, sealing] { Settle(sealing); });
  }
  // `settle` waits until all is as before the script, and fails the test otherwise.
  void KillEverywhere(const std::vector<std::string>& script, const std::function<void()>& settle) {
    std::vector<KillPoint> points;
    for (int round = 0; round < kCountingRuns; ++round) {
      const TracedRun whole = RunTraced(node_.WorkerCommand(), script, std::nullopt);
      ASSERT_TRUE(whole.status.has_value());
      ASSERT_EQ(*whole.status, 0);
      settle();
      points = round == 0 ? whole.points : InBoth(points, whole.points);
      if (HasFailure()) return;
    }
    ASSERT_GT(points.size(), 10u) << "the script made too few system calls to be worth killing";
    for (const KillPoint& point : points) {
      SCOPED_TRACE("killed after " + ToString(point));
      bool killed = false;
      for (int attempt = 0; attempt < kAttempts && !killed; ++attempt) {
        killed = RunTraced(node_.WorkerCommand(), script, point).killed;
        settle();
      }
      EXPECT_TRUE(killed) << "the point was listed and not reached";
      if (HasFailure()) return;
    }
    RecordProperty("kill_points", static_cast<int>(points.size()));
  }
  // How often a peer's frames are merged into one send depends on timing, so a point counts when each of these runs had
  // it, and a run that was merged differently is tried again.
  static constexpr int kCountingRuns = 3;
  static constexpr int kAttempts = 5;

  static std::vector<KillPoint> InBoth(const std::vector<KillPoint>& a, const std::vector<KillPoint>& b) {
    std::vector<KillPoint> both;
    for (const KillPoint& point : a) {
      if (std::find(b.begin(), b.end(), point) != b.end()) both.push_back(point);
    }
    return both;
  }
  // The dead worker's session is settled, and nothing is left.
  void Settle(bool sealing) {
    if (sealing) {
      node_.Eventually("the dead worker's session is settled",
                       [&] { return node_.Memctl("sessions")["sessions"].empty(); });
      RemoveSegments();
    }
    node_.ExpectNothingLeft();
  }
  void RemoveSegments() {
    const json segments = node_.Memctl("segments");
    for (const json& segment : segments["segments"]) {
      if (segment["state"] != "sealed") continue;
      RunCommand(node_.MemctlCommand({"segments", "rm", segment["name"].get<std::string>()}));
    }
  }

  Node node_;
};

TEST_F(KillTest, AWorkerAtEveryStepOfAllocateImportMapAcknowledgeRelease) {
  KillEverywhere({"connect", "holder engine kv-cache", "mark begin", "alloc kv " + Gpu() + " 2097152 2", "map kv",
                  "release kv", "mark end"},
                 /*sealing=*/false);
}

TEST_F(KillTest, AWorkerAtEveryStepOfBuildAndSeal) {
  KillEverywhere({"connect", "holder loader weights", "mark begin", "build w models/k " + Gpu() + " 2097152 2", "map w",
                  "seal w t U8 0 1024", "mark end"},
                 /*sealing=*/true);
}

// Its handles are not pushed but fetched, and it ends as a reader.
TEST_F(KillTest, AWorkerAtEveryStepOfAttachFetchMapDetach) {
  auto loader = node_.NewWorker("loader", "weights");
  loader->Do("build w models/kept " + Gpu() + " 2097152 2");
  loader->Do("map w");
  loader->Do("seal w t U8 0 1024");
  loader->process().Kill();
  const auto only_the_segment = [&] {
    const json status = node_.Memctl("status");
    return status.contains("sessions_live") && status["sessions_live"] == 0 && status["sessions_fenced"] == 0 &&
           status["quarantine_records"] == 0 && node_.Sum(status["devices"], "charged_bytes") == 4 * kMiB &&
           node_.Sum(status["devices"], "mapped_read_only_bytes") == 0 && node_.PhysicalTruth() == 4 * kMiB;
  };
  KillEverywhere(
      {"connect", "holder engine weights", "mark begin", "attach s models/kept", "map s", "detach s", "mark end"},
      [&] { node_.Eventually("only the segment is left", only_the_segment); });
}

TEST_F(KillTest, AWorkerAtEveryStepOfConnecting) {
  KillEverywhere({"mark begin", "connect", "holder engine kv-cache", "mark end"}, /*sealing=*/false);
}

TEST_F(KillTest, AnArenaIsRestartedAndNobodyLosesMemory) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("build w models/a " + Gpu() + " 2097152 1");
  a->Do("map w");
  a->Do("fill w 11");
  a->Do("seal w t U8 0 1024");
  a->Do("alloc kv " + Gpu() + " 2097152 2");
  a->Do("map kv");
  a->Do("fill kv 12");
  node_.ExpectBooksMatchHardware();
  const pid_t arena = node_.ArenaPid(0);
  const pid_t other = node_.ArenaPid(1);
  ::kill(arena, SIGKILL);
  node_.Eventually("another arena runs and the device is healthy", [&] {
    const pid_t now = node_.ArenaPid(0);
    return now != 0 && now != arena && node_.Memctl("devices")["devices"][0]["state"] == "healthy";
  });
  EXPECT_EQ(node_.ArenaPid(1), other);
  a->Do("check kv 12");
  a->Do("alloc more " + Gpu() + " 2097152 1");
  auto reader = node_.NewWorker("reader", "weights");
  reader->Do("attach s models/a");
  reader->Do("map s");
  reader->Do("check s 11");
  node_.ExpectBooksMatchHardware();
}

TEST_F(KillTest, AKilledKeeperLosesOnlyWhatNoWorkerMapsAndSaysSo) {
  auto a = node_.NewWorker("engine", "kv-cache");
  for (const char* name : {"models/mapped", "models/unmapped"}) {
    a->Do(std::string("build w ") + name + " " + Gpu() + " 2097152 1");
    a->Do("map w");
    a->Do("fill w 21");
    a->Do("seal w t U8 0 1024");
  }
  a->Do("attach s models/mapped");
  a->Do("map s");
  a->Do("alloc kv " + Gpu() + " 2097152 1");
  node_.ExpectBooksMatchHardware();
  ::kill(node_.KeeperPid(), SIGKILL);
  node_.Eventually("the loss is in the books", [&] {
    const json segments = node_.Memctl("segments")["segments"];
    return std::any_of(segments.begin(), segments.end(), [](const json& s) { return s["state"] == "lost"; }) &&
           node_.Memctl("status")["keeper_connected"].get<bool>();
  });
  node_.ExpectBooksMatchHardware();
  a->Do("check s 21");
  a->Do("map kv");
  auto reader = node_.NewWorker("reader", "weights");
  reader->Refused("attach s models/mapped", "SEGMENT_LOST", {"models/mapped"});
  // A new segment can be built with the new keeper.
  reader->Do("build w models/new " + Gpu() + " 2097152 1");
  reader->Do("seal w t U8 0 1024");
  a->process().Kill();
  node_.Eventually("the lost segment's memory is settled with its last reader",
                   [&] { return node_.Memctl("devices")["devices"][0]["physical_bytes"] == 2 * kMiB; });
  node_.ExpectBooksMatchHardware();
}

TEST_F(KillTest, AKilledFrontTakesNoWorkerAndNoDurableMemoryAlong) {
  auto a = node_.NewWorker("engine", "kv-cache");
  a->Do("build w models/a " + Gpu() + " 2097152 1");
  a->Do("map w");
  a->Do("fill w 31");
  a->Do("seal w t U8 0 1024");
  a->Do("attach s models/a");
  a->Do("map s");
  a->Do("alloc kv " + Gpu() + " 2097152 1");
  a->Do("map kv");
  a->Do("fill kv 32");
  const pid_t keeper = node_.KeeperPid();
  node_.daemon().Kill();
  a->Do("check s 31");
  a->Do("check kv 32");
  a->Do("fill kv 33");
  EXPECT_EQ(node_.PhysicalTruth(), 4 * kMiB);
  node_.Start();
  EXPECT_EQ(node_.KeeperPid(), keeper);
  // The books of this daemon's life do not know what the keeper holds: it is charged, and shown.
  const json quarantine = node_.Memctl("quarantine")["records"];
  ASSERT_EQ(quarantine.size(), 1u) << quarantine.dump(1);
  EXPECT_EQ(quarantine[0]["reason"], "kept-fd-unknown");
  EXPECT_EQ(quarantine[0]["bytes"], 2 * kMiB);
  a->process().Kill();
  node_.ExpectBooksMatchHardware();
}

TEST_F(KillTest, DurableMemoryStaysWithTheKeeperOverACleanStop) {
  auto a = node_.NewWorker("loader", "weights");
  a->Do("build w models/a " + Gpu() + " 2097152 1");
  a->Do("seal w t U8 0 1024");
  a->process().Kill();
  node_.Eventually("the loader is settled", [&] { return node_.Memctl("sessions")["sessions"].empty(); });
  node_.daemon().Signal(SIGTERM);
  ASSERT_TRUE(node_.daemon().Wait());
  EXPECT_EQ(node_.PhysicalTruth(), 2 * kMiB);
}

}  // namespace
}  // namespace gpumem::e2e
