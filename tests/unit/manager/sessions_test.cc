// tests/unit/manager/sessions_test.cc: faults, closed sockets and proven ends.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using core::QuarantineReason;
using core::Reason;

FaultReport Fault() { return {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "kernel store", TestDevice(0).ToString()}; }

TEST(SessionTest, AFaultFencesAndQuarantinesAndTellsEverybody) {
  World world;
  World::Worker& worker = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 3)});
  Answer<Bytes> answer;
  world.manager().ReportFault(worker.session, 90, Fault(), answer.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value(), Bytes(3 * kGranule));
  ASSERT_EQ(worker.fences.size(), 1u);
  EXPECT_EQ(worker.fences[0], QuarantineReason::kWriterFaulted);
  EXPECT_TRUE(worker.socket_open) << "its lifeline stays until it dies";
  ASSERT_EQ(world.Count<SessionFencedEvent>(), 1);
  EXPECT_EQ(world.Last<SessionFencedEvent>().quarantined, Bytes(3 * kGranule));
  EXPECT_NE(world.Last<SessionFencedEvent>().detail.find("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos);
  EXPECT_EQ(Allocate(world, worker, {Spec(0, kGranule, 1)}).reason(), Reason::SESSION_FENCED);
  const std::vector<core::QuarantineRow> rows = world.books().Quarantine(core::QuarantineId(), 10);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].reason, QuarantineReason::kWriterFaulted);
  EXPECT_EQ(world.Check(), "");
}

TEST(SessionTest, ASecondFaultReportChangesNothing) {
  World world;
  World::Worker& worker = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 1)});
  Answer<Bytes> first, again, second;
  world.manager().ReportFault(worker.session, 90, Fault(), first.reply());
  world.RunUntilIdle();
  world.manager().ReportFault(worker.session, 90, Fault(), again.reply());
  world.manager().ReportFault(worker.session, 91, Fault(), second.reply());
  world.RunUntilIdle();
  EXPECT_EQ(again.value(), Bytes(kGranule)) << "the same request gets the same answer";
  EXPECT_EQ(second.value(), Bytes());
  EXPECT_EQ(worker.fences.size(), 1u);
  EXPECT_EQ(world.Count<SessionFencedEvent>(), 1);
}

TEST(SessionTest, AClosedSocketFencesAndTheProvenEndSettles) {
  World world;
  World::Worker& worker = world.Connect();
  World::Worker& peer = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 3)});
  Hold(world, peer, {Spec(0, kGranule, 1)});
  world.Kill(worker, /*child_lives=*/true);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(4 * kGranule)) << "a child may still write";
  EXPECT_EQ(world.Last<SessionFencedEvent>().reason, QuarantineReason::kWriterDied);
  EXPECT_EQ(world.Count<SessionEndedEvent>(), 0);
  EXPECT_FALSE(worker.forgotten);
  EXPECT_EQ(world.Check(), "");
  world.EndChild(worker);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(kGranule));
  ASSERT_EQ(world.Count<SessionEndedEvent>(), 1);
  EXPECT_EQ(world.Last<SessionEndedEvent>().settled, Bytes(3 * kGranule));
  EXPECT_TRUE(worker.forgotten);
  EXPECT_FALSE(world.books().Exists(worker.session));
  EXPECT_EQ(world.Check(), "");
  Answer<Grant> late;
  world.manager().Allocate(worker.session, 1, worker.holder, {Spec(0, 1, 1)}, late.reply());
  world.RunUntilIdle();
  EXPECT_EQ(late.reason(), Reason::UNKNOWN_SESSION) << "its remembered requests are gone with it";
}

TEST(SessionTest, TheSocketIsClosedBeforeChargesSettle) {
  World world;
  World::Worker& worker = world.Connect();
  Allocate(world, worker, {Spec(0, kGranule, 2)});  // in the socket, not received
  world.calls.clear();
  // The kernel reports the process first; its end of the socket is noticed later.
  world.EndChild(worker);
  world.RunUntilIdle();
  world.Kill(worker);
  world.RunUntilIdle();
  ASSERT_FALSE(world.calls.empty());
  EXPECT_EQ(world.calls.front(), "channel.close");
  EXPECT_FALSE(worker.socket_open);
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(SessionTest, EachFactAboutTheProcessClosesItsSocket) {
  for (const auto& tell : {&Manager::OnPidfdReadable, &Manager::OnWitnessClosed, &Manager::OnSocketClosed}) {
    World world;
    World::Worker& worker = world.Connect();
    Hold(world, worker, {Spec(0, kGranule, 1)});
    (world.manager().*tell)(worker.session);
    EXPECT_FALSE(worker.socket_open);
    world.RunUntilIdle();
    EXPECT_EQ(Charged(world, 0), Bytes(kGranule)) << "one fact alone proves no end";
    EXPECT_FALSE(worker.forgotten);
  }
}

TEST(SessionTest, ALongFaultReportIsCut) {
  World world;
  World::Worker& worker = world.Connect();
  FaultReport fault = Fault();
  fault.detail = std::string(10'000, 'd');
  Answer<Bytes> answer;
  world.manager().ReportFault(worker.session, 90, fault, answer.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(world.Last<SessionFencedEvent>().detail.size(), 400u);
}

TEST(SessionTest, HandlesThatAreReadAfterTheFenceStayChargedUntilTheProcessEnds) {
  World world;
  World::Worker& worker = world.Connect();
  Allocate(world, worker, {Spec(0, kGranule, 2)});
  world.manager().OnSocketClosed(worker.session);
  world.RunUntilIdle();
  world.ReceiveAll(worker);  // queued before the close
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(world.physical(TestDevice(0)), 2 * kGranule);
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
  EXPECT_EQ(world.Check(), "");
  world.Kill(worker);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(SessionTest, TheEndOfAnUndeliveredLeaseWaitsForItsArena) {
  World world;
  World::Worker& worker = world.Connect();
  Allocate(world, worker, {Spec(0, kGranule, 2)});
  world.held_back.insert("arena0");
  world.Kill(worker);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule)) << "the arena still has the fds";
  EXPECT_EQ(world.Count<SessionEndedEvent>(), 0);
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Last<SessionEndedEvent>().settled, Bytes(2 * kGranule));
}

TEST(SessionTest, AFaultThenDeathKeepsTheFirstReason) {
  World world;
  World::Worker& worker = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 1)});
  Answer<Bytes> answer;
  world.manager().ReportFault(worker.session, 90, Fault(), answer.reply());
  world.Kill(worker, /*child_lives=*/true);
  world.RunUntilIdle();
  EXPECT_EQ(world.Count<SessionFencedEvent>(), 1);
  EXPECT_EQ(world.books().Quarantine(core::QuarantineId(), 10)[0].reason, QuarantineReason::kWriterFaulted);
  world.EndChild(worker);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
}

TEST(SessionTest, AGrantUnderWayWhenItsSessionIsFencedRollsBack) {
  for (const bool fault : {true, false}) {
    World world;
    World::Worker& worker = world.Connect();
    Answer<Grant> grant;
    world.held_back.insert("arena1");
    world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1), Spec(1, kGranule, 1)},
                             grant.reply());
    world.RunUntilIdle();
    Answer<Bytes> answer;
    if (fault) {
      world.manager().ReportFault(worker.session, 90, Fault(), answer.reply());
    } else {
      world.Kill(worker);
    }
    world.RunUntilIdle();
    EXPECT_EQ(grant.times(), 0);
    world.held_back.clear();
    world.RunUntilIdle();
    ASSERT_EQ(grant.times(), 1);
    EXPECT_FALSE(grant.ok());
    EXPECT_TRUE(worker.inbox.empty());
    EXPECT_EQ(Charged(world, 0), Bytes());
    EXPECT_EQ(Charged(world, 1), Bytes());
    EXPECT_EQ(world.Check(), "");
  }
}

TEST(SessionTest, AWitnessThatClosesInALivingProcessFencesItAndSaysWhy) {
  World world;
  World::Worker& worker = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 1)});
  world.manager().OnWitnessClosed(worker.session);
  world.RunUntilIdle();
  EXPECT_EQ(worker.fences.size(), 1u);
  EXPECT_EQ(Charged(world, 0), Bytes(kGranule));
  EXPECT_EQ(world.Count<SessionEndedEvent>(), 0);
}

TEST(SessionTest, HoldersAreRegisteredOnceForOneRequestId) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<HolderId> first, again, other;
  world.manager().RegisterHolder(worker.session, 30, "kv", core::Role::kKvCache, first.reply());
  world.manager().RegisterHolder(worker.session, 30, "kv", core::Role::kKvCache, again.reply());
  world.manager().RegisterHolder(worker.session, 30, "kv", core::Role::kWeights, other.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first.value(), again.value());
  EXPECT_EQ(other.reason(), Reason::REQUEST_ID_REUSED);
}

}  // namespace
}  // namespace gpumem::manager::testing
