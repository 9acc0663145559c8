// bench/ratios.h: rows of the table that ./dev bench prints.
//
// A row is a ratio of two google-benchmark timings taken in turn in one run: ours, and a bare base that does the least
// that any implementation must. Absolute times on shared machines say little; ratios of one run hold. A row over its
// target makes the run exit 1.
#ifndef GPUMEM_BENCH_RATIOS_H_
#define GPUMEM_BENCH_RATIOS_H_

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

namespace gpumem::bench {

struct Row {
  std::string name;  // as the table shows it
  std::string ours;  // names of registered benchmarks
  std::string base;
  double target = 0;   // the ratio must not be above
  std::string reason;  // what the base is, for the table's foot
};

// All rows of this program, in order of registration.
std::vector<Row>& Rows();

struct RowRegistrar {
  explicit RowRegistrar(Row row) { Rows().push_back(std::move(row)); }
};

}  // namespace gpumem::bench

// At namespace scope: registers `ours` and `base` (functions taking benchmark::State&) and their row.
#define GPUMEM_RATIO_ROW(id, name, ours, base, target, reason) \
  BENCHMARK(ours);                                             \
  BENCHMARK(base);                                             \
  const ::gpumem::bench::RowRegistrar id##_row({name, #ours, #base, target, reason})

// The same for functions that call SetIterationTime, because they must clean up between iterations.
#define GPUMEM_RATIO_ROW_MANUAL(id, name, ours, base, target, reason) \
  BENCHMARK(ours)->UseManualTime();                                   \
  BENCHMARK(base)->UseManualTime();                                   \
  const ::gpumem::bench::RowRegistrar id##_row({name, #ours "/manual_time", #base "/manual_time", target, reason})

#endif  // GPUMEM_BENCH_RATIOS_H_
