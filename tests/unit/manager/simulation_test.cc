// tests/unit/manager/simulation_test.cc: a seeded random life of a node. Workers come, allocate, acknowledge, build,
// seal, attach, release, fault and die; arenas and the keeper crash; everything runs in random order. At every quiet
// moment the books must be consistent and agree with the hardware's own truth, and every call must have been answered.
//
// The seed is printed; GPUMEM_SIM_SEED=<n> replays it, GPUMEM_SIM_STEPS=<n> changes the length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>

#include "daemon/text.h"
#include "tests/unit/manager/scenarios.h"

namespace gpumem::manager::testing {
namespace {

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed), world_(MakeSetup()) { world_.Shuffle(&random_); }

  void Run(std::uint64_t steps) {
    for (std::uint64_t step = 0; step < steps; ++step) {
      SCOPED_TRACE(Cat("step ", step));
      Act();
      for (std::uint64_t left = Pick(12); left > 0 && world_.Step(); --left) {
      }
      if (Pick(40) == 0) {
        BeQuiet();
        if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return;
      }
    }
    EndAll();
  }

  std::uint64_t good() const { return good_; }
  std::uint64_t refused() const { return refused_; }

 private:
  struct Owned {
    LeaseId lease;
    std::vector<ChunkId> chunks;
    bool segment = false;
    bool complete = false;  // the worker has imported every chunk
  };
  struct Reading {
    AttachmentId attachment;
    LeaseId lease;
    std::vector<ChunkId> chunks;
  };
  struct Actor {
    World::Worker* worker = nullptr;
    bool dead = false;
    bool child = false;
    std::vector<Owned> leases;
    std::vector<Reading> readings;
  };

  static World::Setup MakeSetup() {
    World::Setup setup;
    setup.capacity = 256 * kMiB;
    setup.headroom = 16 * kMiB;
    setup.options.remembered_requests = 32;
    return setup;
  }

  std::uint64_t Pick(std::uint64_t below) { return random_() % below; }

  // Counts an answer that must come exactly once.
  template <typename T>
  Reply<T> Once(std::function<void(const T&)> good) {
    ++open_;
    auto times = std::make_shared<int>(0);
    return [this, times, good = std::move(good)](const absl::StatusOr<T>& answer) {
      EXPECT_EQ(++*times, 1) << "answered twice";
      --open_;
      if (answer.ok()) {
        ++good_;
        good(*answer);
      } else {
        ++refused_;
        EXPECT_NE(core::ReasonOf(answer.status()), core::Reason::INTERNAL) << answer.status();
      }
    };
  }

  Actor* AnyActor() {
    std::vector<Actor*> alive;
    for (Actor& actor : actors_) {
      if (!actor.dead) alive.push_back(&actor);
    }
    return alive.empty() ? nullptr : alive[Pick(alive.size())];
  }

  void Act() {
    const std::uint64_t action = Pick(100);
    Actor* actor = AnyActor();
    if (actor == nullptr || action < 4) return Connect();
    if (action < 30) return Allocate(*actor);
    if (action < 36) return Build(*actor);
    if (action < 60) return Receive(*actor);
    if (action < 66) return Fetch(*actor);
    if (action < 80) return ReleaseOne(*actor);
    if (action < 84) return SealOne(*actor);
    if (action < 88) return AttachOne(*actor);
    if (action < 90) return DetachOne(*actor);
    if (action < 92) return Remove();
    if (action < 95) return Die(*actor);
    if (action < 96) return Fault(*actor);
    if (action < 97) return world_.EndArena(AnyDevice());
    if (action < 98) return LoseKeeper();
    if (Pick(2) == 0) return Disturb();
    world_.StartArena(TestDevice(0));
    world_.StartArena(TestDevice(1));
    world_.StartKeeper();
  }

  // Single calls fail for a while: the driver, the keeper, a full socket.
  void Disturb() {
    Calm();
    switch (Pick(5)) {
      case 0:
        world_.create_limit = static_cast<int>(Pick(30));
        break;
      case 1:
        world_.fail_put_after = static_cast<int>(Pick(30));
        break;
      case 2:
        world_.fail_close = true;
        break;
      case 3:
        world_.fail_del = true;
        break;
      default:
        world_.socket_room = static_cast<int>(Pick(4));
    }
  }
  void Calm() {
    world_.create_limit = -1;
    world_.fail_put_after = -1;
    world_.fail_close = false;
    world_.fail_del = false;
    world_.socket_room = -1;
  }

  DeviceUuid AnyDevice() { return TestDevice(static_cast<std::uint8_t>(Pick(2))); }
  std::string AnyName() { return Cat("s", Pick(4)); }

  std::vector<core::ChunkSpec> AnySpecs() {
    std::vector<core::ChunkSpec> specs;
    for (std::uint64_t i = 1 + Pick(2); i > 0; --i) {
      specs.push_back(
          {AnyDevice(), Bytes(1 + Pick(3 * kGranule)), static_cast<std::uint32_t>(1 + Pick(Pick(10) == 0 ? 20 : 4))});
    }
    return specs;
  }

  void Connect() {
    const auto alive = std::count_if(actors_.begin(), actors_.end(), [](const Actor& actor) { return !actor.dead; });
    if (alive >= 12) return;
    World::Worker* worker = world_.ConnectSoon("sim");
    if (worker != nullptr) actors_.push_back({worker, false, false, {}, {}});
  }

  void Granted(Actor& actor, const Grant& grant, bool segment) {
    if (actor.dead) return;
    actor.leases.push_back({grant.lease, Ids(grant), segment, false});
  }

  void Allocate(Actor& actor) {
    World::Worker& worker = *actor.worker;
    const std::uint64_t id = worker.next_request++;
    const std::vector<core::ChunkSpec> specs = AnySpecs();
    world_.manager().Allocate(worker.session, id, worker.holder, specs,
                              Once<Grant>([this, &actor](const Grant& grant) { Granted(actor, grant, false); }));
    if (Pick(4) == 0) {  // a retry at once: it must not charge again
      world_.manager().Allocate(worker.session, id, worker.holder, specs, Once<Grant>([](const Grant&) {}));
    }
  }

  void Build(Actor& actor) {
    World::Worker& worker = *actor.worker;
    world_.manager().BuildSegment(worker.session, worker.next_request++, worker.holder, AnyName(), AnySpecs(),
                                  Once<Grant>([this, &actor](const Grant& grant) { Granted(actor, grant, true); }));
  }

  void Receive(Actor& actor) {
    world_.ReceiveAll(*actor.worker, Pick(2) == 0 ? core::Access::kReadOnly : core::Access::kNone);
  }

  void Fetch(Actor& actor) {
    World::Worker& worker = *actor.worker;
    if (!actor.readings.empty() && Pick(2) == 0) {
      const Reading& reading = actor.readings[Pick(actor.readings.size())];
      ++fetches_;
      world_.manager().OnFetch(worker.session, worker.next_request++, reading.lease, 0, 253);
    } else if (!actor.leases.empty()) {
      const Owned& owned = actor.leases[Pick(actor.leases.size())];
      const auto first = static_cast<std::uint32_t>(Pick(owned.chunks.size()));
      world_.manager().OnFetch(worker.session, worker.next_request++, owned.lease, first, 253);
    }
  }

  // A living owner takes what is on its way to it first, then unmaps, then releases.
  bool Settle(Actor& actor) {
    world_.RunUntilIdle();
    world_.ReceiveAll(*actor.worker);
    world_.RunUntilIdle();
    return world_.books().CheckLive(actor.worker->session).ok();
  }

  void ReleaseOne(Actor& actor) {
    if (actor.leases.empty() || !Settle(actor)) return;
    const std::size_t at = Pick(actor.leases.size());
    const Owned owned = actor.leases[at];
    actor.leases.erase(actor.leases.begin() + static_cast<std::ptrdiff_t>(at));
    const bool unknown = Pick(10) == 0;
    if (!unknown) world_.DropImports(*actor.worker, owned.chunks);
    world_.manager().Release(actor.worker->session, actor.worker->next_request++, owned.lease,
                             {unknown ? core::Outcome::kUnknown : core::Outcome::kUnmapped},
                             Once<ReleaseResult>([](const ReleaseResult&) {}));
  }

  void SealOne(Actor& actor) {
    const auto it = std::find_if(actor.leases.begin(), actor.leases.end(), [](const Owned& o) { return o.segment; });
    if (it == actor.leases.end()) return;
    const Owned owned = *it;
    if (!Settle(actor)) return;
    world_.DropImports(*actor.worker, owned.chunks);
    world_.manager().SealSegment(actor.worker->session, actor.worker->next_request++, owned.lease,
                                 {core::Outcome::kUnmapped}, {},
                                 Once<std::string>([&actor, lease = owned.lease](const std::string&) {
                                   std::erase_if(actor.leases, [lease](const Owned& o) { return o.lease == lease; });
                                 }));
    world_.RunUntilIdle();
    // Refused: its memory was lost with the keeper. It let go of its imports, so all that it can say is "unmapped".
    if (std::any_of(actor.leases.begin(), actor.leases.end(),
                    [&owned](const Owned& o) { return o.lease == owned.lease; })) {
      std::erase_if(actor.leases, [&owned](const Owned& o) { return o.lease == owned.lease; });
      world_.manager().Release(actor.worker->session, actor.worker->next_request++, owned.lease,
                               {core::Outcome::kUnmapped}, Once<ReleaseResult>([](const ReleaseResult&) {}));
    }
  }

  void AttachOne(Actor& actor) {
    world_.manager().AttachSegment(actor.worker->session, actor.worker->next_request++, actor.worker->holder, AnyName(),
                                   Once<AttachResult>([&actor](const AttachResult& attached) {
                                     if (actor.dead) return;
                                     Reading reading{attached.attachment, attached.segment.lease, {}};
                                     for (const core::ChunkView& view : attached.chunks)
                                       reading.chunks.push_back(view.chunk);
                                     actor.readings.push_back(std::move(reading));
                                   }));
  }

  void DetachOne(Actor& actor) {
    if (actor.readings.empty() || !Settle(actor)) return;
    const Reading reading = actor.readings.back();
    actor.readings.pop_back();
    world_.DropImports(*actor.worker, reading.chunks);
    world_.manager().DetachSegment(actor.worker->session, actor.worker->next_request++, reading.attachment,
                                   {core::Outcome::kUnmapped}, Once<std::monostate>([](const std::monostate&) {}));
  }

  void Remove() {
    world_.manager().RemoveSegment(Cat(AnyName(), "@", 1 + Pick(4)), Once<Bytes>([](const Bytes&) {}));
  }

  void Die(Actor& actor) {
    actor.dead = true;
    actor.child = Pick(3) == 0;
    world_.Kill(*actor.worker, actor.child);
  }

  void Fault(Actor& actor) {
    world_.manager().ReportFault(actor.worker->session, actor.worker->next_request++,
                                 {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "", ""}, Once<Bytes>([](const Bytes&) {}));
  }

  void LoseKeeper() { world_.LoseKeeper(Pick(4), /*memory_lost=*/Pick(3) == 0); }

  void BeQuiet() {
    world_.RunUntilIdle();
    ASSERT_EQ(world_.Check(), "");
    ASSERT_EQ(open_, 0) << "calls without an answer";
    Calm();
    for (Actor& actor : actors_) {
      if (actor.child && Pick(2) == 0) {
        actor.child = false;
        world_.EndChild(*actor.worker);
      }
    }
    world_.RunUntilIdle();
    ASSERT_EQ(world_.Check(), "");
    for (const auto& [level, line] : world_.lines) {
      ASSERT_NE(level, Log::Level::kError) << line;
    }
    world_.lines.clear();
    world_.events.clear();
    world_.calls.clear();
  }

  void EndAll() {
    Calm();
    for (Actor& actor : actors_) {
      if (!actor.dead) Die(actor);
      world_.EndChild(*actor.worker);
    }
    world_.RunUntilIdle();
    // What they could not close goes with them.
    world_.EndArena(TestDevice(0));
    world_.EndArena(TestDevice(1));
    world_.StartArena(TestDevice(0));
    world_.StartArena(TestDevice(1));
    world_.StartKeeper();
    BeQuiet();
    // What is left is published, and goes with the keeper.
    world_.LoseKeeper(0, /*memory_lost=*/true);
    world_.StartKeeper();
    BeQuiet();
    for (const core::DeviceRow& row : world_.books().Devices()) {
      EXPECT_EQ(row.charged, Bytes());
      EXPECT_EQ(row.quarantined, Bytes());
      EXPECT_EQ(world_.physical(row.device), 0u);
    }
    EXPECT_EQ(world_.books().Count().sessions_live + world_.books().Count().sessions_fenced, 0u);
  }

  std::mt19937_64 random_;
  World world_;
  std::deque<Actor> actors_;
  int open_ = 0;
  std::uint64_t good_ = 0;
  std::uint64_t refused_ = 0;
  std::uint64_t fetches_ = 0;
};

std::uint64_t FromEnv(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SimulationTest, BooksAgreeWithTheHardwareWhateverHappens) {
  const std::uint64_t steps = FromEnv("GPUMEM_SIM_STEPS", 20000);
  const std::uint64_t first = FromEnv("GPUMEM_SIM_SEED", std::random_device()());
  std::printf("GPUMEM_SIM_SEED=%llu\n", static_cast<unsigned long long>(first));
  SCOPED_TRACE(Cat("replay with GPUMEM_SIM_SEED=", first));
  Simulation simulation(first);
  simulation.Run(steps);
  std::printf("%llu calls succeeded, %llu were refused\n", static_cast<unsigned long long>(simulation.good()),
              static_cast<unsigned long long>(simulation.refused()));
  if (steps >= 20000) {
    EXPECT_GT(simulation.good(), 100u) << "the simulation did nothing of use";
  }
}

}  // namespace
}  // namespace gpumem::manager::testing
