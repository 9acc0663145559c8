#include "client/demo/report.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gpumem::demo {

void StepWatch::Add(std::uint64_t first, std::uint64_t last, std::uint64_t failed) {
  if (first > done_ + 1) missed_ += first - done_ - 1;
  if (first <= done_ || last < first) ++missed_;
  missed_ += failed;
  if (last > done_) done_ = last;
}

bool Report::Check(bool held, std::string what) {
  checks_.push_back({std::move(what), held});
  if (held) ++held_;
  return held;
}

std::string Report::ToJson() const {
  Json out = Json::object();
  out["passed"] = passed();
  for (const auto& [key, value] : facts_.items()) out[key] = value;
  Json checks = Json::array();
  for (const Made& made : checks_) {
    Json check = Json::object();
    check["what"] = made.what;
    check["held"] = made.held;
    checks.push_back(std::move(check));
  }
  out["checks"] = std::move(checks);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string Report::Write(const std::string& path) const {
  const std::string beside = path + ".new";
  const std::string text = ToJson();
  std::FILE* file = std::fopen(beside.c_str(), "we");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0) good = false;
  if (good && std::rename(beside.c_str(), path.c_str()) != 0) {
    good = false;
    error = errno;
  }
  if (good) return "";
  std::remove(beside.c_str());
  char why[128];
  return path + ": cannot be written: " + strerror_r(error, why, sizeof why);
}

}  // namespace gpumem::demo
