// tests/unit/manager/devices_test.cc: arenas and the keeper that end and come back; what the driver says is used.
#include <gtest/gtest.h>

#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using core::DeviceState;
using core::Reason;

TEST(DeviceTest, NothingIsGrantedUntilTheArenaIsReady) {
  World world(World::Setup::Stopped());
  World::Worker& worker = world.Connect();
  EXPECT_EQ(Allocate(world, worker, {Spec(0, kGranule, 1)}).reason(), Reason::DEVICE_UNAVAILABLE);
  world.StartArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(world.Last<DeviceChangedEvent>().state, DeviceState::kHealthy);
  EXPECT_TRUE(Allocate(world, worker, {Spec(0, kGranule, 1)}).ok());
}

TEST(DeviceTest, AnArenaThatEndsTakesItsFdsAlongAndNothingElse) {
  World world;
  World::Worker& worker = world.Connect();
  Hold(world, worker, {Spec(0, kGranule, 2)});
  world.socket_room = 0;
  Allocate(world, worker, {Spec(0, kGranule, 3)});  // undelivered: only the arena has it
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Device(TestDevice(0))->state, DeviceState::kStarting);
  EXPECT_EQ(world.books().Device(TestDevice(0))->detail, "killed by signal 9");
  EXPECT_EQ(world.physical(TestDevice(0)), 2 * kGranule);
  EXPECT_EQ(Charged(world, 0), Bytes(5 * kGranule)) << "the lease is still the worker's";
  EXPECT_EQ(world.Check(), "");
  EXPECT_EQ(Allocate(world, worker, {Spec(0, kGranule, 1)}).reason(), Reason::DEVICE_UNAVAILABLE);
  EXPECT_TRUE(Allocate(world, worker, {Spec(1, kGranule, 1)}).ok());
}

TEST(DeviceTest, AnArenaThatEndsDuringACreateFailsTheGrantAndChargesNothing) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> grant;
  world.held_back.insert("arena0");
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 2), Spec(1, kGranule, 2)},
                           grant.reply());
  world.RunUntilIdle();
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(grant.reason(), Reason::DEVICE_UNAVAILABLE);
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(Charged(world, 1), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(DeviceTest, AReleaseThatWaitsForAnArenaEndsWithIt) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 2)});
  world.held_back.insert("arena0");
  Answer<ReleaseResult> released;
  world.manager().Release(worker.session, 70, grant.value().lease, {core::Outcome::kUnmapped}, released.reply());
  world.RunUntilIdle();
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes(2 * kGranule)) << "its end is the proof";
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(DeviceTest, TheDriversReadingCountsOnlyWhenNothingWasInFlight) {
  World world;
  World::Worker& worker = world.Connect();
  world.driver_used_extra[TestDevice(0)] = 10 * kMiB;
  world.Advance(absl::Seconds(2));
  EXPECT_EQ(world.books().Device(TestDevice(0))->unattributed, Bytes(10 * kMiB));
  // A question that is answered while a grant is made: the reading is of another instant than the books.
  world.driver_used_extra[TestDevice(0)] = 50 * kMiB;
  world.held_back.insert("arena0");
  world.Advance(absl::Seconds(2));
  Answer<Grant> grant;
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1)}, grant.reply());
  world.RunUntilIdle();
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Device(TestDevice(0))->unattributed, Bytes(10 * kMiB));
  world.Advance(absl::Seconds(2));
  EXPECT_EQ(world.books().Device(TestDevice(0))->unattributed, Bytes(50 * kMiB));
}

TEST(DeviceTest, AReadingDoesNotCountWhenTheBooksMovedWithoutTheArena) {
  World world(World::Setup::OneDevice());
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 4)});
  world.Advance(absl::Seconds(2));
  EXPECT_EQ(world.books().Device(TestDevice(0))->unattributed, Bytes());
  world.held_back.insert("arena0");
  world.Advance(absl::Seconds(2));  // asked; the answer waits
  ASSERT_TRUE(Release(world, worker, grant).ok()) << "its memory is the worker's alone: the arena is not asked";
  world.driver_used_extra[TestDevice(0)] = 4 * kGranule;  // as if it had been read before the release
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Device(TestDevice(0))->unattributed, Bytes());
}

TEST(DeviceTest, AnArenaThatIsNotThereIsNotAskedForReadings) {
  World world(World::Setup::OneDevice());
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  world.calls.clear();
  world.Advance(absl::Seconds(10));
  EXPECT_TRUE(world.calls.empty());
}

TEST(DeviceTest, OneSeriesOfReadingsPerArenaLife) {
  World world(World::Setup::OneDevice());
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  world.StartArena(TestDevice(0));
  world.RunUntilIdle();
  world.calls.clear();
  world.Advance(absl::Seconds(10));
  EXPECT_EQ(std::count(world.calls.begin(), world.calls.end(), "arena.memory"), 5);
}

TEST(KeeperTest, AReconnectToTheSameKeeperLosesNothing) {
  World world;
  World::Worker& worker = world.Connect();
  Publish(world, worker, "w", {Spec(0, kGranule, 2)});
  world.LoseKeeper(0, /*memory_lost=*/false);
  world.RunUntilIdle();
  EXPECT_EQ(world.manager().kept_handles(), 2u) << "nothing is concluded from its absence";
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Segments("")[0].state, core::SegmentState::kSealed);
  EXPECT_EQ(world.at_keeper(), 2u);
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, ANewKeeperWithoutTheHandlesLosesTheSegment) {
  World world;
  World::Worker& worker = world.Connect();
  Publish(world, worker, "w", {Spec(0, kGranule, 2)});
  World::Worker& reader = world.Connect();
  const Answer<AttachResult> attached = Attach(world, reader, "w");
  world.manager().OnFetch(reader.session, 8, attached.value().segment.lease, 0, 2);
  world.RunUntilIdle();
  world.ReceiveAll(reader, core::Access::kReadOnly);
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(world.Last<SegmentChangedEvent>().state, core::SegmentState::kLost);
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule)) << "the reader still has it";
  EXPECT_EQ(world.Check(), "");
  world.Kill(reader);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, WhatAnotherLifeLeftIsChargedAsQuarantinedOnce) {
  World world(World::Setup::Stopped());
  std::array<std::uint8_t, 16> other{};
  other.fill(9);
  world.Plant({{other, 1}, TestDevice(0), Bytes(kGranule)});
  world.Plant({{other, 2}, TestDevice(0), Bytes(kGranule)});
  world.Plant({{other, 3}, TestDevice(7), Bytes(kGranule)});  // a device that is not managed here
  world.StartArena(TestDevice(0));
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
  EXPECT_EQ(world.books().Device(TestDevice(0))->quarantined, Bytes(2 * kGranule));
  EXPECT_EQ(world.Check(), "");
  world.LoseKeeper(0, /*memory_lost=*/false);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule)) << "not twice";
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes()) << "its end is the proof";
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, TheSameIdOfAnotherLedgerIsAnotherHandle) {
  World world;
  World::Worker& worker = world.Connect();
  Publish(world, worker, "w", {Spec(0, kGranule, 1)});
  KeptEntry foreign = world.KeeperList().at(0);
  foreign.name.ledger.fill(9);
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.Plant(foreign);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(world.books().Segments("w").at(0).state, core::SegmentState::kLost);
  EXPECT_EQ(world.books().Device(TestDevice(0))->quarantined, Bytes(kGranule)) << "the foreign one";
  EXPECT_EQ(world.Check(), "");
  // It goes, and comes back under the same name with the other daemon's keeper: charged again.
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  world.LoseKeeper(0, /*memory_lost=*/true);
  world.Plant(foreign);
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes(kGranule));
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, ALeftoverOfThisLedgerIsDeleted) {
  World world(World::Setup::Stopped());
  std::array<std::uint8_t, 16> own{};
  own.fill(7);
  world.Plant({{own, 999999}, TestDevice(0), Bytes(kGranule)});
  world.StartKeeper();
  world.RunUntilIdle();
  EXPECT_EQ(world.at_keeper(), 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, ADeleteWhoseAnswerWasLostIsSettledWhenTheKeeperIsBack) {
  for (const std::size_t executed : {0u, 1u, 2u}) {
    World world;
    World::Worker& worker = world.Connect();
    Publish(world, worker, "w", {Spec(0, kGranule, 2)});
    world.held_back.insert("keeper");
    Answer<Bytes> removed;
    world.manager().RemoveSegment("w@1", removed.reply());
    world.RunUntilIdle();
    world.LoseKeeper(executed, /*memory_lost=*/false);
    world.RunUntilIdle();
    ASSERT_TRUE(removed.ok()) << "the operator is not kept waiting";
    EXPECT_EQ(removed.value(), Bytes()) << "nothing is proven";
    EXPECT_EQ(world.books().Device(TestDevice(0))->quarantined, Bytes(2 * kGranule));
    world.held_back.clear();
    world.StartKeeper();
    world.RunUntilIdle();
    EXPECT_EQ(Charged(world, 0), Bytes());
    EXPECT_EQ(world.at_keeper(), 0u);
    EXPECT_EQ(world.Check(), "");
  }
}

// The keeper lists an fd until its close has ended; what a Del of an earlier connection began can end at any moment.
TEST(KeeperTest, ADeleteThatEndsAfterTheListIsSettledByTheKeepersWordThatNothingIsThere) {
  World world;
  World::Worker& worker = world.Connect();
  Publish(world, worker, "w", {Spec(0, kGranule, 1)});
  const KeptName name = world.KeeperList().at(0).name;
  world.held_back.insert("keeper");
  Answer<Bytes> removed;
  world.manager().RemoveSegment("w@1", removed.reply());
  world.RunUntilIdle();
  world.LoseKeeper(0, /*memory_lost=*/false);
  world.StartKeeper();
  world.RunUntilIdle();  // listed, and asked for again
  EXPECT_EQ(Charged(world, 0), Bytes(kGranule));
  world.EndKept(name);
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.books().Count().quarantine_records, 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(KeeperTest, APutWhoseAnswerWasLostStaysChargedUntilTheKeeperIsBack) {
  for (const std::size_t executed : {0u, 1u, 2u}) {
    World world;
    World::Worker& worker = world.Connect();
    world.held_back.insert("keeper");
    Answer<Grant> built;
    world.manager().BuildSegment(worker.session, 50, worker.holder, "w", {Spec(0, kGranule, 2)}, built.reply());
    world.RunUntilIdle();
    world.LoseKeeper(executed, /*memory_lost=*/false);
    world.RunUntilIdle();
    EXPECT_EQ(built.reason(), Reason::KEEPER_UNAVAILABLE);
    EXPECT_GE(Charged(world, 0).value(), world.physical(TestDevice(0))) << "no charge ends without proof";
    EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
    world.held_back.clear();
    world.StartKeeper();
    world.RunUntilIdle();
    EXPECT_EQ(Charged(world, 0), Bytes());
    EXPECT_EQ(world.at_keeper(), 0u);
    EXPECT_EQ(world.Check(), "");
  }
}

}  // namespace
}  // namespace gpumem::manager::testing
