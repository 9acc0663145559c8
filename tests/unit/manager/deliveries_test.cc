// tests/unit/manager/deliveries_test.cc: fetches and acknowledgements.
#include <gtest/gtest.h>

#include "daemon/manager/deliveries.h"
#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using core::Reason;

Reason LastRefusal(const World::Worker& worker) { return core::ReasonOf(worker.refusals.back().why); }

TEST(FetchTest, GivesAtMostOneFrameFromOnePlace) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 300), Spec(1, kGranule, 4)});
  world.socket_room = -1;
  world.manager().OnFetch(worker.session, 11, grant.value().lease, 0, 304);
  world.manager().OnFetch(worker.session, 12, grant.value().lease, 298, 6);
  world.RunUntilIdle();
  ASSERT_EQ(worker.inbox.size(), 2u);
  EXPECT_EQ(worker.inbox[0].chunks.size(), 253u);
  EXPECT_EQ(worker.inbox[0].request_id, 11u);
  EXPECT_EQ(worker.inbox[1].chunks.size(), 2u) << "only those of the first device";
  EXPECT_EQ(worker.inbox[1].chunks[0].index, 298u);
  EXPECT_EQ(world.Check(), "");
}

TEST(FetchTest, IsRefusedForWhatTheSessionMayNotHave) {
  World world;
  World::Worker& owner = world.Connect();
  World::Worker& other = world.Connect();
  const Answer<Grant> grant = Allocate(world, owner, {Spec(0, kGranule, 2)});
  world.manager().OnFetch(other.session, 1, grant.value().lease, 0, 1);
  world.manager().OnFetch(owner.session, 2, LeaseId(999999), 0, 1);
  world.manager().OnFetch(owner.session, 3, grant.value().lease, 1, 2);
  world.manager().OnFetch(owner.session, 4, grant.value().lease, 0, 0);
  world.RunUntilIdle();
  ASSERT_EQ(other.refusals.size(), 1u);
  EXPECT_EQ(LastRefusal(other), Reason::FOREIGN_LEASE);
  ASSERT_EQ(owner.refusals.size(), 3u);
  EXPECT_EQ(owner.inbox.size(), 1u) << "only what was pushed";
  EXPECT_TRUE(other.inbox.empty());
  EXPECT_EQ(world.Check(), "");
}

TEST(FetchTest, OfAnImportedPrivateChunkIsRefusedWithAReason) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 1)});
  world.manager().OnFetch(worker.session, 1, grant.lease, 0, 1);
  world.RunUntilIdle();
  ASSERT_EQ(worker.refusals.size(), 1u);
  EXPECT_EQ(LastRefusal(worker), Reason::HANDLE_LOST);
}

TEST(FetchTest, OfAChunkThatWasLostWithItsArenaIsRefused) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 1)});
  world.EndArena(TestDevice(0));
  world.StartArena(TestDevice(0));
  world.RunUntilIdle();
  world.manager().OnFetch(worker.session, 1, grant.value().lease, 0, 1);
  world.RunUntilIdle();
  ASSERT_EQ(worker.refusals.size(), 1u);
  EXPECT_EQ(LastRefusal(worker), Reason::HANDLE_LOST);
  EXPECT_TRUE(Release(world, worker, grant.value()).ok());
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(FetchTest, UnderWayAndUnacknowledgedOnesAreLimited) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 100)});
  world.socket_room = -1;
  for (std::uint32_t i = 0; i <= Deliveries::kMaxFetches; ++i) {
    world.manager().OnFetch(worker.session, i + 1, grant.value().lease, i, 1);
  }
  ASSERT_EQ(worker.refusals.size(), 1u) << "one above the limit";
  EXPECT_EQ(LastRefusal(worker), Reason::LIMIT);
  world.RunUntilIdle();
  EXPECT_EQ(worker.inbox.size(), Deliveries::kMaxFetches);
  for (std::size_t i = Deliveries::kMaxFetches; i < Deliveries::kMaxUnacknowledged; ++i) {
    world.manager().OnFetch(worker.session, 100 + i, grant.value().lease, static_cast<std::uint32_t>(i), 1);
    world.RunUntilIdle();
  }
  EXPECT_EQ(worker.refusals.size(), 1u);
  world.manager().OnFetch(worker.session, 999, grant.value().lease, 99, 1);
  world.RunUntilIdle();
  ASSERT_EQ(worker.refusals.size(), 2u);
  EXPECT_EQ(LastRefusal(worker), Reason::LIMIT);
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  world.manager().OnFetch(worker.session, 1000, grant.value().lease, 99, 1);
  world.RunUntilIdle();
  EXPECT_EQ(worker.inbox.size(), 1u);
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  EXPECT_EQ(world.Check(), "");
}

TEST(FetchTest, OnesUnderWayCountAsUnacknowledged) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 100)});
  world.socket_room = -1;
  for (std::uint32_t i = 0; i + 1 < Deliveries::kMaxUnacknowledged; ++i) {
    world.manager().OnFetch(worker.session, i + 1, grant.value().lease, i, 1);
    world.RunUntilIdle();
  }
  ASSERT_TRUE(worker.refusals.empty());
  world.manager().OnFetch(worker.session, 100, grant.value().lease, 98, 1);
  world.manager().OnFetch(worker.session, 101, grant.value().lease, 99, 1);
  world.RunUntilIdle();
  EXPECT_EQ(worker.inbox.size(), Deliveries::kMaxUnacknowledged);
  ASSERT_EQ(worker.refusals.size(), 1u);
  EXPECT_EQ(worker.refusals[0].request_id, 101u);
  EXPECT_EQ(LastRefusal(worker), Reason::LIMIT);
}

TEST(FetchTest, HandlesThatArriveAfterTheReleaseAreNotSent) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 1)});
  world.socket_room = -1;
  world.manager().OnFetch(worker.session, 1, grant.value().lease, 0, 1);
  const Answer<ReleaseResult> released = Release(world, worker, grant.value());
  EXPECT_TRUE(released.ok());
  EXPECT_TRUE(worker.inbox.empty());
  ASSERT_EQ(worker.refusals.size(), 1u);
  EXPECT_EQ(world.physical(TestDevice(0)), 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(AcknowledgeTest, AStaleOrForgedOneChangesNothing) {
  World world;
  World::Worker& worker = world.Connect();
  World::Worker& other = world.Connect();
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 1)});
  world.manager().OnAcknowledge(worker.session, 77, {true}, core::Access::kReadWrite);
  world.manager().OnAcknowledge(other.session, worker.inbox[0].sequence, {true}, core::Access::kReadWrite);
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Chunk(grant.value().chunks[0].chunk)->state, core::ChunkState::kUndelivered);
  EXPECT_EQ(world.at_arena(TestDevice(0)), 1u);
  world.ReceiveAll(worker);
  world.manager().OnAcknowledge(worker.session, 1, {true}, core::Access::kReadOnly);  // a second time
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Device(TestDevice(0))->mapped_read_write, Bytes(kGranule));
  EXPECT_EQ(world.Check(), "");
}

TEST(AcknowledgeTest, AChunkThatWasNotImportedStaysUndeliveredAndIsFetchedAgain) {
  World world;
  World::Worker& worker = world.Connect();
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 3)});
  const World::Frame frame = worker.inbox.front();
  worker.inbox.clear();
  worker.imports[frame.chunks[0].chunk] = frame.memory[0];
  world.manager().OnAcknowledge(worker.session, frame.sequence, {true, false}, core::Access::kReadWrite);
  world.RunUntilIdle();
  EXPECT_EQ(world.at_arena(TestDevice(0)), 2u) << "a bit that is missing is a bit that is clear";
  world.manager().OnFetch(worker.session, 5, grant.value().lease, 1, 2);
  world.RunUntilIdle();
  ASSERT_EQ(worker.inbox.size(), 1u);
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  EXPECT_EQ(world.at_arena(TestDevice(0)), 0u);
}

TEST(MappingTest, OnlyTheMappedCountsChange) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 2)});
  world.manager().OnMapping(worker.session, grant.lease, 0, 1, core::Access::kNone);
  EXPECT_EQ(world.books().Device(TestDevice(0))->mapped_read_write, Bytes(kGranule));
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
  world.manager().OnMapping(worker.session, LeaseId(4711), 0, 1, core::Access::kReadOnly);  // logged, ignored
  EXPECT_EQ(world.Check(), "");
}

}  // namespace
}  // namespace gpumem::manager::testing
