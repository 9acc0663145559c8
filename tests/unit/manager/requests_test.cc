// tests/unit/manager/requests_test.cc: the table of running and remembered requests.
#include "daemon/manager/requests.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/core/reasons.h"
#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager {
namespace {

using core::Reason;
using core::ReasonOf;

struct Seen {
  int times = 0;
  absl::StatusOr<int> value = absl::UnknownError("none");
  Reply<int> reply() {
    return [this](absl::StatusOr<int> answer) {
      ++times;
      value = std::move(answer);
    };
  }
};

TEST(RequestTableTest, TheSameIdAndContentJoinsWhileRunningAndIsAnsweredAgainAfterwards) {
  RequestTable table(4);
  Seen first, second, third;
  EXPECT_TRUE(table.Begin<int>(1, 10, first.reply()).run);
  const RequestTable::Admission joined = table.Begin<int>(1, 10, second.reply());
  EXPECT_FALSE(joined.run);
  EXPECT_FALSE(joined.answer);
  table.Finish<int>(1, 5);
  EXPECT_EQ(first.times, 1);
  EXPECT_EQ(second.times, 1);
  EXPECT_EQ(*second.value, 5);
  const RequestTable::Admission again = table.Begin<int>(1, 10, third.reply());
  EXPECT_FALSE(again.run);
  ASSERT_TRUE(again.answer);
  again.answer();
  EXPECT_EQ(*third.value, 5);
}

TEST(RequestTableTest, OtherContentOrAnotherKindOfAnswerIsRefused) {
  RequestTable table(4);
  Seen first, other;
  ASSERT_TRUE(table.Begin<int>(1, 10, first.reply()).run);
  table.Begin<int>(1, 11, other.reply()).answer();
  EXPECT_EQ(ReasonOf(other.value.status()), Reason::REQUEST_ID_REUSED);
  absl::Status text;
  table.Begin<std::string>(1, 10, [&text](const absl::StatusOr<std::string>& value) { text = value.status(); })
      .answer();
  EXPECT_EQ(ReasonOf(text), Reason::REQUEST_ID_REUSED);
  EXPECT_EQ(first.times, 0);
}

TEST(RequestTableTest, IdZeroIsRefused) {
  RequestTable table(4);
  Seen seen;
  table.Begin<int>(0, 10, seen.reply()).answer();
  EXPECT_EQ(ReasonOf(seen.value.status()), Reason::INVALID_ARGUMENT);
  EXPECT_EQ(table.size(), 0u);
}

TEST(RequestTableTest, AnErrorIsNotRemembered) {
  RequestTable table(4);
  Seen first, second;
  ASSERT_TRUE(table.Begin<int>(1, 10, first.reply()).run);
  table.Finish<int>(1, absl::UnavailableError("later"));
  EXPECT_EQ(first.times, 1);
  EXPECT_TRUE(table.Begin<int>(1, 10, second.reply()).run);
}

TEST(RequestTableTest, AtTheLimitTheOldestAnswerGoesAndRunningOnesStay) {
  RequestTable table(2);
  Seen a, b, c, d;
  ASSERT_TRUE(table.Begin<int>(1, 1, a.reply()).run);
  ASSERT_TRUE(table.Begin<int>(2, 2, b.reply()).run);
  table.Begin<int>(3, 3, c.reply()).answer();  // one above, and both are running
  EXPECT_EQ(ReasonOf(c.value.status()), Reason::LIMIT);
  table.Finish<int>(2, 2);
  EXPECT_TRUE(table.Begin<int>(3, 3, c.reply()).run);
  EXPECT_EQ(table.size(), 2u);
  EXPECT_FALSE(table.Begin<int>(1, 1, d.reply()).answer);  // still running: joined
  table.Finish<int>(1, 1);
  EXPECT_EQ(d.times, 1);
}

TEST(RequestTableTest, WaitersOfOneRequestAreLimited) {
  RequestTable table(4);
  std::vector<Seen> seen(RequestTable::kMaxWaiters + 1);
  for (std::size_t i = 0; i < RequestTable::kMaxWaiters; ++i) {
    EXPECT_FALSE(table.Begin<int>(1, 1, seen[i].reply()).answer);
  }
  table.Begin<int>(1, 1, seen.back().reply()).answer();
  EXPECT_EQ(ReasonOf(seen.back().value.status()), Reason::LIMIT);
}

}  // namespace

namespace testing {
namespace {

// The same request id with one field changed is another request.
TEST(RequestContentTest, EveryFieldCounts) {
  World world;
  World::Worker& worker = world.Connect();
  const SessionId session = worker.session;
  Manager& manager = world.manager();
  const auto run = [&](const auto& call) {
    call();
    world.RunUntilIdle();
  };
  const auto allocate = [&](HolderId holder, const core::ChunkSpec& spec) {
    Answer<Grant> answer;
    run([&] { manager.Allocate(session, 100, holder, {spec}, answer.reply()); });
    return answer;
  };
  ASSERT_TRUE(allocate(worker.holder, Spec(0, kGranule, 1)).ok());
  EXPECT_EQ(allocate(worker.holder, Spec(1, kGranule, 1)).reason(), Reason::REQUEST_ID_REUSED);
  EXPECT_EQ(allocate(worker.holder, Spec(0, kGranule + 1, 1)).reason(), Reason::REQUEST_ID_REUSED);
  EXPECT_EQ(allocate(worker.holder, Spec(0, kGranule, 2)).reason(), Reason::REQUEST_ID_REUSED);
  EXPECT_EQ(allocate(HolderId(9), Spec(0, kGranule, 1)).reason(), Reason::REQUEST_ID_REUSED);
  const auto build = [&](const std::string& name) {
    Answer<Grant> answer;
    run([&] { manager.BuildSegment(session, 101, worker.holder, name, {Spec(0, kGranule, 1)}, answer.reply()); });
    return answer;
  };
  const Answer<Grant> built = build("w");
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(build("v").reason(), Reason::REQUEST_ID_REUSED);
  const auto seal = [&](const core::Manifest& manifest) {
    Answer<std::string> answer;
    run([&] {
      manager.SealSegment(session, 102, built.value().lease, {core::Outcome::kUnmapped}, manifest, answer.reply());
    });
    return answer;
  };
  ASSERT_TRUE(seal({}).ok());
  EXPECT_EQ(seal({{"t", "F32", {4}, Bytes(0), Bytes(16)}}).reason(), Reason::REQUEST_ID_REUSED);
  const auto attach = [&](const std::string& name) {
    Answer<AttachResult> answer;
    run([&] { manager.AttachSegment(session, 103, worker.holder, name, answer.reply()); });
    return answer;
  };
  const Answer<AttachResult> attached = attach("w");
  ASSERT_TRUE(attached.ok());
  EXPECT_EQ(attach("w@1").reason(), Reason::REQUEST_ID_REUSED);
  const auto detach = [&](core::Outcome outcome) {
    Answer<std::monostate> answer;
    run([&] { manager.DetachSegment(session, 104, attached.value().attachment, {outcome}, answer.reply()); });
    return answer;
  };
  ASSERT_TRUE(detach(core::Outcome::kUnknown).ok());
  EXPECT_EQ(detach(core::Outcome::kUnmapped).reason(), Reason::REQUEST_ID_REUSED);
  const Grant grant = Hold(world, worker, {Spec(0, kGranule, 1)});
  const auto release = [&](core::Outcome outcome) {
    Answer<ReleaseResult> answer;
    run([&] { manager.Release(session, 105, grant.lease, {outcome}, answer.reply()); });
    return answer;
  };
  ASSERT_TRUE(release(core::Outcome::kUnknown).ok());
  EXPECT_EQ(release(core::Outcome::kUnmapped).reason(), Reason::REQUEST_ID_REUSED);
}

}  // namespace
}  // namespace testing
}  // namespace gpumem::manager
