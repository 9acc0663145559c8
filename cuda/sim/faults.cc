// cuda/sim/faults.cc: see the header.
#include "cuda/sim/faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "cuda/sim/breaks.h"
#include "cuda/sim/control.h"

namespace simcuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A blocked call looks again this often even when nothing wakes it.
constexpr milliseconds kLookAgain{200};

struct Cached {
  gpumem::Mutex mu;
  std::shared_ptr<const Settings> settings GPUMEM_GUARDED_BY(mu) = std::make_shared<const Settings>();
  std::uint32_t generation GPUMEM_GUARDED_BY(mu) = 0;
  bool read GPUMEM_GUARDED_BY(mu) = false;
  std::uint32_t complained GPUMEM_GUARDED_BY(mu) = 0;  // of which generation's text, plus one
  // For the quick way: the generation that has nothing set, plus one; 0 when something is, or nothing was read yet.
  std::atomic<std::uint64_t> idle{0};
};
Cached& Cache() {
  static auto* const cached = new Cached;
  return *cached;
}

bool IsEmpty(const Settings& settings) {
  return settings.rules.empty() && settings.latencies.empty() && settings.answers.empty() && settings.devices.empty();
}

std::shared_ptr<const Settings> Load(Control& control) {
  Cached& cached = Cache();
  const gpumem::MutexLock lock(&cached.mu);
  const std::uint32_t generation = control.generation();
  if (cached.read && generation == cached.generation) return cached.settings;
  auto settings = std::make_shared<Settings>();
  std::string error;
  if (!control.Read(settings.get(), &error)) {
    // A text that was edited by hand and is wrong, or a process without a descriptor, must not switch the faults off.
    // The next call tries again.
    if (cached.complained != generation + 1) {
      std::fprintf(stderr, "simcuda: %s; the settings before it still hold\n", error.c_str());
    }
    cached.complained = generation + 1;
    return cached.settings;
  }
  cached.read = true;
  cached.idle.store(IsEmpty(*settings) ? std::uint64_t{generation} + 1 : 0, std::memory_order_release);
  cached.generation = generation;
  cached.settings = std::move(settings);
  return cached.settings;
}

bool NothingSet(const Control& control) {
  return Cache().idle.load(std::memory_order_acquire) == std::uint64_t{control.generation()} + 1;
}

// What a rule's `process` may say to mean this one. The pid is asked each time: a forked child has another.
const std::set<std::string>& NamesOfThisProcess() {
  static const std::set<std::string>* const names = [] {
    auto* const all = new std::set<std::string>;
    std::ifstream file("/proc/self/cmdline");
    for (std::string word; std::getline(file, word, '\0');) all->insert(word);
    char program[4096];
    const ssize_t length = ::readlink("/proc/self/exe", program, sizeof program);
    if (length > 0) {
      const std::string path(program, static_cast<std::size_t>(length));
      all->insert(path.substr(path.rfind('/') + 1));
    }
    if (const char* const given = std::getenv("SIMCUDA_PROCESS")) all->insert(given);
    return all;
  }();
  return *names;
}

bool MatchesThisProcess(const Rule& rule) {
  return rule.process == "*" || SIMCUDA_BREAK("rule-process-ignored") || rule.process == std::to_string(::getpid()) ||
         NamesOfThisProcess().count(rule.process) > 0;
}

// A sleep is late by some 50 µs: a short time is spent by waiting for the clock.
void Spend(Duration time) {
  const auto until = steady_clock::now() + time;
  if (time > milliseconds(1)) {
    std::this_thread::sleep_until(until);
    return;
  }
  while (steady_clock::now() < until) {
  }
}

// Until the rule is released, or is there no more.
void Block(Control& control, const Rule& rule) {
  control.CountBlocked(rule, true);
  while (true) {
    const std::uint32_t seen = control.generation();
    if (control.Counts(rule).released) break;
    const auto settings = Load(control);
    bool there = false;
    for (const Rule& now : settings->rules) there = there || now.id == rule.id;
    if (!there) break;
    control.WaitForChange(seen, kLookAgain);
  }
  control.CountBlocked(rule, false);
}

DeviceState StateOnceNotHung(Control& control, const gpumem::DeviceUuid& device) {
  while (true) {
    const std::uint32_t seen = control.generation();
    const DeviceState state = Load(control)->DeviceOf(device).state;
    if (state != DeviceState::kHung || SIMCUDA_BREAK("hung-works")) return state;
    control.WaitForChange(seen, kLookAgain);
  }
}

// False: the call ends here with `*verdict`.
bool Apply(Control& control, const Rule& rule, Verdict* verdict) {
  const std::uint64_t call = control.CountCall(rule);
  if ((call < rule.first_call || call > rule.last_call) && !SIMCUDA_BREAK("rule-call-ignored")) return true;
  if (rule.action == Action::kBlock && control.Counts(rule).released) return true;
  control.CountAction(rule);
  switch (rule.action) {
    case Action::kFail:
    case Action::kPoison:
      if (SIMCUDA_BREAK("fail-passes")) return true;
      verdict->kind = rule.action == Action::kFail ? Verdict::Kind::kFail : Verdict::Kind::kPoison;
      verdict->code = rule.code;
      return false;
    case Action::kLose:
      if (SIMCUDA_BREAK("lose-passes")) return true;
      verdict->kind = Verdict::Kind::kLost;
      return false;
    case Action::kDelay:
      if (!SIMCUDA_BREAK("delay-passes")) Spend(rule.delay);
      return true;
    case Action::kBlock:
      if (!SIMCUDA_BREAK("block-passes")) Block(control, rule);
      return true;
    case Action::kKillBefore:
      if (SIMCUDA_BREAK("kill-before-passes")) return true;
      KillThisProcess();
      return false;
    case Action::kKillAfter:
      if (SIMCUDA_BREAK("kill-after-is-before")) KillThisProcess();
      verdict->kill_after = true;
      return true;
  }
  return true;
}

}  // namespace

bool NothingIsSet() {
  const Control* const control = Control::OfProcess();
  return control == nullptr || NothingSet(*control);
}

Verdict PassFaultPoint(std::string_view entry, const gpumem::DeviceUuid* device) {
  Verdict verdict;
  Control* const control = Control::OfProcess();
  if (control == nullptr || NothingSet(*control)) return verdict;
  const std::shared_ptr<const Settings> settings = Load(*control);
  if (const auto latency = settings->latencies.find(std::string(entry)); latency != settings->latencies.end()) {
    if (!SIMCUDA_BREAK("latency-passes")) Spend(latency->second);
  }
  for (const Rule& rule : settings->rules) {
    if (!rule.MatchesEntry(entry) && !SIMCUDA_BREAK("rule-entry-ignored")) continue;
    if (!MatchesThisProcess(rule)) continue;
    const bool other_device = rule.device && (device == nullptr || *rule.device != *device);
    if (other_device && !SIMCUDA_BREAK("rule-device-ignored")) continue;
    if (!Apply(*control, rule, &verdict)) return verdict;
  }
  if (device != nullptr && StateOnceNotHung(*control, *device) == DeviceState::kLost && !SIMCUDA_BREAK("lost-works")) {
    verdict.kind = Verdict::Kind::kLost;
  }
  return verdict;
}

void KillThisProcess() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

std::shared_ptr<const Settings> CurrentSettings() {
  static const auto* const nothing = new std::shared_ptr<const Settings>(std::make_shared<const Settings>());
  Control* const control = Control::OfProcess();
  return control == nullptr || NothingSet(*control) ? *nothing : Load(*control);
}

int AnswerTo(Question question) {
  Control* const control = Control::OfProcess();
  if (control == nullptr || NothingSet(*control)) return Questions()[static_cast<std::size_t>(question)].fallback;
  if (SIMCUDA_BREAK("answers-ignored")) return Questions()[static_cast<std::size_t>(question)].fallback;
  return Load(*control)->AnswerTo(question);
}

}  // namespace simcuda
