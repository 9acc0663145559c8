// cuda/sim/settings.h: what a simulated machine was told to do wrong, or slowly: faults by rule, latencies, the answers
// where the real driver's is not known, and each device's condition.
//
// They are the text file <dir>/settings, written by `simgpu` while processes run; cuda/sim/control.h says how processes
// see a change. One line for each:
//   rule id=7 process=arena device=GPU-… entry=cuMemCreate call=3..5 do=fail:CUDA_ERROR_OUT_OF_MEMORY
//   latency cuMemCreate=193us
//   answer map-size=2
//   device GPU-… state=lost life=2 persistence=off recovery-action=1 process-list-lag=200ms dead-writes=500ms
// Values only; no I/O.
#ifndef GPUMEM_CUDA_SIM_SETTINGS_H_
#define GPUMEM_CUDA_SIM_SETTINGS_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_uuid.h"

namespace simcuda {

using Duration = std::chrono::microseconds;

enum class Action : std::uint8_t {
  kFail,        // "fail:CODE": the call returns the code and does nothing
  kPoison,      // "poison:CODE": as kFail, and the code is the process's sticky error
  kLose,        // "lose": for this process the device is lost (CUDA and NVML answer so)
  kDelay,       // "delay:50ms": before the call
  kBlock,       // "block": before the call, until the rule is released or removed
  kKillBefore,  // "kill-before": the calling process gets SIGKILL before the call took effect
  kKillAfter,   // "kill-after": … after it did, before the caller learns so
};

struct Rule {
  std::uint64_t id = 0;  // never reused in one machine
  // "*"; a pid; or a word: one of the words of the process's command line, the file name of its program, or the value
  // of SIMCUDA_PROCESS in its environment.
  std::string process = "*";
  std::optional<gpumem::DeviceUuid> device;  // none: any call, also those that concern no device
  // An entry point as cuGetProcAddress names it (cuMemCreate, nvmlDeviceGetMemoryInfo), "kernel" for the execution of a
  // launched kernel, "close" for the close of an exported descriptor (cuda/sim/close_shim.cc). A "*" at the end stands
  // for any rest.
  std::string entry = "*";
  // Which of the calls that match, counted from 1 over all processes since the rule was made.
  std::uint64_t first_call = 1;
  std::uint64_t last_call = std::numeric_limits<std::uint64_t>::max();
  Action action = Action::kFail;
  int code = 0;
  Duration delay{0};

  bool MatchesEntry(std::string_view name) const;
};

enum class DeviceState : std::uint8_t { kOk, kLost, kHung };

struct DeviceSettings {
  DeviceState state = DeviceState::kOk;
  std::uint64_t life = 1;   // rises with each recovery: a process that began in an earlier one never gets it back
  bool persistence = true;  // off: when nobody has the device node open, its memory is lost
  int recovery_action = 0;  // what NVML's field 230 says: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset
  Duration process_list_lag{0};  // how long NVML goes on listing a process that is gone
  Duration dead_writes{0};       // how long a kernel in flight goes on after its process was killed
};

// In the order of cuda/sim/answers.def.
enum class Question : std::uint8_t {
#define SIMCUDA_ANSWER(identifier, name, fallback, about) identifier,
#include "cuda/sim/answers.def"
#undef SIMCUDA_ANSWER
};
struct QuestionInfo {
  Question question;
  const char* name;
  int fallback;
  const char* about;
};
const std::vector<QuestionInfo>& Questions();

struct Settings {
  std::vector<Rule> rules;                    // all that match a call apply, in this order
  std::map<std::string, Duration> latencies;  // by entry point
  std::map<std::string, int> answers;         // by question name; what is absent has its default
  std::map<gpumem::DeviceUuid, DeviceSettings> devices;

  int AnswerTo(Question question) const;
  DeviceSettings DeviceOf(const gpumem::DeviceUuid& uuid) const;
};

std::string FormatSettings(const Settings& settings);
// False with one line in `*error` that names the line and what was expected.
bool ParseSettings(std::string_view text, Settings* settings, std::string* error);

// "process=P", "device=UUID", "entry=E", "call=N", "call=N..", "call=N..M", "do=ACTION", "id=N". As ParseSettings.
bool ParseRuleField(std::string_view field, Rule* rule, std::string* error);
bool ParseDeviceField(std::string_view field, DeviceSettings* device, std::string* error);
bool ParseAnswer(std::string_view field, Settings* settings, std::string* error);
bool ParseLatency(std::string_view field, Settings* settings, std::string* error);
std::string FormatRule(const Rule& rule);

// "250us", "50ms", "2s", "0". nullopt for anything else.
std::optional<Duration> ParseDuration(std::string_view text);
std::string FormatDuration(Duration duration);

// The costs of a real driver by entry point; docs/SIMULATION.md has the sources. Empty for a name that is none.
std::map<std::string, Duration> LatencyProfile(std::string_view name);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_SETTINGS_H_
