// bench/core_bench.cc: one grant and release in the books, with a million leases live, beside a hash map of that size.
//
// The grant is the whole way of a one-chunk private lease (reserve, created, sent, acknowledged, arena closed) and the
// release its owner's. The yardstick is one insert and one erase in an absl::flat_hash_map that holds as many entries.
// Both replace a random live one in each round, so that caches help neither. `bytes_per_lease` is what malloc says that
// the books grew by, for each live lease; above 400 the row fails.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "bench/ratios.h"
#include "daemon/core/books.h"

namespace gpumem::core {
namespace {

constexpr std::uint64_t kChunkBytes = 2 << 20;

void Require(const absl::Status& status, benchmark::State& state) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

struct Live {
  SessionId session;
  LeaseId lease;
};

// Books with one device and enough sessions for `leases` leases.
class Filled {
 public:
  Filled(std::uint64_t leases, benchmark::State& state)
      : books_(Limits{}, 1), specs_({{uuid_, Bytes(kChunkBytes), 1}}) {
    Require(books_.AddAuthority({uuid_, "bench", Bytes(std::uint64_t{1} << 60), Bytes(0), Bytes(kChunkBytes)}), state);
    Require(books_.SetDeviceState(uuid_, DeviceState::kHealthy, ""), state);
    const std::uint64_t each = books_.limits().leases_per_session / 2;
    const std::size_t before = mallinfo2().uordblks;
    for (std::uint64_t i = 0; i < leases; ++i) {
      if (i % each == 0) {
        session_ = books_.OpenSession({1, 0, 0, "bench"}, absl::UnixEpoch()).value();
        holder_ = books_.RegisterHolder(session_, "bench", Role::kKvCache).value();
        holders_.emplace_back(session_, holder_);
      }
      live_.push_back({session_, Grant(session_, holder_, state)});
    }
    bytes_ = mallinfo2().uordblks - before - live_.capacity() * sizeof(Live);
  }

  LeaseId Grant(SessionId session, HolderId holder, benchmark::State& state) {
    moves_.clear();
    auto lease = books_.Reserve(session, holder, LeaseKind::kPrivate, "", specs_, absl::UnixEpoch(), &moves_);
    if (!lease.ok()) {
      Require(lease.status(), state);
      return LeaseId();
    }
    const ChunkId chunk = lease->chunks[0].chunk;
    Require(books_.Created(chunk, &moves_), state);
    Require(books_.Sent(chunk), state);
    Require(books_.Acknowledge(session, chunk, Access::kReadWrite, &moves_), state);
    Require(books_.DropArenaReference(chunk, Evidence::kArenaClosed, absl::UnixEpoch(), &moves_), state);
    return lease->lease;
  }

  // Releases the lease at `index` and grants another in its place.
  void Replace(std::size_t index, benchmark::State& state) {
    Live& lease = live_[index];
    moves_.clear();
    Require(books_.Release(lease.session, lease.lease, unmapped_, absl::UnixEpoch(), &moves_).status(), state);
    const std::size_t owner = index / (books_.limits().leases_per_session / 2);
    lease.lease = Grant(lease.session, holders_[owner].second, state);
  }

  double bytes_per_lease() const { return static_cast<double>(bytes_) / static_cast<double>(live_.size()); }

 private:
  const DeviceUuid uuid_{DeviceUuid::Kind::kGpu, {1}};
  Books books_;
  const std::vector<ChunkSpec> specs_;
  const std::vector<Outcome> unmapped_ = {Outcome::kUnmapped};
  std::vector<std::pair<SessionId, HolderId>> holders_;
  SessionId session_;
  HolderId holder_;
  std::vector<Live> live_;
  std::size_t bytes_ = 0;
  Transitions moves_;
};

constexpr std::uint64_t kLive = 1'000'000;
constexpr double kMostBytesPerLease = 400;

// Made once: filling takes longer than what is measured.
void BM_CoreGrantRelease(benchmark::State& state) {
  static Filled* const filled = new Filled(kLive, state);
  if (filled->bytes_per_lease() > kMostBytesPerLease) {
    const std::string what = "a live lease takes " + std::to_string(filled->bytes_per_lease()) + " bytes";
    return state.SkipWithError(what.c_str());
  }
  std::mt19937_64 random(1);
  for (auto _ : state) filled->Replace(random() % kLive, state);
  state.counters["bytes_per_lease"] = filled->bytes_per_lease();
}

struct FilledMap {
  FilledMap() {
    for (std::uint64_t i = 0; i < kLive; ++i) {
      map.emplace(next, next);
      live.push_back(next++);
    }
  }
  absl::flat_hash_map<std::uint64_t, std::uint64_t> map;
  std::vector<std::uint64_t> live;
  std::uint64_t next = 1;
};

void BM_FlatHashMapInsertErase(benchmark::State& state) {
  static FilledMap* const filled = new FilledMap;
  std::mt19937_64 random(1);
  for (auto _ : state) {
    std::uint64_t& key = filled->live[random() % kLive];
    benchmark::DoNotOptimize(filled->map.erase(key));
    key = filled->next++;
    benchmark::DoNotOptimize(filled->map.emplace(key, key));
  }
}

GPUMEM_RATIO_ROW(core, "core: grant and release at 1,000,000 live leases", BM_CoreGrantRelease,
                 BM_FlatHashMapInsertErase, 15.0,
                 "one insert and one erase in an absl::flat_hash_map of the same size");

}  // namespace
}  // namespace gpumem::core
