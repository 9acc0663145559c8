// tests/unit/core/sessions_test.cc: fences, evidence, and the proven end of a process.
#include "tests/unit/core/books_fixture.h"

namespace gpumem::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionsTest : public BooksTest {};

TEST_F(SessionsTest, AFaultQuarantinesEverythingTheWorkerCouldWriteTo) {
  const SessionId session = Open();
  const Reservation live = GrantAndClose(session, Specs(2));
  const Reservation both = Reserve(session, {{kDevice, Bytes(2 * kMiB), 1}, {kOther, Bytes(2 * kMiB), 2}});
  for (const PlannedChunk& chunk : both.chunks) Ok(books.Created(chunk.chunk, &moves));
  const auto work =
      books.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "code 700", At(5), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->quarantined, Bytes(10 * kMiB));
  EXPECT_EQ(work->released, Bytes(0));
  EXPECT_EQ(Row().charged, Bytes(6 * kMiB));
  EXPECT_EQ(Row().quarantined, Bytes(6 * kMiB));
  EXPECT_EQ(Row(kOther).quarantined, Bytes(4 * kMiB));
  EXPECT_EQ(Row().mapped_read_write, Bytes(4 * kMiB));
  const auto records = Records();
  ASSERT_EQ(records.size(), 3u);  // one for each lease and device
  EXPECT_EQ(records[0].lease, live.lease);
  EXPECT_EQ(records[0].chunks, 2u);
  EXPECT_EQ(records[0].pid, 100);
  EXPECT_EQ(records[0].holder, "engine");
  EXPECT_EQ(records[0].role, Role::kKvCache);
  EXPECT_EQ(records[0].detail, "code 700");
  EXPECT_EQ(records[0].since, At(5));
  EXPECT_EQ(Words(records[0].evidence), "fault-reported");
  EXPECT_EQ(Words(records[0].waiting_for), "pidfd-readable witness-closed");
  EXPECT_EQ(Words(records[1].waiting_for), "pidfd-readable witness-closed arena-closed");
  EXPECT_EQ(SessionOf(session).state, SessionState::kFenced);
  EXPECT_EQ(SessionOf(session).fence_detail, "code 700");
  EXPECT_EQ(books.Count().quarantined, Bytes(10 * kMiB));
  EXPECT_EQ(books.Count().sessions_fenced, 1u);
  EXPECT_THAT(Story(live.chunks[0].chunk), HasSubstr("live>quarantined:fault-reported"));
  EXPECT_THAT(Story(both.chunks[0].chunk), HasSubstr("undelivered>quarantined:fault-reported"));
}

TEST_F(SessionsTest, AFencedSessionIsRefusedEverything) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const Reservation building = Grant(session, Specs(), "w");
  const SessionId reader = Open(2);
  Publish(reader, "sealed");
  const AttachmentId attachment = books.Attach(session, holders[session.value()], "sealed")->attachment;
  ASSERT_TRUE(books.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "", At(5), &moves).ok());
  const Reason fenced = Reason::SESSION_FENCED;
  const HolderId mine = holders[session.value()];
  Refused(fenced, [&](Transitions*) { return books.CheckLive(session); });
  Refused(fenced, [&](Transitions*) { return books.RegisterHolder(session, "x", Role::kOther); });
  RefusedReserve(fenced, session, Specs());
  Refused(fenced, [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome::kUnmapped}, At(6), m); });
  Refused(fenced,
          [&](Transitions* m) { return books.Seal(session, building.lease, {Outcome::kUnmapped}, {}, At(6), m); });
  Refused(fenced, [&](Transitions* m) { return books.Acknowledge(session, lease.chunks[0].chunk, Access::kNone, m); });
  Refused(fenced, [&](Transitions*) { return books.SetMapped(session, lease.lease, 0, 1, Access::kNone); });
  Refused(fenced, [&](Transitions*) { return books.Attach(session, mine, "sealed"); });
  Refused(fenced, [&](Transitions* m) { return books.Detach(session, attachment, {Outcome::kUnmapped}, m); });
  Refused(fenced, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 0, 1); });
  Refused(fenced, [&](Transitions*) { return books.Sent(lease.chunks[0].chunk); });
}

TEST_F(SessionsTest, ASecondFenceKeepsTheFirstReasonAndAddsItsEvidence) {
  const SessionId session = Open();
  GrantAndClose(session);
  ASSERT_TRUE(
      books.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "first", At(5), &moves).ok());
  moves.clear();
  const auto work =
      books.Fence(session, QuarantineReason::kWriterDied, Evidence::kSocketClosed, "second", At(6), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->quarantined, Bytes(0));
  EXPECT_THAT(moves, IsEmpty());
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kWriterFaulted);
  EXPECT_EQ(Records()[0].detail, "first");
  EXPECT_EQ(Words(Records()[0].evidence), "fault-reported socket-closed");
  EXPECT_EQ(SessionOf(session).fence_detail, "first");
}

TEST_F(SessionsTest, OnlyBothProofsEndAProcessInEitherOrder) {
  for (const bool pidfd_first : {true, false}) {
    const SessionId session = Open();
    const Reservation lease = GrantAndClose(session);
    const ChunkId chunk = lease.chunks[0].chunk;
    const Evidence first = pidfd_first ? Evidence::kPidfdReadable : Evidence::kWitnessClosed;
    const Evidence second = pidfd_first ? Evidence::kWitnessClosed : Evidence::kPidfdReadable;
    auto result = books.Observe(session, Evidence::kSocketClosed, At(5), &moves);
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->ended);
    EXPECT_EQ(result->work.quarantined, Bytes(2 * kMiB));
    result = books.Observe(session, first, At(6), &moves);
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->ended);
    EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
    EXPECT_EQ(Words(Records()[0].waiting_for), ToString(second));
    EXPECT_TRUE(Records()[0].evidence.Has(first));
    EXPECT_TRUE(Records()[0].evidence.Has(Evidence::kSocketClosed));
    EXPECT_EQ(Words(SessionOf(session).waiting_for), ToString(second));
    result = books.Observe(session, first, At(6), &moves);  // told twice
    ASSERT_TRUE(result.ok());
    EXPECT_FALSE(result->ended);
    result = books.Observe(session, second, At(7), &moves);
    ASSERT_TRUE(result.ok());
    EXPECT_TRUE(result->ended);
    EXPECT_EQ(result->work.released, Bytes(2 * kMiB));
    EXPECT_THAT(Story(chunk),
                HasSubstr(std::string("live>quarantined:socket-closed quarantined>released:") + ToString(second)));
    EXPECT_EQ(Row().charged, Bytes(0));
    EXPECT_FALSE(books.Exists(session));
    EXPECT_THAT(books.Holders(HolderId(), 9), IsEmpty());
    EXPECT_THAT(Records(), IsEmpty());
    Refused(Reason::UNKNOWN_SESSION,
            [&](Transitions* m) { return books.Observe(session, Evidence::kSocketClosed, At(8), m); });
  }
}

TEST_F(SessionsTest, ASocketAndAFaultAreNoProofOfAnEnd) {
  const SessionId session = Open();
  GrantAndClose(session);
  ASSERT_TRUE(books.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "", At(5), &moves).ok());
  ASSERT_TRUE(books.Observe(session, Evidence::kSocketClosed, At(6), &moves).ok());
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  for (const Evidence no_fact : {Evidence::kOwnerUnmapped, Evidence::kArenaEnded, Evidence{}}) {
    Refused(Reason::INTERNAL, [&](Transitions* m) { return books.Observe(session, no_fact, At(6), m); });
  }
  Refused(Reason::UNKNOWN_SESSION, [&](Transitions* m) {
    return books.Fence(SessionId(99), QuarantineReason::kOperator, Evidence{}, "", At(6), m);
  });
}

TEST_F(SessionsTest, AfterTheEndWhatTheArenaStillHasIsListedAndAwaited) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  const auto result = End(session);
  EXPECT_EQ(result.work.released, Bytes(0));
  EXPECT_THAT(result.work.close_at_arena, ElementsAre(chunk));
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  EXPECT_TRUE(books.Exists(session));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
  EXPECT_EQ(Words(Records()[0].waiting_for), "arena-closed");
  EXPECT_EQ(Words(SessionOf(session).waiting_for), "arena-closed");
  const auto again = books.Observe(session, Evidence::kSocketClosed, At(9), &moves);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(again->ended);
  EXPECT_THAT(again->work.close_at_arena, IsEmpty());
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(9), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_FALSE(books.Exists(session));
}

TEST_F(SessionsTest, AnUndeliveredChunkOfADeadSessionNeedsOnlyItsArenasClose) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.Created(chunk, &moves));
  ASSERT_TRUE(books.Observe(session, Evidence::kSocketClosed, At(5), &moves).ok());
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  // The grant in progress sees the fence and gives back what was never sent.
  const auto work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(chunk));
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(6), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kReleased);
  EXPECT_TRUE(books.Exists(session));
  EXPECT_TRUE(End(session).ended);
  EXPECT_FALSE(books.Exists(session));
}

TEST_F(SessionsTest, ASessionIsNotForgottenWhileACreationIsInFlight) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs(2));
  const auto result = End(session);
  EXPECT_EQ(result.work.released, Bytes(0));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kReserved);
  EXPECT_TRUE(books.Exists(session));
  EXPECT_EQ(Row().charged, Bytes(4 * kMiB));
  Ok(books.NotCreated(lease.chunks[0].chunk, Evidence::kDriverFailed, &moves));
  Ok(books.Created(lease.chunks[1].chunk, &moves));
  EXPECT_EQ(StateOf(lease.chunks[1].chunk), ChunkState::kUndelivered);
  Refused(Reason::SESSION_FENCED, [&](Transitions*) { return books.Sent(lease.chunks[1].chunk); });
  const auto work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[1].chunk));
  EXPECT_TRUE(books.Exists(session));
  Ok(books.DropArenaReference(lease.chunks[1].chunk, Evidence::kArenaClosed, At(9), &moves));
  EXPECT_FALSE(books.Exists(session));
  EXPECT_EQ(Row().charged, Bytes(0));
}

TEST_F(SessionsTest, ASessionWithNothingIsForgottenAtItsEnd) {
  const SessionId session = Open();
  End(session);
  EXPECT_FALSE(books.Exists(session));
  EXPECT_EQ(books.Count().sessions_fenced, 0u);
  EXPECT_EQ(books.Count().sessions_live, 0u);
}

TEST_F(SessionsTest, OneSessionsEndTouchesNoOther) {
  const SessionId first = Open(1);
  const SessionId second = Open(2);
  GrantAndClose(first);
  const Reservation stays = GrantAndClose(second, Specs(3));
  End(first);
  EXPECT_EQ(StateOf(stays.chunks[2].chunk), ChunkState::kLive);
  EXPECT_EQ(Row().charged, Bytes(6 * kMiB));
  EXPECT_EQ(SessionOf(second).charged, Bytes(6 * kMiB));
  Ok(books.CheckLive(second));
}

TEST_F(SessionsTest, AReleaseInProgressIsNotQuarantinedByAFence) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  const auto result = End(session);
  EXPECT_EQ(result.work.quarantined, Bytes(0));
  EXPECT_THAT(result.work.close_at_arena, IsEmpty());  // the release listed it
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kDraining);
  Ok(books.DropArenaReference(lease.chunks[0].chunk, Evidence::kArenaClosed, At(9), &moves));
  EXPECT_FALSE(books.Exists(session));
}

TEST_F(SessionsTest, WhatAReleaseListedForTheArenaIsNotListedAgainAtTheEnd) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const auto work = books.Release(session, lease.lease, {Outcome::kUnknown}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[0].chunk));
  EXPECT_THAT(End(session).work.close_at_arena, IsEmpty());
  Ok(books.DropArenaReference(lease.chunks[0].chunk, Evidence::kArenaClosed, At(9), &moves));
  EXPECT_FALSE(books.Exists(session));
}

TEST_F(SessionsTest, HolderNamesAndRolesAreChecked) {
  const SessionId session = Open();
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string("\x7f"), std::string("ä"),
                                  std::string(201, 'x'), std::string("a\0b", 3)}) {
    Refused(Reason::NAME_INVALID, [&](Transitions*) { return books.RegisterHolder(session, name, Role::kOther); });
  }
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) { return books.RegisterHolder(session, "x", Role{0}); });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) { return books.RegisterHolder(session, "x", Role{7}); });
  Refused(Reason::UNKNOWN_SESSION,
          [&](Transitions*) { return books.RegisterHolder(SessionId(99), "x", Role::kOther); });
  EXPECT_TRUE(books.RegisterHolder(session, std::string(200, 'x'), Role::kWeights).ok());
}

}  // namespace
}  // namespace gpumem::core
