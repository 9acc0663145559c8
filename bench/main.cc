// bench/main.cc: runs every row and prints one table of ratios.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/ratios.h"
#include "nlohmann/json.hpp"

namespace gpumem::bench {

std::vector<Row>& Rows() {
  static auto* const rows = new std::vector<Row>();
  return *rows;
}

namespace {

constexpr int kRepetitions = 5;

// Collects each repetition's time of one operation; prints nothing of its own but a dot for each.
class Collector : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      if (run.error_occurred) {
        errors_[Name(run)] = run.error_message;
        continue;
      }
      times_[Name(run)].push_back(run.real_accumulated_time / static_cast<double>(run.iterations) * 1e9);
      std::fputc('.', stderr);
    }
  }
  // Median nanoseconds of one operation; negative when it did not run.
  double Median(const std::string& name) const {
    const auto found = times_.find(name);
    if (found == times_.end() || found->second.empty()) return -1;
    std::vector<double> sorted = found->second;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  const std::map<std::string, std::string>& errors() const { return errors_; }

 private:
  static std::string Name(const Run& run) {
    return run.run_name.function_name + (run.run_name.time_type.empty() ? "" : "/" + run.run_name.time_type);
  }
  std::map<std::string, std::vector<double>> times_;
  std::map<std::string, std::string> errors_;
};

std::string Time(double ns) {
  char text[32];
  if (ns < 1e3) {
    std::snprintf(text, sizeof(text), "%.0f ns", ns);
  } else if (ns < 1e6) {
    std::snprintf(text, sizeof(text), "%.1f us", ns / 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.1f ms", ns / 1e6);
  }
  return text;
}

int Main(int argc, char** argv) {
  std::string json_path;
  std::string filter;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else if (argv[i][0] == '-') {
      std::fprintf(stderr, "bench: unknown option '%s'\nusage: ./dev bench [--json FILE] [FILTER]\n", argv[i]);
      return 2;
    } else {
      filter = argv[i];
    }
  }
  std::vector<std::string> flags = {"bench", "--benchmark_enable_random_interleaving=true",
                                    "--benchmark_repetitions=" + std::to_string(kRepetitions),
                                    "--benchmark_min_time=0.2"};
  std::string pattern;
  for (const Row& row : Rows()) {
    if (row.name.find(filter) == std::string::npos) continue;
    pattern += (pattern.empty() ? "^(" : "|") + row.ours + "|" + row.base;
  }
  if (pattern.empty()) {
    std::fprintf(stderr, "bench: no row's name has '%s' in it\n", filter.c_str());
    return 2;
  }
  flags.push_back("--benchmark_filter=" + pattern + ")$");
  std::vector<char*> arguments;
  for (std::string& flag : flags) arguments.push_back(flag.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  Collector collector;
  benchmark::RunSpecifiedBenchmarks(&collector);
  std::fputc('\n', stderr);

  nlohmann::json report = nlohmann::json::array();
  bool over = false;
  std::printf("%-52s %10s %10s %7s %8s\n", "row", "ours", "base", "ratio", "target");
  for (const Row& row : Rows()) {
    if (row.name.find(filter) == std::string::npos) continue;
    const double ours = collector.Median(row.ours);
    const double base = collector.Median(row.base);
    if (ours < 0 || base <= 0) {
      std::printf("%-52s did not run\n", row.name.c_str());
      over = true;
      continue;
    }
    const double ratio = ours / base;
    over = over || ratio > row.target;
    std::printf("%-52s %10s %10s %7.2f %7s%.1f%s\n", row.name.c_str(), Time(ours).c_str(), Time(base).c_str(), ratio,
                "<= ", row.target, ratio > row.target ? "  OVER" : "");
    report.push_back({{"row", row.name},
                      {"ours_ns", ours},
                      {"base_ns", base},
                      {"ratio", ratio},
                      {"target", row.target},
                      {"base", row.reason}});
  }
  std::printf("\nMedians of %d repetitions in random order. The bases:\n", kRepetitions);
  for (const Row& row : Rows()) {
    if (row.name.find(filter) != std::string::npos) std::printf("  %s: %s\n", row.name.c_str(), row.reason.c_str());
  }
  for (const auto& [name, error] : collector.errors()) std::printf("  %s failed: %s\n", name.c_str(), error.c_str());
  if (!json_path.empty()) {
    std::ofstream file(json_path);
    file << report.dump(2) << "\n";
    file.close();
    if (!file) {
      std::fprintf(stderr, "gpumem-bench: cannot write '%s'\n", json_path.c_str());
      return 1;
    }
  }
  return over ? 1 : 0;
}

}  // namespace
}  // namespace gpumem::bench

int main(int argc, char** argv) { return gpumem::bench::Main(argc, argv); }
