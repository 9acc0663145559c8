// client/demo/report.h: what the demo found: checks that held or not, facts for --report, and the peer's steps. Pure
// but for Write. Not thread-safe.
#ifndef GPUMEM_CLIENT_DEMO_REPORT_H_
#define GPUMEM_CLIENT_DEMO_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpumem::demo {

// Whether a worker's work went on without a hole. A worker numbers its steps from 1 and tells of them in runs
// [first, last]; a step that its own check refused is counted in `failed`.
class StepWatch {
 public:
  // A run that does not continue the last one counts the steps between as missed; one that goes back over steps that
  // were told already counts one.
  void Add(std::uint64_t first, std::uint64_t last, std::uint64_t failed);
  std::uint64_t done() const { return done_; }      // the last step's number
  std::uint64_t missed() const { return missed_; }  // holes in the numbers, and failed steps

 private:
  std::uint64_t done_ = 0;
  std::uint64_t missed_ = 0;
};

class Report {
 public:
  using Json = nlohmann::ordered_json;

  // Records a check and returns `held`.
  bool Check(bool held, std::string what);
  // A fact for the file, kept in the order of the first Set.
  void Set(const char* key, Json value) { facts_[key] = std::move(value); }

  std::size_t held() const { return held_; }
  std::size_t checks() const { return checks_.size(); }
  // True when at least one check was made and all of them held.
  bool passed() const { return held_ == checks_.size() && held_ > 0; }

  // The facts, after "passed" and before "checks".
  std::string ToJson() const;
  // Writes ToJson() whole or not at all. "" or why not.
  std::string Write(const std::string& path) const;

 private:
  struct Made {
    std::string what;
    bool held;
  };
  std::vector<Made> checks_;
  std::size_t held_ = 0;
  Json facts_ = Json::object();
};

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_REPORT_H_
