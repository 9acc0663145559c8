// tests/unit/manager/failure_loop_test.cc: something goes wrong at the n-th port call of an operation, for every n
// until the operation makes fewer calls. After each: the books are consistent and agree with the hardware, every fd is
// closed, every call was answered once, and a retry with the same request id ends with one charge.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "daemon/text.h"
#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

using Injection = World::Injection;

const char* Word(Injection injection) {
  switch (injection) {
    case Injection::kNone:
      return "nothing";
    case Injection::kFail:
      return "the call fails";
    case Injection::kKill:
      return "the worker is killed";
    case Injection::kFault:
      return "the worker faults";
    case Injection::kSocket:
      return "the socket closes";
    case Injection::kArenaEnd:
      return "the arena ends";
    case Injection::kKeeperEnd:
      return "the keeper's connection breaks";
    case Injection::kKeeperRestart:
      return "the keeper loses everything";
  }
  return "";
}

constexpr Injection kAll[] = {Injection::kFail,     Injection::kKill,      Injection::kFault,        Injection::kSocket,
                              Injection::kArenaEnd, Injection::kKeeperEnd, Injection::kKeeperRestart};

// Everything that ended is started again, and workers that wait read what they have.
void Recover(World& world, World::Worker& worker) {
  world.StartArena(TestDevice(0));
  world.StartArena(TestDevice(1));
  world.StartKeeper();
  world.RunUntilIdle();
  if (worker.socket_open) world.ReceiveAll(worker);
  world.RunUntilIdle();
}

bool Live(const World& world, const World::Worker& worker) { return world.books().CheckLive(worker.session).ok(); }

// `operation` starts one request with a fixed id and returns how its answer is counted.
struct Scenario {
  std::string name;
  std::function<void(World&, World::Worker&)> prepare;
  std::function<std::function<int()>(World&, World::Worker&)> operation;
  // What device 0 is charged once the operation succeeded.
  std::uint64_t charged_after;
};

void Loop(const Scenario& scenario) {
  for (const Injection injection : kAll) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(Cat(scenario.name, ": ", Word(injection), " at port call ", n));
      World world;
      World::Worker& worker = world.Connect();
      if (scenario.prepare) scenario.prepare(world, worker);
      world.InjectAt(injection, n, &worker);
      const std::function<int()> first = scenario.operation(world, worker);
      world.RunUntilIdle();
      const bool injected = world.injected();
      ASSERT_EQ(first(), 1) << "answers";
      ASSERT_EQ(world.Check(), "");
      world.InjectAt(Injection::kNone, 0, nullptr);
      Recover(world, worker);
      ASSERT_EQ(world.Check(), "") << "after recovery";
      if (Live(world, worker)) {
        const std::function<int()> again = scenario.operation(world, worker);
        world.RunUntilIdle();
        ASSERT_EQ(again(), 1) << "answers of the retry";
        ASSERT_EQ(world.Check(), "") << "after the retry";
        if (injection != Injection::kFail) {
          // A failed close or delete leaves quarantine behind, on purpose; everything else charges exactly once.
          EXPECT_LE(Charged(world, 0).value(), scenario.charged_after);
        }
      }
      // In the end nothing is left but what outlives sessions.
      world.EndArena(TestDevice(0));
      world.EndArena(TestDevice(1));
      world.Kill(worker);
      world.LoseKeeper(0, /*memory_lost=*/true);
      world.StartKeeper();
      world.RunUntilIdle();
      ASSERT_EQ(world.Check(), "") << "at the end";
      EXPECT_EQ(Charged(world, 0), Bytes());
      EXPECT_EQ(Charged(world, 1), Bytes());
      EXPECT_EQ(world.books().Count().quarantine_records, 0u);
      if (!injected) break;
      ASSERT_LT(n, 200);
    }
  }
}

template <typename T>
std::function<int()> Times(const Answer<T>& answer) {
  return [answer] { return answer.times(); };
}

TEST(FailureLoopTest, PrivateGrant) {
  Loop({"grant", nullptr,
        [](World& world, World::Worker& worker) {
          Answer<Grant> answer;
          world.manager().Allocate(worker.session, 1000, worker.holder, {Spec(0, kGranule, 3), Spec(1, kGranule, 2)},
                                   answer.reply());
          return Times(answer);
        },
        3 * kGranule});
}

TEST(FailureLoopTest, GrantWithoutAWindow) {
  Loop({"grant into a full socket", [](World& world, World::Worker&) { world.socket_room = 0; },
        [](World& world, World::Worker& worker) {
          Answer<Grant> answer;
          world.manager().Allocate(worker.session, 1000, worker.holder, {Spec(0, kGranule, 2)}, answer.reply());
          return Times(answer);
        },
        2 * kGranule});
}

TEST(FailureLoopTest, Segment) {
  Loop({"build", nullptr,
        [](World& world, World::Worker& worker) {
          Answer<Grant> answer;
          world.manager().BuildSegment(worker.session, 1000, worker.holder, "w",
                                       {Spec(0, kGranule, 2), Spec(1, kGranule, 2)}, answer.reply());
          return Times(answer);
        },
        2 * kGranule});
}

TEST(FailureLoopTest, ReleaseOfAnUndeliveredLease) {
  const auto lease = std::make_shared<LeaseId>();
  Loop({"release",
        [lease](World& world, World::Worker& worker) {
          world.socket_room = 0;
          *lease = Allocate(world, worker, {Spec(0, kGranule, 2), Spec(1, kGranule, 1)}).value().lease;
        },
        [lease](World& world, World::Worker& worker) {
          Answer<ReleaseResult> answer;
          world.manager().Release(worker.session, 1000, *lease, {core::Outcome::kUnmapped}, answer.reply());
          return Times(answer);
        },
        0});
}

TEST(FailureLoopTest, ReleaseOfABuild) {
  const auto grant = std::make_shared<Grant>();
  Loop({"release of a build",
        [grant](World& world, World::Worker& worker) {
          *grant = Build(world, worker, "w", {Spec(0, kGranule, 3)}).value();
          world.ReceiveAll(worker);
          world.RunUntilIdle();
        },
        [grant](World& world, World::Worker& worker) {
          Answer<ReleaseResult> answer;
          world.DropImports(worker, Ids(*grant));
          world.manager().Release(worker.session, 1000, grant->lease, {core::Outcome::kUnmapped}, answer.reply());
          return Times(answer);
        },
        0});
}

TEST(FailureLoopTest, Seal) {
  const auto grant = std::make_shared<Grant>();
  Loop({"seal",
        [grant](World& world, World::Worker& worker) {
          *grant = Build(world, worker, "w", {Spec(0, kGranule, 3)}).value();
          world.ReceiveAll(worker);
          world.RunUntilIdle();
        },
        [grant](World& world, World::Worker& worker) {
          Answer<std::string> answer;
          world.DropImports(worker, Ids(*grant));
          world.manager().SealSegment(worker.session, 1000, grant->lease, {core::Outcome::kUnmapped}, {},
                                      answer.reply());
          return Times(answer);
        },
        3 * kGranule});
}

TEST(FailureLoopTest, RemovalOfASegment) {
  Loop({"remove", [](World& world, World::Worker& worker) { Publish(world, worker, "w", {Spec(0, kGranule, 3)}); },
        [](World& world, World::Worker&) {
          Answer<Bytes> answer;
          world.manager().RemoveSegment("w@1", answer.reply());
          return Times(answer);
        },
        3 * kGranule});
}

TEST(FailureLoopTest, FetchByAReader) {
  const auto lease = std::make_shared<LeaseId>();
  Loop({"fetch",
        [lease](World& world, World::Worker& worker) {
          Publish(world, worker, "w", {Spec(0, kGranule, 3)});
          *lease = Attach(world, worker, "w").value().segment.lease;
        },
        [lease](World& world, World::Worker& worker) -> std::function<int()> {
          const std::size_t before = worker.refusals.size();
          const std::uint64_t sequence = worker.next_sequence;
          world.manager().OnFetch(worker.session, 1000, *lease, 0, 3);
          return [&world, &worker, before, sequence] {
            // A session that is gone, or whose socket is, hears nothing.
            if (!worker.socket_open || !Live(world, worker)) return 1;
            return static_cast<int>(worker.refusals.size() - before + worker.next_sequence - sequence);
          };
        },
        3 * kGranule});
}

}  // namespace
}  // namespace gpumem::manager::testing
