// tests/unit/core/references_test.cc: arenas and keepers that fail, end, or hold what nobody knows.
#include "tests/unit/core/books_fixture.h"

namespace gpumem::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReferencesTest : public BooksTest {};

TEST_F(ReferencesTest, ACloseThatFailsQuarantinesUntilTheArenaEnds) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Ok(books.ReleaseFailed(chunk, QuarantineReason::kReleaseFailed, "close: EIO", At(5), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kReleaseFailed);
  EXPECT_EQ(Records()[0].detail, "close: EIO");
  EXPECT_EQ(Words(Records()[0].waiting_for), "arena-closed");
  EXPECT_EQ(Row().quarantined, Bytes(2 * kMiB));
  EXPECT_EQ(Row().draining, Bytes(0));
  EXPECT_THAT(books.ReferencedByArena(kDevice), ElementsAre(chunk));
  Ok(books.DropArenaReference(chunk, Evidence::kArenaEnded, At(6), &moves));
  EXPECT_THAT(Story(chunk), HasSubstr("draining>quarantined:driver-failed quarantined>released:arena-ended"));
  EXPECT_EQ(Row().charged, Bytes(0));
}

TEST_F(ReferencesTest, AFailureToCloseASpareFdOfAChunkInUseChangesNothing) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const std::string before = Picture(books);
  Ok(books.ReleaseFailed(lease.chunks[0].chunk, QuarantineReason::kReleaseFailed, "close: EIO", At(5), &moves));
  EXPECT_EQ(Picture(books), before);
  const auto work = books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves);
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[0].chunk));
}

TEST_F(ReferencesTest, AFirstReasonStays) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnknown}, At(4), &moves).ok());
  Ok(books.ReleaseFailed(lease.chunks[0].chunk, QuarantineReason::kReleaseFailed, "late", At(5), &moves));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kOutcomeUnknown);
}

TEST_F(ReferencesTest, EachReasonOfALeaseHasItsOwnRecord) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs(2));
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnknown, Outcome::kUnmapped}, At(4), &moves).ok());
  Ok(books.ReleaseFailed(lease.chunks[1].chunk, QuarantineReason::kReleaseFailed, "EIO", At(5), &moves));
  ASSERT_EQ(Records().size(), 2u);
  Ok(books.DropArenaReference(lease.chunks[1].chunk, Evidence::kArenaEnded, At(6), &moves));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kOutcomeUnknown);
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
}

TEST_F(ReferencesTest, AnArenasEndDropsItsReferencesAndNoLiveLease) {
  const SessionId session = Open();
  const Reservation live = Grant(session, Specs());
  const Reservation going = Grant(session, Specs());
  ASSERT_TRUE(books.Release(session, going.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  for (const ChunkId chunk : books.ReferencedByArena(kDevice)) {
    Ok(books.DropArenaReference(chunk, Evidence::kArenaEnded, At(5), &moves));
  }
  EXPECT_THAT(books.ReferencedByArena(kDevice), IsEmpty());
  EXPECT_THAT(books.ReferencedByArena(Uuid(9)), IsEmpty());
  EXPECT_EQ(StateOf(live.chunks[0].chunk), ChunkState::kLive);
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
}

TEST_F(ReferencesTest, WhatTheKeeperHoldsUnknownIsChargedAndShown) {
  const auto chunk = books.AdoptUnknownKept(kDevice, Bytes(6 * kMiB), "id 77 of an earlier daemon", At(1), &moves);
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(Row().charged, Bytes(6 * kMiB));
  EXPECT_EQ(Row().physical, Bytes(6 * kMiB));
  EXPECT_EQ(Row().quarantined, Bytes(6 * kMiB));
  EXPECT_EQ(Row().available, Bytes((1024 - 64 - 6) * kMiB));
  EXPECT_EQ(books.Tenants()[0].uses[0].charged, Bytes(6 * kMiB));
  EXPECT_THAT(books.ReferencedByKeeper(), ElementsAre(*chunk));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kKeptFdUnknown);
  EXPECT_EQ(Records()[0].detail, "id 77 of an earlier daemon");
  EXPECT_EQ(Words(Records()[0].waiting_for), "keeper-deleted");
  const LeaseId lease = books.Chunk(*chunk)->lease;
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions*) { return books.OwnerOf(lease); });
  const SessionId session = Open();
  Refused(Reason::FOREIGN_LEASE,
          [&](Transitions* m) { return books.Release(session, lease, {Outcome::kUnmapped}, At(3), m); });
  Refused(Reason::FOREIGN_LEASE, [&](Transitions*) { return books.CheckFetch(session, lease, 0, 1); });
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.Rollback(lease, m); });
  Ok(books.DropKeeperReference(*chunk, Evidence::kKeeperDeleted, At(2), &moves));
  EXPECT_EQ(Story(*chunk), "released>quarantined:keeper-stored quarantined>released:keeper-deleted");
  EXPECT_EQ(Row().charged, Bytes(0));
}

TEST_F(ReferencesTest, AdoptingMoreThanTheCapacityLeavesNothingAvailableAndNeverWraps) {
  const SessionId session = Open();
  ASSERT_TRUE(books.AdoptUnknownKept(kDevice, Bytes(4096 * kMiB), "", At(1), &moves).ok());
  EXPECT_EQ(Row().available, Bytes(0));
  RefusedReserve(Reason::SETTLING, session, Specs());
  Refused(Reason::SIZE_OVERFLOW,
          [&](Transitions* m) { return books.AdoptUnknownKept(kOther, Bytes(~std::uint64_t{0}), "", At(1), m); });
  Refused(Reason::SIZE_ZERO, [&](Transitions* m) { return books.AdoptUnknownKept(kDevice, Bytes(0), "", At(1), m); });
  Refused(Reason::UNKNOWN_DEVICE,
          [&](Transitions* m) { return books.AdoptUnknownKept(Uuid(9), Bytes(1), "", At(1), m); });
}

}  // namespace
}  // namespace gpumem::core
