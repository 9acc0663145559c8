// tests/unit/core/segments_test.cc: segments are built, sealed, read, lost and removed.
#include "tests/unit/core/books_fixture.h"

namespace gpumem::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SegmentsTest : public BooksTest {
 protected:
  absl::StatusOr<ReleaseWork> Remove(std::string_view name) { return books.RemoveSegment(name, At(8), &moves); }
};

TEST_F(SegmentsTest, SealingMakesVersionOneOwnedByNobodyAndChargedOnce) {
  const SessionId builder = Open();
  const Reservation lease = Grant(builder, Specs(2), "org/w");
  EXPECT_EQ(books.Segments("")[0].name, "org/w");
  EXPECT_EQ(books.Segments("")[0].state, SegmentState::kBuilding);
  EXPECT_EQ(*books.OwnerOf(lease.lease), builder);
  const Manifest manifest = {{"t", "U8", {4}, Bytes(0), Bytes(4)}};
  const auto sealed = books.Seal(builder, lease.lease, {Outcome::kUnmapped}, manifest, At(4), &moves);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_EQ(sealed->name, "org/w@1");
  EXPECT_THAT(sealed->work.close_at_arena, ElementsAre(lease.chunks[0].chunk, lease.chunks[1].chunk));
  EXPECT_THAT(sealed->work.delete_at_keeper, IsEmpty());
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kLive);
  EXPECT_FALSE(books.Chunk(lease.chunks[0].chunk)->at_worker);
  EXPECT_EQ(Row().charged, Bytes(4 * kMiB));
  EXPECT_EQ(Row().mapped_read_write, Bytes(0));
  EXPECT_EQ(books.Tenants()[0].uses[0].charged, Bytes(4 * kMiB));
  EXPECT_EQ(SessionOf(builder).charged, Bytes(0));
  EXPECT_EQ(SessionOf(builder).leases, 0u);
  EXPECT_EQ(SessionOf(builder).mapped_read_write, Bytes(0));
  const SegmentRow row = books.Segments("org/")[0];
  EXPECT_EQ(row.name, "org/w@1");
  EXPECT_EQ(row.state, SegmentState::kSealed);
  EXPECT_EQ(row.bytes, Bytes(4 * kMiB));
  EXPECT_EQ(row.chunks, 2u);
  EXPECT_EQ(row.tensors, 1u);
  EXPECT_EQ(row.sealed_at, At(4));
  const LeaseRow of_lease = books.Leases(LeaseId(), 9)[0];
  EXPECT_FALSE(of_lease.session.valid());
  EXPECT_EQ(of_lease.segment, "org/w@1");
  Refused(Reason::UNKNOWN_LEASE, [&](Transitions*) { return books.OwnerOf(lease.lease); });
}

TEST_F(SegmentsTest, ASealedSegmentOutlivesItsBuilder) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w");
  End(builder);
  EXPECT_FALSE(books.Exists(builder));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kLive);
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  const SessionId reader = Open(2);
  EXPECT_EQ(Attach(reader, "w").segment.name, "w@1");
}

TEST_F(SegmentsTest, ABuilderThatDiesFirstLeavesNothing) {
  const SessionId builder = Open();
  const Reservation lease = Grant(builder, Specs(), "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  ASSERT_TRUE(books.Observe(builder, Evidence::kSocketClosed, At(5), &moves).ok());
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  EXPECT_EQ(Records()[0].segment, "w");
  EXPECT_EQ(Words(Records()[0].waiting_for), "pidfd-readable witness-closed arena-closed keeper-deleted");
  const SessionId next = Open(2);
  EXPECT_THAT(RefusedReserve(Reason::SEGMENT_EXISTS, next, Specs(), "w").message, HasSubstr("wait until it is sealed"));
  const auto result = End(builder);
  EXPECT_THAT(result.work.close_at_arena, ElementsAre(chunk));
  EXPECT_THAT(result.work.delete_at_keeper, ElementsAre(chunk));
  EXPECT_THAT(books.Segments(""), IsEmpty());
  Ok(books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, At(9), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kQuarantined);
  Reserve(next, Specs(), "w");  // the name is free before the last fd is closed
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(9), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kReleased);
  EXPECT_FALSE(books.Exists(builder));
  EXPECT_EQ(books.Segments("").size(), 1u);
}

TEST_F(SegmentsTest, ABuilderMayGiveItsSegmentBack) {
  const SessionId builder = Open();
  const Reservation lease = Grant(builder, Specs(), "w");
  const auto work = books.Release(builder, lease.lease, {Outcome::kUnmapped}, At(4), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->close_at_arena, ElementsAre(lease.chunks[0].chunk));
  EXPECT_THAT(work->delete_at_keeper, ElementsAre(lease.chunks[0].chunk));
  EXPECT_THAT(books.Segments(""), IsEmpty());
  Ok(books.DropArenaReference(lease.chunks[0].chunk, Evidence::kArenaClosed, At(5), &moves));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kDraining);
  Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperDeleted, At(5), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
}

TEST_F(SegmentsTest, AFailedBuildFreesItsName) {
  const SessionId builder = Open();
  const Reservation rolled_back = Reserve(builder, Specs(), "w");
  Ok(books.Created(rolled_back.chunks[0].chunk, &moves));
  ASSERT_TRUE(books.Rollback(rolled_back.lease, &moves).ok());
  const Reservation failed = Reserve(builder, Specs(), "w");
  Ok(books.NotCreated(failed.chunks[0].chunk, Evidence::kDriverFailed, &moves));
  Publish(builder, "w");
  EXPECT_EQ(books.Segments("")[0].name, "w@1");
}

TEST_F(SegmentsTest, AKeepThatIsAnsweredAfterTheEndIsStillDeletedBeforeTheChargeEnds) {
  const SessionId builder = Open();
  const Reservation lease = Reserve(builder, Specs(), "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.Created(chunk, &moves));
  ASSERT_TRUE(books.Rollback(lease.lease, &moves).ok());
  Ok(books.Kept(chunk));
  Refused(Reason::INTERNAL, [&](Transitions*) { return books.Kept(chunk); });
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(4), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kDraining);
  Ok(books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, At(4), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kReleased);
}

TEST_F(SegmentsTest, SealIsRefusedUnlessEveryChunkIsKeptUnmappedAndTheSessionsOwn) {
  const SessionId builder = Open(1);
  const SessionId stranger = Open(2);
  const Reservation priv = GrantAndClose(builder);
  const auto seal = [&](SessionId session, LeaseId lease, std::vector<Outcome> outcomes, Manifest manifest = {}) {
    return [this, session, lease, outcomes, manifest](Transitions* m) {
      return books.Seal(session, lease, outcomes, manifest, At(4), m);
    };
  };
  Refused(Reason::INVALID_ARGUMENT, seal(builder, priv.lease, {Outcome::kUnmapped}));
  Refused(Reason::UNKNOWN_LEASE, seal(builder, LeaseId(9999), {Outcome::kUnmapped}));
  const Reservation lease = Reserve(builder, Specs(2), "w");
  Refused(Reason::UNKNOWN_LEASE, seal(builder, lease.lease, {Outcome::kUnmapped}));
  for (const PlannedChunk& chunk : lease.chunks) Ok(books.Created(chunk.chunk, &moves));
  Ok(books.Kept(lease.chunks[0].chunk));
  Refused(Reason::KEEPER_UNAVAILABLE, seal(builder, lease.lease, {Outcome::kUnmapped}));
  Ok(books.Kept(lease.chunks[1].chunk));
  Refused(Reason::FOREIGN_LEASE, seal(stranger, lease.lease, {Outcome::kUnmapped}));
  Refused(Reason::STILL_MAPPED, seal(builder, lease.lease, {Outcome::kUnmapped, Outcome::kStillMapped}));
  Refused(Reason::INVALID_ARGUMENT, seal(builder, lease.lease, {Outcome::kUnknown, Outcome::kUnmapped}));
  Refused(Reason::INVALID_ARGUMENT, seal(builder, lease.lease, {}));
  const Manifest outside = {{"t", "U8", {4 * kMiB}, Bytes(1), Bytes(4 * kMiB)}};
  Refused(Reason::MANIFEST_INVALID, seal(builder, lease.lease, {Outcome::kUnmapped}, outside));
  // A chunk that its builder never imported is sealed like the others.
  ASSERT_TRUE(books.Seal(builder, lease.lease, {Outcome::kUnmapped}, {}, At(4), &moves).ok());
  EXPECT_THAT(Story(lease.chunks[0].chunk), HasSubstr("undelivered>live:owner-unmapped"));
  Refused(Reason::ALREADY_SEALED, seal(builder, lease.lease, {Outcome::kUnmapped}));
  Refused(Reason::ALREADY_SEALED,
          [&](Transitions* m) { return books.Release(builder, lease.lease, {Outcome::kUnmapped}, At(5), m); });
  Refused(Reason::ALREADY_SEALED,
          [&](Transitions*) { return books.SetMapped(builder, lease.lease, 0, 1, Access::kReadWrite); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Acknowledge(builder, lease.chunks[0].chunk, Access::kReadWrite, m); });
  Refused(Reason::INTERNAL, [&](Transitions* m) { return books.Rollback(lease.lease, m); });
  RefusedReserve(Reason::SEGMENT_EXISTS, builder, Specs(), "w");
  const Reservation given_back = Grant(builder, Specs(), "v");
  ASSERT_TRUE(books.Release(builder, given_back.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  Refused(Reason::ALREADY_RELEASED, seal(builder, given_back.lease, {Outcome::kUnmapped}));
}

TEST_F(SegmentsTest, AttachIsOfSealedSegmentsOnly) {
  const SessionId session = Open();
  const auto attach = [&](std::string_view name) {
    return [this, session, name](Transitions*) { return books.Attach(session, holder, name); };
  };
  Refused(Reason::UNKNOWN_SEGMENT, attach("w"));
  Refused(Reason::NAME_INVALID, attach("w@0"));
  const Reservation building = Grant(session, Specs(), "w");
  Refused(Reason::NOT_SEALED, attach("w"));
  Refused(Reason::NOT_SEALED, attach("w@1"));
  Refused(Reason::UNKNOWN_SEGMENT, attach("w@2"));
  ASSERT_TRUE(books.Seal(session, building.lease, {Outcome::kUnmapped}, {}, At(4), &moves).ok());
  Refused(Reason::UNKNOWN_SEGMENT, attach("w@2"));
  Refused(Reason::UNKNOWN_HOLDER, [&](Transitions*) { return books.Attach(session, HolderId(999), "w"); });
  Refused(Reason::UNKNOWN_SESSION, [&](Transitions*) { return books.Attach(SessionId(999), holder, "w"); });
  Attach(session, "w@1");
  Refused(Reason::ALREADY_ATTACHED, attach("w"));
}

TEST_F(SegmentsTest, TenReadersAreChargedOnceAndCountedTenTimesAsMapped) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w", Specs(2));
  for (int i = 0; i < 10; ++i) {
    const SessionId reader = Open(200 + i);
    const Attached attached = Attach(reader, "w");
    ASSERT_EQ(attached.chunks.size(), 2u);
    EXPECT_TRUE(attached.chunks[0].at_worker);
    EXPECT_TRUE(books.CheckFetch(reader, lease.lease, 0, 2).ok());
    for (const ChunkView& chunk : attached.chunks) {
      Ok(books.Sent(chunk.chunk));
      Ok(books.Acknowledge(reader, chunk.chunk, Access::kReadOnly, &moves));
      Ok(books.Acknowledge(reader, chunk.chunk, Access::kReadOnly, &moves));  // told twice, counted once
    }
    EXPECT_EQ(SessionOf(reader).mapped_read_only, Bytes(4 * kMiB));
    EXPECT_EQ(SessionOf(reader).attachments, 1u);
    EXPECT_EQ(SessionOf(reader).charged, Bytes(0));
  }
  EXPECT_EQ(Row().charged, Bytes(4 * kMiB));
  EXPECT_EQ(Row().physical, Bytes(4 * kMiB));
  EXPECT_EQ(Row().mapped_read_only, Bytes(40 * kMiB));
  EXPECT_EQ(books.Segments("")[0].readers, 10u);
}

TEST_F(SegmentsTest, AReaderMapsReadOnly) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w", Specs(2));
  const SessionId reader = Open(2);
  Attach(reader, "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions* m) { return books.Acknowledge(reader, chunk, Access::kReadWrite, m); });
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions*) { return books.SetMapped(reader, lease.lease, 0, 2, Access::kReadWrite); });
  Refused(Reason::INVALID_ARGUMENT,
          [&](Transitions*) { return books.SetMapped(reader, lease.lease, 1, 2, Access::kReadOnly); });
  Ok(books.SetMapped(reader, lease.lease, 0, 2, Access::kReadOnly));
  EXPECT_EQ(Row().mapped_read_only, Bytes(4 * kMiB));
  Ok(books.SetMapped(reader, lease.lease, 1, 1, Access::kNone));
  EXPECT_EQ(Row().mapped_read_only, Bytes(2 * kMiB));
  const SessionId stranger = Open(3);
  Refused(Reason::FOREIGN_LEASE, [&](Transitions*) { return books.CheckFetch(stranger, lease.lease, 0, 1); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Acknowledge(stranger, chunk, Access::kReadOnly, m); });
}

TEST_F(SegmentsTest, DetachGivesTheMappingsBackAndTheSegmentStays) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w", Specs(2));
  const SessionId reader = Open(2);
  const AttachmentId attachment = Attach(reader, "w").attachment;
  Ok(books.SetMapped(reader, lease.lease, 0, 2, Access::kReadOnly));
  Refused(Reason::STILL_MAPPED, [&](Transitions* m) {
    return books.Detach(reader, attachment, {Outcome::kUnmapped, Outcome::kStillMapped}, m);
  });
  Refused(Reason::INVALID_ARGUMENT, [&](Transitions* m) { return books.Detach(reader, attachment, {}, m); });
  Refused(Reason::FOREIGN_LEASE,
          [&](Transitions* m) { return books.Detach(builder, attachment, {Outcome::kUnmapped}, m); });
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Detach(reader, AttachmentId(9999), {Outcome::kUnmapped}, m); });
  Ok(books.Detach(reader, attachment, {Outcome::kUnmapped}, &moves));
  EXPECT_EQ(Row().mapped_read_only, Bytes(0));
  EXPECT_EQ(Row().charged, Bytes(4 * kMiB));
  EXPECT_EQ(books.Segments("")[0].readers, 0u);
  Refused(Reason::UNKNOWN_LEASE,
          [&](Transitions* m) { return books.Detach(reader, attachment, {Outcome::kUnmapped}, m); });
  Refused(Reason::FOREIGN_LEASE, [&](Transitions*) { return books.CheckFetch(reader, lease.lease, 0, 1); });
  Attach(reader, "w");
}

TEST_F(SegmentsTest, ADetachThatDoesNotKnowItsOutcomeGoesOnCountingAsAReader) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w");
  const SessionId reader = Open(2);
  const AttachmentId attachment = Attach(reader, "w").attachment;
  Ok(books.Detach(reader, attachment, {Outcome::kUnknown}, &moves));
  Refused(Reason::SEGMENT_IN_USE, [&](Transitions* m) { return books.RemoveSegment("w", At(8), m); });
  Refused(Reason::ALREADY_ATTACHED, [&](Transitions*) { return books.Attach(reader, holder, "w"); });
  Refused(Reason::FOREIGN_LEASE, [&](Transitions*) { return books.CheckFetch(reader, lease.lease, 0, 1); });
  End(reader);
  EXPECT_TRUE(Remove("w").ok());
}

TEST_F(SegmentsTest, ADeadReadersAttachmentCountsUntilItsEndIsProven) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w");
  const SessionId reader = Open(4711);
  Attach(reader, "w");
  Ok(books.SetMapped(reader, lease.lease, 0, 1, Access::kReadOnly));
  ASSERT_TRUE(books.Observe(reader, Evidence::kSocketClosed, At(5), &moves).ok());
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kLive);
  EXPECT_EQ(Row().mapped_read_only, Bytes(2 * kMiB));
  const Refusal refusal =
      Refused(Reason::SEGMENT_IN_USE, [&](Transitions* m) { return books.RemoveSegment("w@1", At(8), m); });
  EXPECT_THAT(refusal.message, HasSubstr("pid 4711"));
  EXPECT_THAT(refusal.message, HasSubstr(std::to_string(reader.value())));
  End(reader);
  EXPECT_EQ(Row().mapped_read_only, Bytes(0));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kLive);
  EXPECT_FALSE(books.Exists(reader));
}

TEST_F(SegmentsTest, ManyReadersAreNamedUpToANumber) {
  Publish(Open(1), "w");
  for (int i = 0; i < 12; ++i) Attach(Open(200 + i), "w");
  const Refusal refusal =
      Refused(Reason::SEGMENT_IN_USE, [&](Transitions* m) { return books.RemoveSegment("w", At(8), m); });
  EXPECT_THAT(refusal.message, HasSubstr("pid 207"));
  EXPECT_THAT(refusal.message, Not(HasSubstr("pid 208")));
  EXPECT_THAT(refusal.message, HasSubstr("and 4 more"));
}

TEST_F(SegmentsTest, RemovalEndsWhenTheKeeperHasDeleted) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  Refused(Reason::UNKNOWN_SEGMENT, [&](Transitions* m) { return books.RemoveSegment("v", At(8), m); });
  Refused(Reason::NAME_INVALID, [&](Transitions* m) { return books.RemoveSegment("", At(8), m); });
  const auto work = Remove("w@1");
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->delete_at_keeper, ElementsAre(chunk));
  EXPECT_THAT(work->close_at_arena, IsEmpty());
  EXPECT_EQ(StateOf(chunk), ChunkState::kDraining);
  EXPECT_THAT(books.Segments(""), IsEmpty());
  Refused(Reason::UNKNOWN_SEGMENT, [&](Transitions*) { return books.Attach(builder, holder, "w"); });
  Refused(Reason::UNKNOWN_SEGMENT, [&](Transitions* m) { return books.RemoveSegment("w@1", At(8), m); });
  Ok(books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, At(9), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_THAT(Story(chunk), HasSubstr("live>draining draining>released:keeper-deleted"));
}

TEST_F(SegmentsTest, ASegmentInTheMakingIsNotRemoved) {
  const SessionId builder = Open();
  Grant(builder, Specs(), "w");
  Refused(Reason::NOT_SEALED, [&](Transitions* m) { return books.RemoveSegment("w", At(8), m); });
}

TEST_F(SegmentsTest, AVersionIsNeverGivenTwice) {
  const SessionId builder = Open();
  for (int version = 1; version <= 3; ++version) {
    const Reservation lease = Publish(builder, "w");
    const std::string name = "w@" + std::to_string(version);
    EXPECT_EQ(books.Segments("")[0].name, name);
    ASSERT_TRUE(Remove(name).ok());
    Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperDeleted, At(9), &moves));
  }
  Publish(builder, "other");
  EXPECT_EQ(books.Segments("")[0].name, "other@1");
}

// What books with real devices cannot reach: a total that would pass 64 bits stops the call and nothing else.
TEST(HugeBooks, ATotalThatWouldPass64BitsChangesNothing) {
  Books books(Limits{}, 1);
  const Bytes half(std::uint64_t{1} << 63);
  Transitions moves;
  ASSERT_TRUE(books.AddAuthority({Uuid(1), "", half, Bytes(0), half}).ok());
  ASSERT_TRUE(books.SetDeviceState(Uuid(1), DeviceState::kHealthy, "").ok());
  const SessionId builder = books.OpenSession({}, At(0)).value();
  const HolderId holder = books.RegisterHolder(builder, "h", Role::kWeights).value();
  const auto lease = books.Reserve(builder, holder, LeaseKind::kSegment, "w", {{Uuid(1), half, 1}}, At(0), &moves);
  ASSERT_TRUE(lease.ok()) << lease.status();
  ASSERT_TRUE(books.Created(lease->chunks[0].chunk, &moves).ok());
  ASSERT_TRUE(books.Kept(lease->chunks[0].chunk).ok());
  ASSERT_TRUE(books.Seal(builder, lease->lease, {Outcome::kUnmapped}, {}, At(0), &moves).ok());
  ASSERT_TRUE(books.Attach(builder, holder, "w").ok());
  ASSERT_TRUE(books.SetMapped(builder, lease->lease, 0, 1, Access::kReadOnly).ok());
  const SessionId reader = books.OpenSession({}, At(0)).value();
  ASSERT_TRUE(books.Attach(reader, books.RegisterHolder(reader, "h", Role::kWeights).value(), "w").ok());
  const std::string before = Picture(books);
  for (int i = 0; i < 2; ++i) {  // the refused plan leaves no trace for the next
    const absl::Status status = books.SetMapped(reader, lease->lease, 0, 1, Access::kReadOnly);
    EXPECT_EQ(ReasonOf(status), Reason::INTERNAL);
    EXPECT_THAT(std::string(status.message()), HasSubstr("mapped read-only"));
    EXPECT_EQ(Picture(books), before);
  }
  EXPECT_TRUE(books.SetMapped(builder, lease->lease, 0, 1, Access::kNone).ok());
  EXPECT_TRUE(books.SetMapped(reader, lease->lease, 0, 1, Access::kReadOnly).ok());
  EXPECT_TRUE(books.Verify().ok());
}

// --- the keeper is lost -------------------------------------------------------------------------------------------

TEST_F(SegmentsTest, WithoutReadersALostSegmentsChargeEndsAtOnce) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.DropKeeperReference(chunk, Evidence::kKeeperEnded, At(7), &moves));
  EXPECT_THAT(Story(chunk), HasSubstr("live>released:keeper-ended"));
  EXPECT_EQ(Row().charged, Bytes(0));
  ASSERT_EQ(books.Segments("").size(), 1u);
  EXPECT_EQ(books.Segments("")[0].state, SegmentState::kLost);
  Refused(Reason::SEGMENT_LOST, [&](Transitions*) { return books.Attach(builder, holder, "w"); });
  // It can be built again, as the next version.
  Publish(builder, "w");
  ASSERT_EQ(books.Segments("").size(), 1u);
  EXPECT_EQ(books.Segments("")[0].name, "w@2");
}

TEST_F(SegmentsTest, ALostSegmentCanBeRemovedFromTheList) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w");
  Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperEnded, At(7), &moves));
  const auto work = Remove("w@1");
  ASSERT_TRUE(work.ok());
  EXPECT_EQ(work->released, Bytes(0));
  EXPECT_THAT(books.Segments(""), IsEmpty());
}

TEST_F(SegmentsTest, ALostSegmentsReadersAreItsLastReference) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w", Specs(2));
  const SessionId first = Open(2);
  const SessionId second = Open(3);
  const AttachmentId attachment = Attach(first, "w").attachment;
  Attach(second, "w");
  Ok(books.SetMapped(first, lease.lease, 0, 2, Access::kReadOnly));
  for (const ChunkId chunk : books.ReferencedByKeeper()) {
    Ok(books.DropKeeperReference(chunk, Evidence::kKeeperEnded, At(7), &moves));
  }
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kQuarantined);
  EXPECT_EQ(Row().physical, Bytes(4 * kMiB));
  ASSERT_EQ(Records().size(), 1u);
  EXPECT_EQ(Records()[0].reason, QuarantineReason::kKeptFdMissing);
  EXPECT_EQ(Records()[0].segment, "w@1");
  EXPECT_EQ(Words(Records()[0].evidence), "keeper-ended");
  EXPECT_EQ(Words(Records()[0].waiting_for), "reader-detached");
  Refused(Reason::SEGMENT_LOST, [&](Transitions*) { return books.CheckFetch(first, lease.lease, 0, 1); });
  Refused(Reason::SEGMENT_IN_USE, [&](Transitions* m) { return books.RemoveSegment("w", At(8), m); });
  // A lost one cannot be attached: that is no advice.
  EXPECT_THAT(RefusedReserve(Reason::SEGMENT_EXISTS, first, Specs(), "w").message, Not(HasSubstr("attach")));
  Ok(books.Detach(first, attachment, {Outcome::kUnmapped}, &moves));
  EXPECT_EQ(Row().charged, Bytes(4 * kMiB));
  EXPECT_EQ(End(second).work.released, Bytes(4 * kMiB));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(books.Segments("")[0].state, SegmentState::kLost);
}

TEST_F(SegmentsTest, TheLastReadersDetachEndsALostSegmentsCharge) {
  const SessionId builder = Open(1);
  const Reservation lease = Publish(builder, "w");
  const SessionId reader = Open(2);
  const AttachmentId attachment = Attach(reader, "w").attachment;
  Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperEnded, At(7), &moves));
  Ok(books.Detach(reader, attachment, {Outcome::kUnmapped}, &moves));
  EXPECT_THAT(Story(lease.chunks[0].chunk),
              HasSubstr("live>quarantined:keeper-ended quarantined>released:reader-detached"));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_EQ(SessionOf(reader).attachments, 0u);
}

TEST_F(SegmentsTest, ALostChunkThatTheArenaStillHasWaitsForItsClose) {
  const SessionId builder = Open();
  const Reservation lease = Grant(builder, Specs(), "w");
  ASSERT_TRUE(books.Seal(builder, lease.lease, {Outcome::kUnmapped}, {}, At(4), &moves).ok());
  Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperEnded, At(7), &moves));
  EXPECT_EQ(StateOf(lease.chunks[0].chunk), ChunkState::kQuarantined);
  EXPECT_EQ(Words(Records()[0].waiting_for), "arena-closed");
  Ok(books.DropArenaReference(lease.chunks[0].chunk, Evidence::kArenaClosed, At(7), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
}

TEST_F(SegmentsTest, ASegmentThatLostOneOfItsChunksIsLostAndItsRestIsRemovedByAnOperator) {
  const SessionId builder = Open();
  const Reservation lease = Publish(builder, "w", Specs(2));
  Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperEnded, At(7), &moves));
  EXPECT_EQ(books.Segments("")[0].state, SegmentState::kLost);
  EXPECT_EQ(Row().charged, Bytes(2 * kMiB));
  RefusedReserve(Reason::SEGMENT_EXISTS, builder, Specs(), "w");
  const auto work = Remove("w");
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->delete_at_keeper, ElementsAre(lease.chunks[1].chunk));
  Ok(books.DropKeeperReference(lease.chunks[1].chunk, Evidence::kKeeperDeleted, At(8), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
  EXPECT_THAT(books.Segments(""), IsEmpty());
}

TEST_F(SegmentsTest, ASegmentThatIsLostInTheMakingCanOnlyBeGivenBack) {
  const SessionId builder = Open();
  const Reservation lease = Grant(builder, Specs(), "w");
  const ChunkId chunk = lease.chunks[0].chunk;
  Ok(books.DropKeeperReference(chunk, Evidence::kKeeperEnded, At(7), &moves));
  EXPECT_EQ(StateOf(chunk), ChunkState::kLive);
  EXPECT_EQ(books.Segments("")[0].state, SegmentState::kLost);
  Refused(Reason::SEGMENT_LOST,
          [&](Transitions* m) { return books.Seal(builder, lease.lease, {Outcome::kUnmapped}, {}, At(8), m); });
  Refused(Reason::SEGMENT_LOST, [&](Transitions*) { return books.Attach(builder, holder, "w"); });
  Refused(Reason::SEGMENT_IN_USE, [&](Transitions* m) { return books.RemoveSegment("w", At(8), m); });
  const auto work = books.Release(builder, lease.lease, {Outcome::kUnmapped}, At(8), &moves);
  ASSERT_TRUE(work.ok());
  EXPECT_THAT(work->delete_at_keeper, IsEmpty());
  EXPECT_THAT(books.Segments(""), IsEmpty());
  Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(8), &moves));
  EXPECT_EQ(Row().charged, Bytes(0));
  Publish(builder, "w");
  EXPECT_EQ(books.Segments("")[0].name, "w@1");  // the lost one was never sealed
}

TEST_F(SegmentsTest, PrefixesFindNamesWithTheirVersions) {
  const SessionId builder = Open();
  for (const char* name : {"a", "ab/x", "ab", "b"}) Publish(builder, name);
  const auto names = [&](std::string_view prefix) {
    std::string all;
    for (const SegmentRow& row : books.Segments(prefix)) all += row.name + " ";
    return all;
  };
  EXPECT_EQ(names(""), "a@1 ab@1 ab/x@1 b@1 ");
  EXPECT_EQ(names("ab"), "ab@1 ab/x@1 ");
  EXPECT_EQ(names("ab@"), "ab@1 ");
  EXPECT_EQ(names("ab@2"), "");
  EXPECT_EQ(names("zz"), "");
}

}  // namespace
}  // namespace gpumem::core
