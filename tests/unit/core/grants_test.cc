// tests/unit/core/grants_test.cc: reservations, their refusals, and the way of a chunk to its owner and back.
#include "tests/unit/core/books_fixture.h"

namespace gpumem::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
constexpr std::uint64_t kMax = ~std::uint64_t{0};

class GrantsTest : public BooksTest {};

TEST_F(GrantsTest, AReservationRoundsUpAndChargesEachBookOnce) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, {{kDevice, Bytes(3 * kMiB), 2}, {kOther, Bytes(1), 1}});
  EXPECT_EQ(lease.asked, Bytes(6 * kMiB + 1));
  EXPECT_EQ(lease.charged, Bytes(10 * kMiB));
  ASSERT_EQ(lease.chunks.size(), 3u);
  EXPECT_EQ(lease.chunks[1].chunk.value(), lease.chunks[0].chunk.value() + 1);
  EXPECT_EQ(lease.chunks[2].chunk.value(), lease.chunks[1].chunk.value() + 1);
  EXPECT_EQ(lease.chunks[0].bytes, Bytes(4 * kMiB));
  EXPECT_EQ(lease.chunks[2].bytes, Bytes(2 * kMiB));
  EXPECT_EQ(Row().charged, Bytes(8 * kMiB));
  EXPECT_EQ(Row().physical, Bytes(0));
  EXPECT_EQ(Row(kOther).charged, Bytes(2 * kMiB));
  EXPECT_EQ(books.Tenants()[0].uses[0].charged, Bytes(8 * kMiB));
  EXPECT_EQ(SessionOf(session).charged, Bytes(10 * kMiB));
  EXPECT_EQ(books.Holders(HolderId(), 9)[0].charged, Bytes(10 * kMiB));
  EXPECT_EQ(books.Count().leases, 1u);
  EXPECT_EQ(Row().available, Bytes((1024 - 64 - 8) * kMiB));
}

TEST_F(GrantsTest, ThePrivateWayOfAChunkFromReservedToReleased) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  EXPECT_EQ(StateOf(chunk), ChunkState::kReserved);
  Ok(books.Created(chunk, &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kUndelivered);
  EXPECT_EQ(Row().physical, Bytes(2 * kMiB));
  EXPECT_THAT(books.ReferencedByArena(kDevice), ElementsAre(chunk));
  Ok(books.Sent(chunk));
  Ok(books.Sent(chunk));  // a repeat of the frame
  EXPECT_EQ(StateOf(chunk), ChunkState::kUndelivered);
  Ok(books.Acknowledge(session, chunk, Access::kReadWrite, &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kLive);
  EXPECT_EQ(Row().mapped_read_write, Bytes(2 * kMiB));
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(3), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kLive);
  EXPECT_THAT(books.ReferencedByArena(kDevice), IsEmpty());
  const auto work = books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->released, Bytes(2 * kMiB));
  EXPECT_THAT(work->close_at_arena, IsEmpty());
  EXPECT_EQ(Story(chunk),
            "released>reserved reserved>undelivered:driver-created undelivered>live:import-acknowledged "
            "live>released:owner-unmapped");
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(Row().physical, Bytes(0));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
  EXPECT_EQ(books.Count().leases, 0u);
  EXPECT_TRUE(books.Exists(session));
}

TEST_F(GrantsTest, AReleaseBeforeTheArenaClosedDrainsUntilItsCloseIsAnswered) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  const auto work = books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->released, Bytes(0));
  EXPECT_THAT(work->close_at_arena, ElementsAre(chunk));
  EXPECT_EQ(StateOf(chunk), ChunkState::kDraining);
  EXPECT_EQ(Row().draining, Bytes(2 * kMiB));
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(5), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kReleased);
  EXPECT_THAT(Story(chunk), HasSubstr("live>draining:owner-unmapped draining>released:arena-closed"));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(Row().draining, Bytes(0));
  // A second answer for the same fd refunds nothing.
  Refused(Reason::INTERNAL,
          [&](Transitions* m) { return books.DropArenaReference(chunk, Evidence::kArenaClosed, At(5), m); });
}

TEST_F(GrantsTest, ADriverThatFailsLeavesNothingBehind) {
  const SessionId session = Open();
  const std::string before = Picture(books);
  const Reservation lease = Reserve(session, Specs(2));
  Ok(books.NotCreated(lease.chunks[0].chunk, Evidence::kDriverFailed, &moves));
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  Ok(books.NotCreated(lease.chunks[1].chunk, Evidence::kArenaEnded, &moves));
  EXPECT_EQ(Picture(books), before);
  EXPECT_EQ(Story(lease.chunks[1].chunk), "released>reserved reserved>released:arena-ended");
}

TEST_F(GrantsTest, AGrantThatFailsHalfWayGivesBackWhatWasMade) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs(3));
  Ok(books.Created(lease.chunks[0].chunk, &moves));
  Ok(books.NotCreated(lease.chunks[1].chunk, Evidence::kDriverFailed, &moves));
  auto work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[0].chunk));
  EXPECT_EQ(work->quarantined, Bytes(0));
  // The third answer comes late: it was made after all.
  Ok(books.Created(lease.chunks[2].chunk, &moves));
  work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[2].chunk));  // the first is not listed twice
  Ok(books.DropArenaReference(lease.chunks[0].chunk, Evidence::kArenaClosed, At(5), &moves));
  Ok(books.DropArenaReference(lease.chunks[2].chunk, Evidence::kArenaEnded, At(5), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(books.Count().leases, 0u);
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions* m) { return books.Rollback(lease.lease, m); });
}

TEST_F(GrantsTest, ARolledBackLeaseIsNeverOfUseAgain) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs(), "w");
  ASSERT_TRUE(books.Rollback(lease.lease, &moves).ok());
  Reserve(session, Specs(), "w");  // the name has a new owner
  Ok(books.Created(lease.chunks[0].chunk, &moves));
  Ok(books.Kept(lease.chunks[0].chunk));
  Refused(Reason::ALREADY_RELEASED, [&](Transitions*) { return books.Sent(lease.chunks[0].chunk); });
  Refused(Reason::ALREADY_RELEASED, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 0, 1); });
  Refused(Reason::ALREADY_RELEASED,
          [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), m); });
  Refused(Reason::ALREADY_RELEASED,
          [&](Transitions* m) { return books.Seal(session, lease.lease, {Outcome::kUnmapped}, {}, At(4), m); });
  const auto work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->delete_at_keeper, ElementsAre(lease.chunks[0].chunk));
  EXPECT_EQ(books.Segments("").size(), 1u);
}

TEST_F(GrantsTest, ARolledBackChunkThatWasSentWaitsForItsProcess) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.Created(chunk, &moves));
  Ok(books.Sent(chunk));
  const auto work = books.Rollback(lease.lease, &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->quarantined, Bytes(2 * kMiB));
  EXPECT_THAT(work->close_at_arena, ElementsAre(chunk));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kRollbackFailed);
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(5), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  EXPECT_EQ(Words(Records()[0].waiting_for), "pidfd-readable witness-closed");
  EXPECT_EQ(End(session).work.released, Bytes(2 * kMiB));
  EXPECT_FALSE(books.Exists(session));
}

TEST_F(GrantsTest, AnUndeliveredHandleThatIsLostStaysChargedButIsNotPhysical) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.Created(chunk, &moves));
  Ok(books.DropArenaReference(chunk, Evidence::kArenaEnded, At(3), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kUndelivered);
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  EXPECT_EQ(Row().physical, Bytes(0));
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(books.Count().leases, 0u);
}

// --- refusals of Reserve, in the order of books.h ---------------------------------------------------------------

TEST_F(GrantsTest, ReserveIsRefusedForAnUnknownOrFencedSession) {
  const SessionId session = Open();
  Refused(Reason::UNKNOWN_SESSION, [&](Transitions* m) {
    return books.Reserve(SessionId(999), holder, LeaseKind::kPrivate, "", Specs(), At(2), m);
  });
  ASSERT_TRUE(
      books.Fence(session, QuarantineReason::kWriterFaulted, Evidence::kFaultReported, "boom", At(2), &moves).ok());
  const Refusal refusal = RefusedReserve(Reason::SESSION_FENCED, session, {});
  EXPECT_THAT(refusal.message, HasSubstr("writer-faulted: boom"));
}

TEST_F(GrantsTest, ReserveIsRefusedForAHolderOfAnotherSession) {
  const SessionId first = Open(1);
  const HolderId of_first = holder;
  const SessionId second = Open(2);
  for (const HolderId wrong : {of_first, HolderId(), HolderId(999)}) {
    Refused(Reason::UNKNOWN_HOLDER, [&](Transitions* m) {
      return books.Reserve(second, wrong, LeaseKind::kPrivate, "bad name", {}, At(2), m);
    });
  }
  EXPECT_TRUE(books.Exists(first));
}

TEST_F(GrantsTest, ReserveIsRefusedForItsNameBeforeItsSizes) {
  const SessionId session = Open();
  Refused(Reason::NAME_INVALID,
          [&](Transitions* m) { return books.Reserve(session, holder, LeaseKind::kSegment, "", {}, At(2), m); });
  RefusedReserve(Reason::NAME_INVALID, session, {}, "a b");
  RefusedReserve(Reason::NAME_INVALID, session, {}, "w@1");
  Refused(Reason::NAME_INVALID,
          [&](Transitions* m) { return books.Reserve(session, holder, LeaseKind::kPrivate, "w", {}, At(2), m); });
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions* m) { return books.Reserve(session, holder, LeaseKind{9}, "w", {}, At(2), m); });
}

TEST_F(GrantsTest, ReserveIsRefusedForZeroes) {
  const SessionId session = Open();
  RefusedReserve(Reason::SIZE_ZERO, session, {});
  RefusedReserve(Reason::SIZE_ZERO, session, {{Uuid(9), Bytes(0), 1}});
  RefusedReserve(Reason::SIZE_ZERO, session, {{kDevice, Bytes(1), 1}, {kDevice, Bytes(1), 0}});
}

TEST_F(GrantsTest, ReserveIsRefusedWhenRoundingOrAddingOverflows) {
  const SessionId session = Open();
  RefusedReserve(Reason::SIZE_OVERFLOW, session, Specs(1, kMax));                    // rounded up
  RefusedReserve(Reason::SIZE_OVERFLOW, session, Specs(2, std::uint64_t{1} << 63));  // multiplied
  RefusedReserve(Reason::SIZE_OVERFLOW, session,
                 {{kDevice, Bytes(std::uint64_t{1} << 63), 1}, {kOther, Bytes(std::uint64_t{1} << 63), 1}});
  // Only what is charged overflows, not what is asked.
  RefusedReserve(Reason::SIZE_OVERFLOW, session, Specs(0xffffffff, kMax / 0xffffffff));
  // The sizes come before the devices, and overflow before the number of chunks.
  RefusedReserve(Reason::SIZE_OVERFLOW, session, Specs(0xffffffff, kMax / 2, Uuid(9)));
}

TEST_F(GrantsTest, ReserveIsRefusedForAnUnknownDeviceNamingThoseThatThereAre) {
  const SessionId session = Open();
  const Refusal refusal = RefusedReserve(Reason::UNKNOWN_DEVICE, session, Specs(1, 1, Uuid(9)));
  EXPECT_THAT(refusal.message, HasSubstr(Uuid(9).ToString()));
  EXPECT_THAT(refusal.message, HasSubstr(kDevice.ToString()));
  EXPECT_THAT(refusal.message, HasSubstr(kOther.ToString()));
}

TEST_F(GrantsTest, ReserveIsRefusedUnlessEveryDeviceIsHealthy) {
  const SessionId session = Open();
  for (const auto& [state, reason] : {std::pair{DeviceState::kStarting, Reason::DEVICE_UNAVAILABLE},
                                      std::pair{DeviceState::kSuspect, Reason::DEVICE_UNAVAILABLE},
                                      std::pair{DeviceState::kLost, Reason::DEVICE_LOST}}) {
    Ok(books.SetDeviceState(kOther, state, "the arena ended"));
    const Refusal refusal = RefusedReserve(reason, session, {{kDevice, Bytes(1), 1}, {kOther, Bytes(1), 1}});
    EXPECT_THAT(refusal.message, HasSubstr("the arena ended"));
  }
  const Generation lost = Row(kOther).generation;
  Ok(books.SetDeviceState(kOther, DeviceState::kHealthy, ""));
  EXPECT_GT(Row(kOther).generation, lost);
  Reserve(session, {{kDevice, Bytes(1), 1}, {kOther, Bytes(1), 1}});
}

TEST_F(GrantsTest, CapacityIsTheDevicesWithoutItsHeadroomToTheByte) {
  const SessionId session = Open();
  const Refusal refusal = RefusedReserve(Reason::CAPACITY, session, Specs(481));
  EXPECT_THAT(refusal.message, HasSubstr("asked 962.0 MiB (1008730112 bytes)"));
  const ErrorDetails details = refusal.details;
  EXPECT_EQ(details.at("asked_bytes"), std::to_string(962 * kMiB));
  EXPECT_EQ(details.at("used_bytes"), "0");
  EXPECT_EQ(details.at("limit_bytes"), std::to_string(960 * kMiB));
  EXPECT_EQ(details.at("available_bytes"), std::to_string(960 * kMiB));
  EXPECT_EQ(details.at("quarantined_bytes"), "0");
  Reserve(session, Specs(480));
  EXPECT_EQ(Row().available, Bytes(0));
  RefusedReserve(Reason::CAPACITY, session, Specs(1, 1));
}

TEST_F(GrantsTest, AllDevicesOfARequestAreGrantedOrNone) {
  const SessionId session = Open();
  RefusedReserve(Reason::CAPACITY, session, {{kDevice, Bytes(2 * kMiB), 1}, {kOther, Bytes(2 * kMiB), 257}});
  // The same device in two specs is one sum.
  RefusedReserve(Reason::CAPACITY, session, {{kOther, Bytes(2 * kMiB), 200}, {kOther, Bytes(2 * kMiB), 57}});
  Reserve(session, {{kOther, Bytes(2 * kMiB), 200}, {kOther, Bytes(2 * kMiB), 56}});
}

TEST_F(GrantsTest, BytesThatNothingExplainsAreNotAvailable) {
  const SessionId session = Open();
  GrantAndClose(session, Specs(10));
  Ok(books.SetDriverUsed(kDevice, Bytes(120 * kMiB)));
  EXPECT_EQ(Row().unattributed, Bytes(100 * kMiB));
  EXPECT_EQ(Row().available, Bytes((1024 - 100 - 20) * kMiB));
  RefusedReserve(Reason::CAPACITY, session, Specs(453));
  Reserve(session, Specs(452));
  Ok(books.SetDriverUsed(kDevice, Bytes(10 * kMiB)));  // less than the books know
  EXPECT_EQ(Row().unattributed, Bytes(0));
  Ok(books.SetDriverUsed(kDevice, Bytes(kMax)));
  EXPECT_EQ(Row().available, Bytes(0));
  RefusedReserve(Reason::CAPACITY, session, Specs());
  Refused(Reason::UNKNOWN_DEVICE, [&](Transitions*) { return books.SetDriverUsed(Uuid(9), Bytes(1)); });
}

TEST_F(GrantsTest, TheTenantsLimitIsOnEachDeviceAndComesBeforeCapacity) {
  const SessionId session = Open();
  Ok(books.SetTenantLimit(Bytes(100 * kMiB)));
  Reserve(session, Specs(40));
  const Refusal refusal = RefusedReserve(Reason::QUOTA, session, Specs(500));
  const ErrorDetails details = refusal.details;
  EXPECT_EQ(details.at("used_bytes"), std::to_string(80 * kMiB));
  EXPECT_EQ(details.at("limit_bytes"), std::to_string(100 * kMiB));
  EXPECT_EQ(details.at("available_bytes"), std::to_string(20 * kMiB));
  RefusedReserve(Reason::QUOTA, session, Specs(11));
  Reserve(session, {{kDevice, Bytes(2 * kMiB), 10}, {kOther, Bytes(2 * kMiB), 50}});
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) { return books.SetTenantLimit(Bytes(100 * kMiB - 1)); });
  Ok(books.SetTenantLimit(Bytes(100 * kMiB)));
  Ok(books.SetTenantLimit(std::nullopt));
  Reserve(session, Specs(100));
}

TEST_F(GrantsTest, WhatWouldFitOnceTheQuarantineHasSettledIsSettling) {
  const SessionId dying = Open(1);
  GrantAndClose(dying, Specs(200));
  ASSERT_TRUE(books.Observe(dying, Evidence::kSocketClosed, At(3), &moves).ok());
  const SessionId session = Open(2);
  const Refusal refusal = RefusedReserve(Reason::SETTLING, session, Specs(480));
  EXPECT_EQ(refusal.details.at("quarantined_bytes"), std::to_string(400 * kMiB));
  RefusedReserve(Reason::CAPACITY, session, Specs(481));
  Ok(books.SetTenantLimit(Bytes(500 * kMiB)));
  RefusedReserve(Reason::SETTLING, session, Specs(100));
  RefusedReserve(Reason::QUOTA, session, Specs(251));
  // Waiting does not help when another device is full for good.
  RefusedReserve(Reason::QUOTA, session, {{kDevice, Bytes(2 * kMiB), 100}, {kOther, Bytes(2 * kMiB), 251}});
  End(dying);
  Reserve(session, Specs(250));
}

TEST_F(GrantsTest, DrainingBytesSettleToo) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs(480));
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  RefusedReserve(Reason::SETTLING, session, Specs(1));
}

// --- refusals of the rest ---------------------------------------------------------------------------------------

TEST_F(GrantsTest, AChunkThatIsStillMappedRefusesTheWholeRelease) {
  const SessionId session = Open();
  const Reservation lease = GrantAndClose(session, Specs(3));
  const Refusal refusal = Refused(Reason::STILL_MAPPED, [&](Transitions* m) {
    return books.Release(session, lease.lease, {Outcome::kUnmapped, Outcome::kUnknown, Outcome::kStillMapped}, At(4),
                         m);
  });
  EXPECT_EQ(refusal.details.at("chunk_index"), "2");
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions* m) {
    return books.Release(session, lease.lease, {Outcome::kUnmapped, Outcome::kUnmapped}, At(4), m);
  });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions* m) { return books.Release(session, lease.lease, {}, At(4), m); });
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome{0}}, At(4), m); });
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome{4}}, At(4), m); });
}

TEST_F(GrantsTest, AnUnknownOutcomeIsQuarantinedUntilTheProcessEnded) {
  const SessionId session = Open();
  const Reservation lease = GrantAndClose(session, Specs(2));
  const auto work = books.Release(session, lease.lease, {Outcome::kUnknown, Outcome::kUnmapped}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->released, Bytes(2 * kMiB));
  EXPECT_EQ(work->quarantined, Bytes(2 * kMiB));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kOutcomeUnknown);
  EXPECT_EQ(Words(Records()[0].evidence), "owner-unknown");
  EXPECT_EQ(Words(Records()[0].waiting_for), "pidfd-readable witness-closed");
  EXPECT_EQ(Row().mapped_read_write, Bytes(2 * kMiB));  // as it said last
  Refused(Reason::ALREADY_RELEASED,
          [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), m); });
  EXPECT_EQ(End(session).work.released, Bytes(2 * kMiB));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
}

TEST_F(GrantsTest, AChunkThatWasNeverSentCannotBeMappedWhateverItsOwnerKnows) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  Ok(books.Created(lease.chunks[0].chunk, &moves));
  const auto work = books.Release(session, lease.lease, {Outcome::kUnknown}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->quarantined, Bytes(0));
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[0].chunk));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kDraining);
}

TEST_F(GrantsTest, OnlyTheLivingOwnerReleasesAndOnlyOnce) {
  const SessionId session = Open(1);
  const SessionId stranger = Open(2);
  const Reservation lease = GrantAndClose(session);
  const Reservation reserved = Reserve(session, Specs());
  Refused(Reason::FOREIGN_LEASE,
          [&](Transitions* m) { return books.Release(stranger, lease.lease, {Outcome::kUnmapped}, At(4), m); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Release(session, LeaseId(9999), {Outcome::kUnmapped}, At(4), m); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Release(session, reserved.lease, {Outcome::kUnmapped}, At(4), m); });
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), m); });
}

TEST_F(GrantsTest, AcknowledgementsAreRefusedUnlessTheChunkIsTheSessions) {
  const SessionId session = Open(1);
  const SessionId stranger = Open(2);
  const Reservation lease = Grant(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions* m) { return books.Acknowledge(stranger, chunk, Access::kNone, m); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Acknowledge(session, ChunkId(9999), Access::kNone, m); });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions* m) { return books.Acknowledge(session, chunk, Access{3}, m); });
  const Reservation unsent = Reserve(session, Specs());
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Acknowledge(session, unsent.chunks[0].chunk, Access::kNone, m); });
  Ok(books.Created(unsent.chunks[0].chunk, &moves));
  Refused(Reason::INTERNAL,
          [&](Transitions* m) { return books.Acknowledge(session, unsent.chunks[0].chunk, Access::kNone, m); });
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions* m) { return books.Acknowledge(session, chunk, Access::kNone, m); });
  Refused(Reason::ALREADY_RELEASED, [&](Transitions*) { return books.Sent(chunk); });
}

TEST_F(GrantsTest, MappingsAreCountedByKindAndNeverTwice) {
  const SessionId session = Open();
  const Reservation lease = Grant(session, Specs(3));
  Ok(books.SetMapped(session, lease.lease, 0, 2, Access::kNone));
  EXPECT_EQ(Row().mapped_read_write, Bytes(2 * kMiB));
  Ok(books.SetMapped(session, lease.lease, 1, 2, Access::kReadOnly));
  Ok(books.SetMapped(session, lease.lease, 1, 2, Access::kReadOnly));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
  EXPECT_EQ(Row().mapped_read_only, Bytes(4 * kMiB));
  EXPECT_EQ(SessionOf(session).mapped_read_only, Bytes(4 * kMiB));
  EXPECT_EQ(books.Holders(HolderId(), 9)[0].mapped_read_only, Bytes(4 * kMiB));
  for (const auto& [first, count] : std::vector<std::pair<std::uint32_t, std::uint32_t>>{
           {0, 0}, {3, 1}, {0, 4}, {2, 2}, {0xffffffff, 2}, {1, 0xffffffff}}) {
    Refused(Reason::INVALID_ARGUMENT, [&, f = first, c = count](Transitions*) {
      return books.SetMapped(session, lease.lease, f, c, Access::kNone);
    });
  }
  const SessionId stranger = Open(2);
  Refused(Reason::FOREIGN_LEASE,
          [&](Transitions*) { return books.SetMapped(stranger, lease.lease, 0, 1, Access::kNone); });
  const Reservation fresh = Reserve(session, Specs());
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions*) { return books.SetMapped(session, fresh.lease, 0, 1, Access::kReadWrite); });
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Refused(Reason::ALREADY_RELEASED,
          [&](Transitions*) { return books.SetMapped(session, lease.lease, 0, 1, Access::kNone); });
}

TEST_F(GrantsTest, FetchesAreForTheOwnerOfWhatIsGranted) {
  const SessionId session = Open(1);
  const SessionId stranger = Open(2);
  const Reservation lease = Reserve(session, Specs(3));
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 0, 3); });
  for (const PlannedChunk& chunk : lease.chunks) Ok(books.Created(chunk.chunk, &moves));
  const auto views = books.CheckFetch(session, lease.lease, 1, 2);
  ASSERT_TRUE(views.ok());
  ASSERT_EQ(views->size(), 2u);
  EXPECT_EQ((*views)[0].index, 1u);
  EXPECT_EQ((*views)[0].chunk, lease.chunks[1].chunk);
  EXPECT_TRUE((*views)[0].at_arena);
  EXPECT_FALSE((*views)[0].at_worker);
  Refused(Reason::FOREIGN_LEASE, [&](Transitions*) { return books.CheckFetch(stranger, lease.lease, 0, 1); });
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions*) { return books.CheckFetch(session, LeaseId(9999), 0, 1); });
  Refused(Reason::UNKNOWN_SESSION, [&](Transitions*) { return books.CheckFetch(SessionId(9), lease.lease, 0, 1); });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 2, 2); });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 0, 0); });
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Refused(Reason::ALREADY_RELEASED, [&](Transitions*) { return books.CheckFetch(session, lease.lease, 0, 1); });
}

TEST_F(GrantsTest, AnswersThatCannotBeAreDefects) {
  const SessionId session = Open();
  const Reservation lease = Reserve(session, Specs());
  const ChunkId chunk = lease.chunks[0].chunk;
  Refused(Reason::INTERNAL, [&](Transitions*) { return books.Sent(chunk); });
  Refused(Reason::INTERNAL, [&](Transitions*) { return books.Kept(chunk); });
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.NotCreated(chunk, Evidence::kSocketClosed, m); });
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.Created(ChunkId(lease.lease.value()), m); });
  Ok(books.Created(chunk, &moves));
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.Created(chunk, m); });
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.NotCreated(chunk, Evidence::kDriverFailed, m); });
  Refused(Reason::INTERNAL, [&](Transitions*) { return books.Kept(chunk); });  // a private chunk has no keeper
  Refused(Reason::INTERNAL,
          [&](Transitions* m) { return books.DropArenaReference(chunk, Evidence::kOwnerUnmapped, At(3), m); });
  Refused(Reason::INTERNAL,
          [&](Transitions* m) { return books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, At(3), m); });
  Refused(Reason::INTERNAL,
          [&](Transitions* m) { return books.ReleaseFailed(chunk, QuarantineReason::kOperator, "", At(3), m); });
}

TEST_F(GrantsTest, AnAuthorityIsAddedOnceAndMustMakeSense) {
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) {
    return books.AddAuthority({kDevice, "again", Bytes(1), Bytes(0), Bytes(1)});
  });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) {
    return books.AddAuthority({Uuid(3), "", Bytes(1), Bytes(0), Bytes(0)});
  });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions*) {
    return books.AddAuthority({Uuid(3), "", Bytes(1), Bytes(2), Bytes(1)});
  });
  Refused(Reason::SIZE_OVERFLOW, [&](Transitions*) {
    return books.AddAuthority({Uuid(3), "", Bytes(kMax), Bytes(0), Bytes(1)});
  });
  Refused(Reason::UNKNOWN_DEVICE,
          [&](Transitions*) { return books.SetDeviceState(Uuid(3), DeviceState::kHealthy, ""); });
}

TEST_F(GrantsTest, PagesAreInRisingOrderAndHaveAllOnce) {
  const SessionId session = Open();
  for (int i = 0; i < 10; ++i) Reserve(session, Specs());
  std::vector<LeaseId> seen;
  LeaseId after;
  for (auto page = books.Leases(after, 3); !page.empty(); page = books.Leases(after, 3)) {
    EXPECT_LE(page.size(), 3u);
    for (const LeaseRow& row : page) seen.push_back(row.lease);
    after = seen.back();
  }
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_THAT(books.Leases(LeaseId(), 0), IsEmpty());
}

class HighIdsTest : public BooksTest {
 protected:
  HighIdsTest() : BooksTest({}, 1'000'000) {}
};

TEST_F(HighIdsTest, EveryIdAndGenerationIsAboveThoseOfEarlierLives) {
  const SessionId session = Open();
  const Reservation lease = Publish(session, "w");
  EXPECT_GE(session.value(), 1'000'000u);
  EXPECT_GE(lease.lease.value(), 1'000'000u);
  EXPECT_GE(lease.chunks[0].generation.value(), 1'000'000u);
  EXPECT_GE(Row().generation.value(), 1'000'000u);
  EXPECT_GE(Attach(session, "w").attachment.value(), 1'000'000u);
}

}  // namespace
}  // namespace gpumem::core
