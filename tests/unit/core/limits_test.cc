// tests/unit/core/limits_test.cc: every limit, at it and one above.
#include "tests/unit/core/books_fixture.h"

namespace gpumem::core {
namespace {

Limits Small() {
  Limits limits;
  limits.sessions = 3;
  limits.holders_per_session = 2;
  limits.leases_per_session = 3;
  limits.chunks_per_lease = 5;
  limits.specs_per_request = 2;
  limits.attachments_per_session = 2;
  limits.segments = 3;
  limits.tensors_per_manifest = 2;
  limits.name_bytes = 6;
  return limits;
}

class LimitsTest : public BooksTest {
 protected:
  LimitsTest() : BooksTest(Small()) {}
};

TEST_F(LimitsTest, Sessions) {
  const SessionId first = Open(1);
  Open(2);
  Open(3);
  Refused(Reason::LIMIT, [&](Transitions*) { return books.OpenSession({}, At(1)); });
  ASSERT_TRUE(books.Observe(first, Evidence::kSocketClosed, At(2), &moves).ok());
  Refused(Reason::LIMIT, [&](Transitions*) { return books.OpenSession({}, At(1)); });  // a fenced one counts
  End(first);
  Open(4);
}

TEST_F(LimitsTest, HoldersPerSession) {
  const SessionId session = Open();
  ASSERT_TRUE(books.RegisterHolder(session, "b", Role::kOther).ok());
  Refused(Reason::LIMIT, [&](Transitions*) { return books.RegisterHolder(session, "c", Role::kOther); });
  Open(2);  // another session has its own
}

TEST_F(LimitsTest, LeasesPerSession) {
  const SessionId session = Open();
  const Reservation lease = GrantAndClose(session);
  GrantAndClose(session);
  GrantAndClose(session);
  RefusedReserve(Reason::LIMIT, session, Specs());
  ASSERT_TRUE(books.Release(session, lease.lease, {Outcome::kUnmapped}, At(4), &moves).ok());
  GrantAndClose(session);
}

TEST_F(LimitsTest, ChunksPerLeaseAndSpecsPerRequest) {
  const SessionId session = Open();
  EXPECT_EQ(Reserve(session, {{kDevice, Bytes(1), 3}, {kOther, Bytes(1), 2}}).chunks.size(), 5u);
  const Refusal refusal =
      RefusedReserve(Reason::TOO_MANY_CHUNKS, session, {{kDevice, Bytes(1), 3}, {kOther, Bytes(1), 3}});
  EXPECT_EQ(refusal.details.at("asked"), "6");
  EXPECT_EQ(refusal.details.at("limit"), "5");
  RefusedReserve(Reason::TOO_MANY_CHUNKS, session, Specs(0xffffffff, 1));
  RefusedReserve(Reason::INVALID_ARGUMENT, session,
                 {{kDevice, Bytes(1), 1}, {kDevice, Bytes(1), 1}, {kDevice, Bytes(1), 1}});
}

TEST_F(LimitsTest, AttachmentsPerSession) {
  const SessionId session = Open();
  for (const char* name : {"a", "b", "c"}) Publish(session, name);
  Attach(session, "a");
  const AttachmentId attachment = Attach(session, "b").attachment;
  Refused(Reason::LIMIT, [&](Transitions*) { return books.Attach(session, holder, "c"); });
  Ok(books.Detach(session, attachment, {Outcome::kUnmapped}, &moves));
  Attach(session, "c");
}

TEST_F(LimitsTest, Segments) {
  const SessionId session = Open();
  for (const char* name : {"a", "b", "c"}) Publish(session, name);
  RefusedReserve(Reason::LIMIT, session, Specs(), "d");
  ASSERT_TRUE(books.RemoveSegment("a", At(8), &moves).ok());
  Publish(session, "d");
  // A lost one is built again in its own place.
  Ok(books.DropKeeperReference(books.LeaseChunks(books.Segments("d")[0].lease)->at(0).chunk, Evidence::kKeeperEnded,
                               At(8), &moves));
  RefusedReserve(Reason::LIMIT, session, Specs(), "e");
  Reserve(session, Specs(), "d");
}

TEST_F(LimitsTest, NamesAndTensors) {
  const SessionId session = Open();
  RefusedReserve(Reason::NAME_INVALID, session, Specs(), "abcdefg");
  Refused(Reason::NAME_INVALID, [&](Transitions*) { return books.RegisterHolder(session, "abcdefg", Role::kOther); });
  const Reservation lease = Grant(session, Specs(), "abcdef");
  Manifest manifest = {{"a", "U8", {1}, Bytes(0), Bytes(1)}, {"b", "U8", {1}, Bytes(1), Bytes(1)}};
  Manifest three = manifest;
  three.push_back({"c", "U8", {1}, Bytes(2), Bytes(1)});
  Refused(Reason::MANIFEST_INVALID,
          [&](Transitions* m) { return books.Seal(session, lease.lease, {Outcome::kUnmapped}, three, At(4), m); });
  ASSERT_TRUE(books.Seal(session, lease.lease, {Outcome::kUnmapped}, manifest, At(4), &moves).ok());
  Attach(session, "abcdef@1");
}

TEST_F(LimitsTest, RememberedVersionsAreBoundedAndStillNeverGivenTwice) {
  const SessionId session = Open();
  std::map<std::string, std::uint64_t> highest;
  for (int round = 0; round < 40; ++round) {
    const std::string path(1, static_cast<char>('a' + (round * 7) % 10));
    const Reservation lease = Publish(session, path);
    const SegmentName name = ParseSegmentName(books.Segments(path)[0].name, 200).value();
    EXPECT_GT(*name.version, highest[path]) << path;
    highest[path] = *name.version;
    ASSERT_TRUE(books.RemoveSegment(path, At(8), &moves).ok());
    Ok(books.DropKeeperReference(lease.chunks[0].chunk, Evidence::kKeeperDeleted, At(8), &moves));
  }
}

}  // namespace
}  // namespace gpumem::core
