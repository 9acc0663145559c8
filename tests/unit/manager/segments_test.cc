// tests/unit/manager/segments_test.cc: segments built, sealed, attached, detached and removed; the keeper.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using core::Reason;

TEST(SegmentTest, EveryChunkIsKeptBeforeTheReply) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  Answer<Grant> answer;
  std::size_t kept_at_reply = 0;
  world.manager().BuildSegment(worker.session, 5, worker.holder, "llm/weights",
                               {Spec(0, kGranule, 300), Spec(1, kGranule, 2)},
                               [&, reply = answer.reply()](const absl::StatusOr<Grant>& grant) {
                                 kept_at_reply = world.at_keeper();
                                 reply(grant);
                               });
  world.RunUntilIdle();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(kept_at_reply, 302u);
  EXPECT_EQ(world.manager().kept_handles(), 302u);
  EXPECT_EQ(answer.value().pushed, 302u);
  EXPECT_EQ(world.at_arena(TestDevice(0)), 0u) << "the keeper has them now";
  EXPECT_LE(world.max_open_fds(), 302u + 253u);
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, SealingPublishesAndTheMemoryOutlivesItsBuilder) {
  World world;
  World::Worker& builder = world.Connect();
  EXPECT_EQ(Publish(world, builder, "llm/weights", {Spec(0, kGranule, 3)}), "llm/weights@1");
  EXPECT_EQ(world.Last<SegmentChangedEvent>().name, "llm/weights@1");
  EXPECT_EQ(world.Last<SegmentChangedEvent>().state, core::SegmentState::kSealed);
  world.Kill(builder);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(3 * kGranule));
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, ReadersShareOneChargeAndFetchFromTheKeeper) {
  World world;
  World::Worker& builder = world.Connect();
  Publish(world, builder, "w", {Spec(0, kGranule, 3)});
  for (int i = 0; i < 3; ++i) {
    World::Worker& reader = world.Connect();
    const Answer<AttachResult> attached = Attach(world, reader, "w");
    ASSERT_TRUE(attached.ok()) << attached.status();
    ASSERT_EQ(attached.value().chunks.size(), 3u);
    world.manager().OnFetch(reader.session, 8, attached.value().segment.lease, 0, 3);
    world.RunUntilIdle();
    ASSERT_EQ(reader.inbox.size(), 1u);
    world.ReceiveAll(reader, core::Access::kReadOnly);
    world.RunUntilIdle();
  }
  EXPECT_EQ(Charged(world, 0), Bytes(3 * kGranule));
  EXPECT_EQ(world.books().Device(TestDevice(0))->mapped_read_only, Bytes(9 * kGranule));
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, ARetriedAttachGetsTheSameAnswerWithItsManifest) {
  World world;
  World::Worker& builder = world.Connect();
  const Answer<Grant> built = Build(world, builder, "w", {Spec(0, kGranule, 1)});
  world.ReceiveAll(builder);
  const core::Manifest manifest = {{"t", "F32", {4}, Bytes(0), Bytes(16)}};
  ASSERT_TRUE(Seal(world, builder, built.value(), manifest).ok());
  World::Worker& reader = world.Connect();
  Answer<AttachResult> first, again, second;
  world.manager().AttachSegment(reader.session, 40, reader.holder, "w@1", first.reply());
  world.RunUntilIdle();
  world.manager().AttachSegment(reader.session, 40, reader.holder, "w@1", again.reply());
  world.manager().AttachSegment(reader.session, 41, reader.holder, "w@1", second.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first.value().attachment, again.value().attachment);
  ASSERT_EQ(again.value().manifest.size(), 1u);
  EXPECT_EQ(again.value().manifest[0].name, "t");
  EXPECT_EQ(again.value().chunks.size(), 1u);
  EXPECT_EQ(second.reason(), Reason::ALREADY_ATTACHED);
}

TEST(SegmentTest, RemovalWaitsForReadersAndForTheKeeper) {
  World world;
  World::Worker& builder = world.Connect();
  Publish(world, builder, "w", {Spec(0, kGranule, 3)});
  World::Worker& reader = world.Connect();
  const Answer<AttachResult> attached = Attach(world, reader, "w@1");
  Answer<Bytes> refused, removed;
  world.manager().RemoveSegment("w@1", refused.reply());
  world.RunUntilIdle();
  EXPECT_EQ(refused.reason(), Reason::SEGMENT_IN_USE);
  Answer<std::monostate> detached;
  world.manager().DetachSegment(reader.session, 60, attached.value().attachment, {core::Outcome::kUnmapped},
                                detached.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(detached.ok());
  world.held_back.insert("keeper");
  world.manager().RemoveSegment("w@1", removed.reply());
  world.RunUntilIdle();
  EXPECT_EQ(removed.times(), 0);
  EXPECT_EQ(Charged(world, 0), Bytes(3 * kGranule));
  world.held_back.clear();
  world.RunUntilIdle();
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed.value(), Bytes(3 * kGranule));
  EXPECT_TRUE(world.Last<SegmentChangedEvent>().removed);
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.at_keeper(), 0u);
  EXPECT_EQ(world.Check(), "");
  Answer<Bytes> gone;
  world.manager().RemoveSegment("w@1", gone.reply());
  world.RunUntilIdle();
  EXPECT_EQ(gone.reason(), Reason::UNKNOWN_SEGMENT);
}

TEST(SegmentTest, WithoutTheKeeperNothingIsRemoved) {
  World world;
  World::Worker& builder = world.Connect();
  Publish(world, builder, "w", {Spec(0, kGranule, 2)});
  world.LoseKeeper(0, /*memory_lost=*/false);
  world.RunUntilIdle();
  Answer<Bytes> refused, removed;
  world.manager().RemoveSegment("w", refused.reply());
  world.RunUntilIdle();
  EXPECT_EQ(refused.reason(), Reason::KEEPER_UNAVAILABLE);
  ASSERT_EQ(world.books().Segments("w").size(), 1u);
  EXPECT_EQ(world.books().Count().quarantine_records, 0u);
  world.StartKeeper();
  world.RunUntilIdle();
  world.manager().RemoveSegment("w", removed.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(world.Last<SegmentChangedEvent>().name, "w@1");
  EXPECT_EQ(Charged(world, 0), Bytes());
}

TEST(SegmentTest, AReaderThatMayStillMapItIsAReader) {
  World world;
  World::Worker& builder = world.Connect();
  Publish(world, builder, "w", {Spec(0, kGranule, 2)});
  World::Worker& reader = world.Connect();
  const Answer<AttachResult> attached = Attach(world, reader, "w");
  const auto detach = [&](core::Outcome outcome) {
    Answer<std::monostate> detached;
    world.manager().DetachSegment(reader.session, reader.next_request++, attached.value().attachment, {outcome},
                                  detached.reply());
    world.RunUntilIdle();
    return detached;
  };
  EXPECT_EQ(detach(core::Outcome::kStillMapped).reason(), Reason::STILL_MAPPED);
  EXPECT_TRUE(detach(core::Outcome::kUnknown).ok());
  Answer<Bytes> refused;
  world.manager().RemoveSegment("w@1", refused.reply());
  world.RunUntilIdle();
  EXPECT_EQ(refused.reason(), Reason::SEGMENT_IN_USE);
  EXPECT_TRUE(detach(core::Outcome::kUnmapped).ok());
}

TEST(SegmentTest, SealingAsksAgainForFdsThatTheArenaCouldNotClose) {
  World world;
  World::Worker& builder = world.Connect();
  world.fail_close = true;
  const Answer<Grant> built = Build(world, builder, "w", {Spec(0, kGranule, 2)});
  builder.inbox.clear();
  ASSERT_EQ(world.at_arena(TestDevice(0)), 2u);
  world.fail_close = false;
  ASSERT_TRUE(Seal(world, builder, built.value()).ok());
  EXPECT_EQ(world.at_arena(TestDevice(0)), 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, AKeeperThatLosesTheHandlesWhileTheJournalTakesTheCommitFailsTheBuild) {
  World world;
  World::Worker& builder = world.Connect();
  Answer<Grant> built;
  world.held_back.insert("keeper");
  world.manager().BuildSegment(builder.session, 50, builder.holder, "w", {Spec(0, kGranule, 2)}, built.reply());
  world.RunUntilIdle();
  world.held_back = {"journal"};
  world.RunUntilIdle();  // kept; the commit waits
  ASSERT_EQ(world.at_keeper(), 2u);
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.StartKeeper();
  world.RunUntilIdle();
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(built.reason(), Reason::KEEPER_UNAVAILABLE) << built.status();
  EXPECT_TRUE(builder.inbox.empty());
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, ABuilderThatDiesLeavesNothing) {
  World world;
  World::Worker& builder = world.Connect();
  Build(world, builder, "w", {Spec(0, kGranule, 3)});
  world.ReceiveAll(builder);
  world.RunUntilIdle();
  world.Kill(builder, /*child_lives=*/true);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(3 * kGranule));
  world.EndChild(builder);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.at_keeper(), 0u);
  EXPECT_EQ(world.Check(), "");
  World::Worker& next = world.Connect();
  EXPECT_TRUE(Build(world, next, "w", {Spec(0, kGranule, 3)}).ok()) << "the name is free again";
}

TEST(SegmentTest, AReleasedBuildIsDeletedAtTheKeeper) {
  World world;
  World::Worker& builder = world.Connect();
  const Answer<Grant> built = Build(world, builder, "w", {Spec(0, kGranule, 3)});
  world.ReceiveAll(builder);
  const Answer<ReleaseResult> released = Release(world, builder, built.value());
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes(3 * kGranule));
  EXPECT_EQ(world.at_keeper(), 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(SegmentTest, APutThatFailsAtAnyChunkRollsTheBuildBack) {
  for (int fail_at = 0; fail_at < 4; ++fail_at) {
    World world;
    World::Worker& builder = world.Connect();
    world.fail_put_after = fail_at;
    const Answer<Grant> built = Build(world, builder, "w", {Spec(0, kGranule, 2), Spec(1, kGranule, 2)});
    ASSERT_EQ(built.times(), 1);
    EXPECT_EQ(built.reason(), Reason::DESCRIPTORS) << built.status();
    EXPECT_EQ(Charged(world, 0), Bytes());
    EXPECT_EQ(Charged(world, 1), Bytes());
    EXPECT_EQ(world.at_keeper(), 0u);
    EXPECT_EQ(world.Check(), "");
  }
}

TEST(SegmentTest, WithoutAKeeperNothingIsCharged) {
  World world;
  World::Worker& builder = world.Connect();
  world.LoseKeeper(0, false);
  world.RunUntilIdle();
  EXPECT_FALSE(world.manager().keeper_connected());
  world.calls.clear();
  EXPECT_EQ(Build(world, builder, "w", {Spec(0, kGranule, 2)}).reason(), Reason::KEEPER_UNAVAILABLE);
  EXPECT_TRUE(world.calls.empty());
  EXPECT_TRUE(Allocate(world, builder, {Spec(0, kGranule, 2)}).ok()) << "private leases need no keeper";
}

TEST(SegmentTest, SealRefusesWhatIsNotProvenUnmapped) {
  World world;
  World::Worker& builder = world.Connect();
  const Answer<Grant> built = Build(world, builder, "w", {Spec(0, kGranule, 1)});
  for (const core::Outcome outcome : {core::Outcome::kStillMapped, core::Outcome::kUnknown}) {
    Answer<std::string> sealed;
    world.manager().SealSegment(builder.session, builder.next_request++, built.value().lease, {outcome}, {},
                                sealed.reply());
    world.RunUntilIdle();
    EXPECT_FALSE(sealed.ok());
  }
  World::Worker& reader = world.Connect();
  EXPECT_EQ(Attach(world, reader, "w").reason(), Reason::NOT_SEALED);
  world.ReceiveAll(builder);
  EXPECT_TRUE(Seal(world, builder, built.value()).ok());
  EXPECT_EQ(Seal(world, builder, built.value()).reason(), Reason::ALREADY_SEALED);
}

// What the journal did not take is not told as done.
TEST(JournalTest, ItsFailureIsTheAnswer) {
  World world;
  World::Worker& builder = world.Connect();
  World::Worker& reader = world.Connect();
  Publish(world, builder, "w", {Spec(0, kGranule, 1)});
  const Answer<AttachResult> attached = Attach(world, reader, "w");
  const Answer<Grant> built = Build(world, builder, "v", {Spec(0, kGranule, 1)});
  const Grant held = Hold(world, builder, {Spec(0, kGranule, 1)});
  world.events.clear();
  world.fail_journal = true;
  EXPECT_FALSE(Release(world, builder, held).ok());
  EXPECT_FALSE(Seal(world, builder, built.value()).ok());
  EXPECT_EQ(world.Count<SegmentChangedEvent>(), 0) << "nobody is told of it either";
  EXPECT_FALSE(Allocate(world, builder, {Spec(0, kGranule, 1)}).ok());
  Answer<std::monostate> detached;
  world.manager().DetachSegment(reader.session, 60, attached.value().attachment, {core::Outcome::kUnmapped},
                                detached.reply());
  Answer<Bytes> removed, fault;
  world.manager().RemoveSegment("w@1", removed.reply());
  world.manager().ReportFault(builder.session, 61, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "", ""}, fault.reply());
  world.RunUntilIdle();
  EXPECT_EQ(detached.times() + removed.times() + fault.times(), 3);
  EXPECT_FALSE(detached.ok());
  EXPECT_FALSE(removed.ok());
  EXPECT_FALSE(fault.ok());
}

}  // namespace
}  // namespace gpumem::manager::testing
