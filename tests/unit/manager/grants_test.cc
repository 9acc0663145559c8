// tests/unit/manager/grants_test.cc: private grants: order, window, retries, failures.
#include <gtest/gtest.h>

#include <algorithm>

#include "daemon/manager/context.h"
#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using core::ChunkState;
using core::Reason;

TEST(GrantTest, ChargesRoundedBytesPushesBeforeTheReplyAndAgreesWithTheHardware) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> answer;
  bool pushed_first = false;
  world.manager().Allocate(worker.session, 7, worker.holder, {Spec(0, kGranule + 1, 3), Spec(1, kGranule, 1)},
                           [&, reply = answer.reply()](const absl::StatusOr<Grant>& grant) {
                             pushed_first = !worker.inbox.empty();
                             reply(grant);
                           });
  EXPECT_EQ(answer.times(), 0) << "answered from inside the call";
  world.RunUntilIdle();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(pushed_first);
  const Grant& grant = answer.value();
  EXPECT_EQ(grant.asked, Bytes(3 * (kGranule + 1) + kGranule));
  EXPECT_EQ(grant.charged, Bytes(7 * kGranule));
  EXPECT_EQ(grant.pushed, 4u);
  ASSERT_EQ(worker.inbox.size(), 1u);
  EXPECT_EQ(worker.inbox[0].request_id, 7u);
  EXPECT_EQ(worker.inbox[0].lease, grant.lease);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(worker.inbox[0].chunks[i].index, i);
    EXPECT_EQ(worker.inbox[0].chunks[i].chunk, grant.chunks[i].chunk);
    EXPECT_EQ(worker.inbox[0].memory[i]->bytes, grant.chunks[i].bytes.value());
    EXPECT_EQ(worker.inbox[0].memory[i]->device, grant.chunks[i].device);
    EXPECT_EQ(grant.chunks[i].state, ChunkState::kUndelivered);
  }
  EXPECT_EQ(world.physical(TestDevice(0)), 6 * kGranule);
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, TheArenaClosesAPrivateChunkOnceItIsAcknowledged) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 3)});
  EXPECT_EQ(world.at_arena(TestDevice(0)), 0u);
  EXPECT_EQ(world.books().Chunk(grant.chunks[0].chunk)->state, ChunkState::kLive);
  EXPECT_EQ(world.books().Device(TestDevice(0))->mapped_read_write, Bytes(3 * kGranule));
  EXPECT_EQ(world.Check(), "");
  const Answer<ReleaseResult> released = Release(world, worker, grant);
  ASSERT_TRUE(released.ok()) << released.status();
  EXPECT_EQ(released.value().released, Bytes(3 * kGranule));
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, TheWindowLimitsWhatIsPushedAndTheFdsThatTheFrontHolds) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  const Answer<Grant> large = Allocate(world, worker, {Spec(0, kGranule, 1100)});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large.value().pushed, 4 * 253u);
  EXPECT_EQ(worker.inbox.size(), 4u);
  EXPECT_LE(world.max_open_fds(), 4 * 253u);
  const Answer<Grant> none = Allocate(world, worker, {Spec(0, kGranule, 1)});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value().pushed, 0u) << "no frame is left in the window";
  world.ReceiveAll(worker);
  world.RunUntilIdle();
  const Answer<Grant> again = Allocate(world, worker, {Spec(0, kGranule, 1)});
  EXPECT_EQ(again.value().pushed, 1u);
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, GrantsUnderWayShareOneWindow) {
  World world(World::Setup::Large());
  World::Worker& worker = world.Connect();
  std::vector<Answer<Grant>> answers(6);
  for (std::size_t i = 0; i < answers.size(); ++i) {
    world.manager().Allocate(worker.session, 100 + i, worker.holder, {Spec(0, kGranule, 253)}, answers[i].reply());
  }
  world.RunUntilIdle();
  std::uint32_t pushed = 0;
  for (const Answer<Grant>& answer : answers) pushed += answer.value().pushed;
  EXPECT_EQ(pushed, 4 * 253u);
  EXPECT_LE(world.max_open_fds(), 4 * 253u);
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, AFullSocketPushesNothingAndTheGrantStands) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> answer = Allocate(world, worker, {Spec(0, kGranule, 2)});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer.value().pushed, 0u);
  EXPECT_EQ(world.Check(), "");
  world.socket_room = -1;
  world.manager().OnFetch(worker.session, 9, answer.value().lease, 0, 2);
  world.RunUntilIdle();
  ASSERT_EQ(worker.inbox.size(), 1u);
  EXPECT_EQ(worker.inbox[0].chunks.size(), 2u);
}

TEST(GrantTest, AGrantThatFailsAtAnyChunkLeavesTheBooksAsTheyWere) {
  for (int fail_at = 0; fail_at < 5; ++fail_at) {
    World world;
    World::Worker& worker = world.Connect();
    Hold(world, worker, {Spec(0, kGranule, 1)});
    const Bytes before = Charged(world, 0);
    world.create_limit = fail_at;
    const Answer<Grant> answer = Allocate(world, worker, {Spec(0, kGranule, 3), Spec(1, kGranule, 2)});
    ASSERT_EQ(answer.times(), 1);
    EXPECT_EQ(answer.reason(), Reason::DRIVER_OUT_OF_MEMORY) << answer.status();
    const std::string message(answer.status().message());
    EXPECT_NE(message.find(TestDevice(fail_at < 3 ? 0 : 1).ToString()), std::string::npos) << message;
    EXPECT_EQ(Charged(world, 0), before);
    EXPECT_EQ(Charged(world, 1), Bytes());
    EXPECT_EQ(world.books().Count().quarantine_records, 0u);
    EXPECT_TRUE(worker.inbox.empty());
    EXPECT_EQ(world.Check(), "");
  }
}

TEST(GrantTest, AFailureIsAnsweredWhenEverythingIsPutBackAndTheFrontHoldsNoFd) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> answer;
  world.held_back.insert("arena1");
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 2), Spec(1, kGranule, 1)},
                           answer.reply());
  world.RunUntilIdle();
  EXPECT_EQ(world.open_fds(), 2u) << "to be pushed";
  world.create_limit = 0;
  world.held_back = {"arena0"};  // where the rollback closes what was made
  world.RunUntilIdle();
  EXPECT_EQ(world.open_fds(), 0u) << "a copy here would keep the memory";
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
  EXPECT_EQ(answer.times(), 0) << "nothing was put back yet";
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(answer.reason(), Reason::DRIVER_OUT_OF_MEMORY);
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, FailedGrantsGiveTheirPartOfTheWindowBack) {
  World world;
  World::Worker& worker = world.Connect();
  world.create_limit = 0;
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Allocate(world, worker, {Spec(0, kGranule, 1)}).ok());
  world.create_limit = -1;
  EXPECT_EQ(Allocate(world, worker, {Spec(0, kGranule, 1)}).value().pushed, 1u);
}

TEST(GrantTest, AChunkThatTheArenaSaysNothingAboutStaysCharged) {
  World world;
  World::Worker& worker = world.Connect();
  world.short_create = true;  // made, but not told
  world.fail_close = true;
  const Answer<Grant> answer = Allocate(world, worker, {Spec(0, kGranule, 3)});
  EXPECT_EQ(answer.times(), 1);
  EXPECT_FALSE(answer.ok());
  EXPECT_EQ(Charged(world, 0), Bytes(3 * kGranule));
  EXPECT_EQ(world.Check(), "");
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
}

TEST(GrantTest, AnArenaThatEndsWhileTheJournalTakesTheCommitFailsTheGrant) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> answer;
  world.held_back.insert("arena0");
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 2)}, answer.reply());
  world.RunUntilIdle();
  world.held_back = {"journal"};
  world.RunUntilIdle();  // created; the commit waits
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  world.held_back.clear();
  world.RunUntilIdle();
  EXPECT_EQ(answer.reason(), Reason::DEVICE_UNAVAILABLE) << answer.status();
  EXPECT_TRUE(worker.inbox.empty());
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, ALeaseThatIsNotCommittedIsNobodysYet) {
  for (const bool segment : {false, true}) {
    World world;
    World::Worker& worker = world.Connect();
    Answer<Grant> answer;
    world.held_back.insert("arena0");
    if (segment) {
      world.manager().BuildSegment(worker.session, 50, worker.holder, "w", {Spec(0, kGranule, 2)}, answer.reply());
    } else {
      world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 2)}, answer.reply());
    }
    world.RunUntilIdle();
    world.held_back = {"journal"};
    world.RunUntilIdle();
    ASSERT_EQ(answer.times(), 0);
    const std::vector<core::LeaseRow> rows = world.books().Leases(LeaseId(), 10);
    ASSERT_EQ(rows.size(), 1u);
    const LeaseId guessed = rows[0].lease;
    Answer<ReleaseResult> released;
    Answer<std::string> sealed;
    world.manager().Release(worker.session, 51, guessed, {core::Outcome::kUnmapped}, released.reply());
    world.manager().SealSegment(worker.session, 52, guessed, {core::Outcome::kUnmapped}, {}, sealed.reply());
    world.manager().OnFetch(worker.session, 53, guessed, 0, 1);
    world.RunUntilIdle();
    EXPECT_EQ(released.reason(), Reason::UNKNOWN_LEASE);
    EXPECT_EQ(sealed.reason(), Reason::UNKNOWN_LEASE);
    ASSERT_EQ(worker.refusals.size(), 1u);
    EXPECT_EQ(core::ReasonOf(worker.refusals[0].why), Reason::UNKNOWN_LEASE);
    EXPECT_TRUE(worker.inbox.empty());
    world.held_back.clear();
    world.RunUntilIdle();
    EXPECT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(world.Check(), "");
  }
}

TEST(GrantTest, ARollbackThatFailsIsQuarantinedUntilTheArenaEnds) {
  World world;
  World::Worker& worker = world.Connect();
  world.create_limit = 2;
  world.fail_close = true;
  const Answer<Grant> answer = Allocate(world, worker, {Spec(0, kGranule, 3)});
  EXPECT_EQ(answer.reason(), Reason::DRIVER_OUT_OF_MEMORY);
  const std::vector<core::QuarantineRow> rows = world.books().Quarantine(core::QuarantineId(), 10);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].reason, core::QuarantineReason::kRollbackFailed);
  EXPECT_EQ(rows[0].bytes, Bytes(2 * kGranule));
  EXPECT_EQ(world.Check(), "");
  world.EndArena(TestDevice(0));
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
  EXPECT_EQ(world.Check(), "");
}

TEST(GrantTest, ARetryJoinsWhileRunningAndGetsTheSameAnswerAfterwards) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> first, joined, again, other;
  const std::vector<core::ChunkSpec> specs = {Spec(0, kGranule, 2)};
  world.manager().Allocate(worker.session, 50, worker.holder, specs, first.reply());
  world.manager().Allocate(worker.session, 50, worker.holder, specs, joined.reply());
  world.RunUntilIdle();
  world.manager().Allocate(worker.session, 50, worker.holder, specs, again.reply());
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 3)}, other.reply());
  EXPECT_EQ(again.times(), 0) << "answered from inside the call";
  world.RunUntilIdle();
  ASSERT_TRUE(first.ok() && joined.ok() && again.ok());
  EXPECT_EQ(joined.value().lease, first.value().lease);
  EXPECT_EQ(again.value().lease, first.value().lease);
  EXPECT_EQ(again.value().chunks.size(), 2u);
  EXPECT_EQ(again.value().pushed, 2u);
  EXPECT_EQ(other.reason(), Reason::REQUEST_ID_REUSED);
  EXPECT_EQ(Charged(world, 0), Bytes(2 * kGranule));
}

TEST(GrantTest, ARetryOfAReleasedGrantSaysSo) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> first, again;
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1)}, first.reply());
  world.RunUntilIdle();
  worker.inbox.clear();
  ASSERT_TRUE(Release(world, worker, first.value()).ok());
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1)}, again.reply());
  world.RunUntilIdle();
  EXPECT_EQ(again.reason(), Reason::ALREADY_RELEASED);
  EXPECT_EQ(Charged(world, 0), Bytes());
}

TEST(GrantTest, AFailedGrantMayBeTriedAgainWithTheSameId) {
  World world;
  World::Worker& worker = world.Connect();
  Answer<Grant> failed, good;
  world.create_limit = 0;
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1)}, failed.reply());
  world.RunUntilIdle();
  EXPECT_EQ(failed.reason(), Reason::DRIVER_OUT_OF_MEMORY);
  world.create_limit = -1;
  world.manager().Allocate(worker.session, 50, worker.holder, {Spec(0, kGranule, 1)}, good.reply());
  world.RunUntilIdle();
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(Charged(world, 0), Bytes(kGranule));
}

TEST(GrantTest, RefusalsAreRepliedLaterAndChangeNothing) {
  World world;
  World::Worker& worker = world.Connect();
  const auto refused = [&](std::vector<core::ChunkSpec> specs) {
    const Answer<Grant> answer = Allocate(world, worker, std::move(specs));
    EXPECT_EQ(answer.times(), 1);
    EXPECT_EQ(world.Check(), "");
    EXPECT_EQ(Charged(world, 0), Bytes());
    return answer.reason();
  };
  EXPECT_EQ(refused({}), Reason::SIZE_ZERO);
  EXPECT_EQ(refused({Spec(0, 0, 1)}), Reason::SIZE_ZERO);
  EXPECT_EQ(refused({Spec(0, ~0ull, 1)}), Reason::SIZE_OVERFLOW);
  EXPECT_EQ(refused({Spec(9, kGranule, 1)}), Reason::UNKNOWN_DEVICE);
  EXPECT_EQ(refused({Spec(0, 1000 * kMiB, 1)}), Reason::CAPACITY);
  Answer<Grant> zero, unknown, holder;
  world.manager().Allocate(worker.session, 0, worker.holder, {Spec(0, 1, 1)}, zero.reply());
  world.manager().Allocate(SessionId(12345), 1, worker.holder, {Spec(0, 1, 1)}, unknown.reply());
  world.manager().Allocate(worker.session, 77, HolderId(12345), {Spec(0, 1, 1)}, holder.reply());
  world.RunUntilIdle();
  EXPECT_EQ(zero.reason(), Reason::INVALID_ARGUMENT);
  EXPECT_EQ(unknown.reason(), Reason::UNKNOWN_SESSION);
  EXPECT_EQ(holder.reason(), Reason::UNKNOWN_HOLDER);
}

TEST(GrantTest, WhileTheDaemonDrainsNothingNewIsGranted) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant held = Hold(world, worker, {Spec(0, kGranule, 1)});
  world.manager().BeginDrain(absl::Seconds(5));
  world.manager().BeginDrain(absl::Seconds(5));
  EXPECT_TRUE(world.manager().draining());
  EXPECT_EQ(world.Count<DaemonStoppingEvent>(), 1);
  EXPECT_EQ(Allocate(world, worker, {Spec(0, kGranule, 1)}).reason(), Reason::DRAINING);
  EXPECT_EQ(Build(world, worker, "s", {Spec(0, kGranule, 1)}).reason(), Reason::DRAINING);
  EXPECT_EQ(Attach(world, worker, "s").reason(), Reason::DRAINING);
  EXPECT_EQ(core::ReasonOf(world.manager().OpenSession({}).status()), Reason::DRAINING);
  EXPECT_TRUE(Release(world, worker, held).ok());
}

TEST(ReleaseTest, AnUndeliveredLeaseIsClosedAtItsArenaBeforeTheReply) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 2), Spec(1, kGranule, 1)});
  const Answer<ReleaseResult> released = Release(world, worker, grant.value());
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes(3 * kGranule));
  EXPECT_EQ(world.physical(TestDevice(0)), 0u);
  EXPECT_EQ(world.Check(), "");
}

TEST(ReleaseTest, TheJournalHasItBeforeAnythingIsLetGoAndAgainBeforeTheReply) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 2)});
  Answer<ReleaseResult> released;
  world.held_back.insert("journal");
  world.manager().Release(worker.session, 70, grant.value().lease, {core::Outcome::kUnmapped}, released.reply());
  world.RunUntilIdle();
  EXPECT_EQ(world.at_arena(TestDevice(0)), 2u);
  world.held_back = {"arena0"};
  world.RunUntilIdle();
  world.held_back = {"journal"};
  world.RunUntilIdle();
  EXPECT_EQ(world.at_arena(TestDevice(0)), 0u);
  EXPECT_EQ(released.times(), 0);
  world.held_back.clear();
  world.RunUntilIdle();
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes(2 * kGranule));
}

TEST(ReleaseTest, AnUnknownOutcomeIsQuarantinedUntilTheProcessEnds) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 2)});
  const Answer<ReleaseResult> released = Release(world, worker, grant, core::Outcome::kUnknown);
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes());
  EXPECT_EQ(released.value().quarantined, Bytes(2 * kGranule));
  EXPECT_EQ(world.Check(), "");
  world.Kill(worker);
  world.RunUntilIdle();
  EXPECT_EQ(Charged(world, 0), Bytes());
}

TEST(ReleaseTest, AChunkThatItsArenaCannotCloseIsQuarantined) {
  World world;
  World::Worker& worker = world.Connect();
  world.socket_room = 0;
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 2)});
  world.fail_close = true;
  const Answer<ReleaseResult> released = Release(world, worker, grant.value());
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().quarantined, Bytes(2 * kGranule));
  EXPECT_EQ(world.Check(), "");
}

TEST(ReleaseTest, AReleaseDuringTheCloseAfterAnAcknowledgementClosesOnce) {
  World world;
  World::Worker& worker = world.Connect();
  const Answer<Grant> grant = Allocate(world, worker, {Spec(0, kGranule, 2)});
  world.held_back.insert("arena0");
  world.ReceiveAll(worker);  // its close waits at the arena
  world.RunUntilIdle();
  world.DropImports(worker, Ids(grant.value()));
  Answer<ReleaseResult> released;
  world.manager().Release(worker.session, 500, grant.value().lease, {core::Outcome::kUnmapped}, released.reply());
  world.RunUntilIdle();
  EXPECT_EQ(released.times(), 0) << "the arena has not answered";
  world.held_back.clear();
  world.RunUntilIdle();
  ASSERT_TRUE(released.ok());
  EXPECT_EQ(released.value().released, Bytes(2 * kGranule));
  EXPECT_EQ(std::count(world.calls.begin(), world.calls.end(), "arena.close"), 1);
  EXPECT_EQ(world.Check(), "");
}

TEST(ReleaseTest, ARetriedReleaseGetsTheSameAnswerAndStillMappedIsRefused) {
  World world;
  World::Worker& worker = world.Connect();
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 2)});
  EXPECT_EQ(Release(world, worker, grant, core::Outcome::kStillMapped).reason(), Reason::STILL_MAPPED);
  world.DropImports(worker, Ids(grant));
  Answer<ReleaseResult> first, again;
  world.manager().Release(worker.session, 600, grant.lease, {core::Outcome::kUnmapped}, first.reply());
  world.RunUntilIdle();
  world.manager().Release(worker.session, 600, grant.lease, {core::Outcome::kUnmapped}, again.reply());
  world.RunUntilIdle();
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(again.value().released, Bytes(2 * kGranule));
  EXPECT_FALSE(Release(world, worker, grant).ok()) << "another request id releases nothing twice";
}

TEST(TallyTest, AChunkCountsOnceAndAsReleasedInTheEnd) {
  const auto move = [](std::uint64_t chunk, ChunkState from, ChunkState to) {
    core::Transition moved;
    moved.chunk = ChunkId(chunk);
    moved.bytes = Bytes(kGranule);
    moved.from = from;
    moved.to = to;
    return moved;
  };
  Tally tally;
  tally.Add({move(1, ChunkState::kLive, ChunkState::kQuarantined), move(2, ChunkState::kLive, ChunkState::kDraining)});
  tally.Add({move(1, ChunkState::kDraining, ChunkState::kQuarantined)});
  EXPECT_EQ(tally.quarantined(), Bytes(kGranule));
  EXPECT_EQ(tally.released(), Bytes());
  tally.Add({move(1, ChunkState::kQuarantined, ChunkState::kReleased),
             move(2, ChunkState::kDraining, ChunkState::kReleased)});
  EXPECT_EQ(tally.quarantined(), Bytes());
  EXPECT_EQ(tally.released(), Bytes(2 * kGranule));
}

}  // namespace
}  // namespace gpumem::manager::testing
