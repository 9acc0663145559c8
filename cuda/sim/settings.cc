// cuda/sim/settings.cc: see the header.
#include "cuda/sim/settings.h"

#include <iterator>
#include <utility>

#include "cuda/nvml_decls.h"
#include "cuda/sim/numbers.h"
#include "cuda/sim/sim_api.h"

namespace simcuda {
namespace {

struct NamedCode {
  const char* name;
  int code;
};
// The errors that a rule may name; any other by its number.
constexpr NamedCode kCodes[] = {
#define SIMCUDA_ERROR(name, words) {#name, name},
#include "cuda/sim/errors.def"
#undef SIMCUDA_ERROR
    {"NVML_ERROR_GPU_IS_LOST", NVML_ERROR_GPU_IS_LOST},
    {"NVML_ERROR_UNKNOWN", NVML_ERROR_UNKNOWN},
};

std::optional<int> ParseCode(std::string_view text) {
  for (const NamedCode& named : kCodes) {
    if (text == named.name) return named.code;
  }
  return ParseNumber<int>(text);
}

// "key=value": both not empty.
bool Split(std::string_view field, std::string_view* key, std::string_view* value) {
  const std::size_t equals = field.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == field.size()) return false;
  // The text has words: a space in one would make two of it.
  if (field.find_first_of(" \t\r\n") != std::string_view::npos) return false;
  *key = field.substr(0, equals);
  *value = field.substr(equals + 1);
  return true;
}

bool Fail(std::string* error, std::string text) {
  *error = std::move(text);
  return false;
}

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

bool ParseAction(std::string_view text, Rule* rule, std::string* error) {
  static constexpr struct {
    std::string_view name;
    Action action;
  } kPlain[] = {{"lose", Action::kLose},
                {"block", Action::kBlock},
                {"kill-before", Action::kKillBefore},
                {"kill-after", Action::kKillAfter}};
  for (const auto& plain : kPlain) {
    if (text != plain.name) continue;
    rule->action = plain.action;
    return true;
  }
  const std::size_t colon = text.find(':');
  const std::string_view verb = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon + 1);
  if (verb == "fail" || verb == "poison") {
    const auto code = ParseCode(rest);
    if (!code || *code == 0) {
      return Fail(error, "do=" + std::string(text) + ": " + Quoted(rest) + " is no error's name or number");
    }
    rule->action = verb == "fail" ? Action::kFail : Action::kPoison;
    rule->code = *code;
    return true;
  }
  if (verb == "delay") {
    const auto delay = ParseDuration(rest);
    if (!delay) return Fail(error, "do=" + std::string(text) + ": write a time like 250us, 50ms or 2s");
    rule->action = Action::kDelay;
    rule->delay = *delay;
    return true;
  }
  return Fail(error, "do=" + std::string(text) +
                         " is no action; there are fail:CODE, poison:CODE, lose, delay:TIME, block, kill-before and "
                         "kill-after");
}

std::string FormatAction(const Rule& rule) {
  switch (rule.action) {
    case Action::kFail:
      return "fail:" + std::to_string(rule.code);
    case Action::kPoison:
      return "poison:" + std::to_string(rule.code);
    case Action::kLose:
      return "lose";
    case Action::kDelay:
      return "delay:" + FormatDuration(rule.delay);
    case Action::kBlock:
      return "block";
    case Action::kKillBefore:
      return "kill-before";
    case Action::kKillAfter:
      return "kill-after";
  }
  return "";
}

bool ParseCalls(std::string_view text, Rule* rule) {
  const std::size_t dots = text.find("..");
  const auto first = ParseNumber<std::uint64_t>(text.substr(0, dots));
  if (!first || *first == 0) return false;
  rule->first_call = *first;
  rule->last_call = *first;
  if (dots == std::string_view::npos) return true;
  rule->last_call = std::numeric_limits<std::uint64_t>::max();
  const std::string_view rest = text.substr(dots + 2);
  if (rest.empty()) return true;
  const auto last = ParseNumber<std::uint64_t>(rest);
  if (!last || *last < *first) return false;
  rule->last_call = *last;
  return true;
}

const char* NameOf(DeviceState state) {
  switch (state) {
    case DeviceState::kOk:
      return "ok";
    case DeviceState::kLost:
      return "lost";
    case DeviceState::kHung:
      return "hung";
  }
  return "";
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t length = std::min(line.find_first_of(" \t\r"), line.size());
    words.push_back(line.substr(0, length));
    line.remove_prefix(length);
  }
}

bool ParseLine(std::string_view line, Settings* settings, std::string* error) {
  const std::vector<std::string_view> words = Words(line);
  if (words.empty() || words[0][0] == '#') return true;
  const auto fields = words.begin() + 1;
  if (words[0] == "rule") {
    Rule rule;
    bool has_action = false;
    for (auto field = fields; field != words.end(); ++field) {
      if (!ParseRuleField(*field, &rule, error)) return false;
      has_action = has_action || field->substr(0, 3) == "do=";
    }
    if (!has_action) return Fail(error, "a rule needs do=ACTION");
    settings->rules.push_back(std::move(rule));
    return true;
  }
  if (words[0] == "device") {
    const auto uuid = words.size() > 1 ? gpumem::DeviceUuid::Parse(words[1]) : std::nullopt;
    if (!uuid) return Fail(error, "expected 'device UUID FIELD=VALUE…'");
    DeviceSettings device;
    for (auto field = fields + 1; field != words.end(); ++field) {
      if (!ParseDeviceField(*field, &device, error)) return false;
    }
    settings->devices[*uuid] = device;
    return true;
  }
  if (words[0] == "latency" || words[0] == "answer") {
    for (auto field = fields; field != words.end(); ++field) {
      const bool ok =
          words[0] == "answer" ? ParseAnswer(*field, settings, error) : ParseLatency(*field, settings, error);
      if (!ok) return false;
    }
    return true;
  }
  return Fail(error, Quoted(words[0]) + " is no setting; there are rule, latency, answer and device");
}

}  // namespace

bool Rule::MatchesEntry(std::string_view name) const {
  if (!entry.empty() && entry.back() == '*')
    return name.substr(0, entry.size() - 1) == entry.substr(0, entry.size() - 1);
  return name == entry;
}

const std::vector<QuestionInfo>& Questions() {
  static const std::vector<QuestionInfo>* const all = new std::vector<QuestionInfo>{
#define SIMCUDA_ANSWER(identifier, name, fallback, about) {Question::identifier, name, fallback, about},
#include "cuda/sim/answers.def"
#undef SIMCUDA_ANSWER
  };
  return *all;
}

int Settings::AnswerTo(Question question) const {
  const QuestionInfo& info = Questions()[static_cast<std::size_t>(question)];
  const auto found = answers.find(info.name);
  return found != answers.end() ? found->second : info.fallback;
}

DeviceSettings Settings::DeviceOf(const gpumem::DeviceUuid& uuid) const {
  const auto found = devices.find(uuid);
  return found != devices.end() ? found->second : DeviceSettings();
}

bool ParseRuleField(std::string_view field, Rule* rule, std::string* error) {
  std::string_view key;
  std::string_view value;
  if (!Split(field, &key, &value)) return Fail(error, Quoted(field) + " is not KEY=VALUE without spaces");
  if (key == "process") {
    rule->process = value;
    return true;
  }
  if (key == "entry") {
    rule->entry = value;
    return true;
  }
  if (key == "device") {
    rule->device = gpumem::DeviceUuid::Parse(value);
    return rule->device.has_value() || Fail(error, "device=" + std::string(value) + " is no UUID");
  }
  if (key == "call") {
    return ParseCalls(value, rule) ||
           Fail(error, "call=" + std::string(value) + ": write N, N.. or N..M; the first call is 1");
  }
  if (key == "do") return ParseAction(value, rule, error);
  if (key == "id") {
    const auto id = ParseNumber<std::uint64_t>(value);
    if (!id) return Fail(error, "id=" + std::string(value) + " is no number");
    rule->id = *id;
    return true;
  }
  return Fail(error, "a rule has no " + Quoted(key) + "; there are process, device, entry, call and do");
}

bool ParseDeviceField(std::string_view field, DeviceSettings* device, std::string* error) {
  std::string_view key;
  std::string_view value;
  if (!Split(field, &key, &value)) return Fail(error, Quoted(field) + " is not KEY=VALUE without spaces");
  if (key == "state") {
    for (const DeviceState state : {DeviceState::kOk, DeviceState::kLost, DeviceState::kHung}) {
      if (value != NameOf(state)) continue;
      device->state = state;
      return true;
    }
    return Fail(error, "state=" + std::string(value) + ": there are ok, lost and hung");
  }
  if (key == "persistence") {
    device->persistence = value == "on";
    return value == "on" || value == "off" || Fail(error, "persistence=" + std::string(value) + ": write on or off");
  }
  if (key == "life" || key == "recovery-action") {
    const auto number = ParseNumber<std::uint64_t>(value);
    if (!number || (key == "recovery-action" && *number > 5)) {
      return Fail(error, std::string(field) + ": expected a number" + (key == "life" ? "" : " from 0 to 5"));
    }
    key == "life" ? (void)(device->life = *number) : (void)(device->recovery_action = static_cast<int>(*number));
    return true;
  }
  if (key == "process-list-lag" || key == "dead-writes") {
    const auto time = ParseDuration(value);
    if (!time) return Fail(error, std::string(field) + ": write a time like 250us, 50ms or 2s");
    (key == "dead-writes" ? device->dead_writes : device->process_list_lag) = *time;
    return true;
  }
  return Fail(error, "a device has no " + Quoted(key) +
                         "; there are state, persistence, recovery-action, process-list-lag and dead-writes");
}

bool ParseAnswer(std::string_view field, Settings* settings, std::string* error) {
  std::string_view key;
  std::string_view value;
  if (!Split(field, &key, &value)) return Fail(error, Quoted(field) + " is not NAME=CODE without spaces");
  for (const QuestionInfo& info : Questions()) {
    if (key != info.name) continue;
    const auto code = ParseCode(value);
    if (!code) return Fail(error, std::string(field) + ": " + Quoted(value) + " is no error's name or number");
    // That a refusal is a success is an answer only where the call could go on with it.
    const bool may_succeed = info.fallback <= 0 || info.question == Question::kAccessCountZero;
    if (*code < info.fallback && *code <= 0 && !may_succeed) {
      return Fail(error, std::string(field) + ": the call is refused in any case; answer an error");
    }
    settings->answers[info.name] = *code;
    return true;
  }
  return Fail(error, Quoted(key) + " is no question; 'simgpu answer' lists them");
}

bool ParseLatency(std::string_view field, Settings* settings, std::string* error) {
  std::string_view key;
  std::string_view value;
  const auto time = Split(field, &key, &value) ? ParseDuration(value) : std::nullopt;
  if (!time) return Fail(error, Quoted(field) + " is not ENTRY=TIME without spaces, like cuMemCreate=193us");
  if (*time == Duration::zero()) {
    settings->latencies.erase(std::string(key));
  } else {
    settings->latencies[std::string(key)] = *time;
  }
  return true;
}

std::string FormatRule(const Rule& rule) {
  std::string text = "rule id=" + std::to_string(rule.id) + " process=" + rule.process;
  if (rule.device) text += " device=" + rule.device->ToString();
  text += " entry=" + rule.entry + " call=" + std::to_string(rule.first_call);
  if (rule.last_call == std::numeric_limits<std::uint64_t>::max()) {
    text += "..";
  } else if (rule.last_call != rule.first_call) {
    text += ".." + std::to_string(rule.last_call);
  }
  return text + " do=" + FormatAction(rule);
}

std::string FormatSettings(const Settings& settings) {
  std::string text;
  for (const Rule& rule : settings.rules) text += FormatRule(rule) + "\n";
  for (const auto& [entry, time] : settings.latencies) text += "latency " + entry + "=" + FormatDuration(time) + "\n";
  for (const auto& [name, code] : settings.answers) text += "answer " + name + "=" + std::to_string(code) + "\n";
  for (const auto& [uuid, device] : settings.devices) {
    text += "device " + uuid.ToString() + " state=" + NameOf(device.state) + " life=" + std::to_string(device.life) +
            " persistence=" + (device.persistence ? "on" : "off") +
            " recovery-action=" + std::to_string(device.recovery_action) +
            " process-list-lag=" + FormatDuration(device.process_list_lag) +
            " dead-writes=" + FormatDuration(device.dead_writes) + "\n";
  }
  return text;
}

bool ParseSettings(std::string_view text, Settings* settings, std::string* error) {
  Settings parsed;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string why;
    if (!ParseLine(text.substr(0, end), &parsed, &why)) {
      return Fail(error, "line " + std::to_string(number) + ": " + why);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  *settings = std::move(parsed);
  return true;
}

std::optional<Duration> ParseDuration(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const auto number = ParseNumber<std::uint64_t>(text.substr(0, digits));
  constexpr std::uint64_t kLongest = 1000000;  // in any unit: far from an overflow
  if (!number || *number > kLongest) return std::nullopt;
  const std::string_view unit = text.substr(digits);
  if (unit == "us") return Duration(*number);
  if (unit == "ms") return std::chrono::milliseconds(*number);
  if (unit == "s") return std::chrono::seconds(*number);
  if (unit.empty() && *number == 0) return Duration::zero();
  return std::nullopt;
}

std::string FormatDuration(Duration duration) {
  const auto us = duration.count();
  if (us == 0) return "0";
  if (us % 1000000 == 0) return std::to_string(us / 1000000) + "s";
  if (us % 1000 == 0) return std::to_string(us / 1000) + "ms";
  return std::to_string(us) + "us";
}

std::map<std::string, Duration> LatencyProfile(std::string_view name) {
  if (name != "a100") return {};
  return {{"cuMemAddressReserve", Duration(19)}, {"cuMemCreate", Duration(193)}, {"cuMemMap", Duration(2)},
          {"cuMemSetAccess", Duration(36)},      {"cuMemUnmap", Duration(26)},   {"cuMemRelease", Duration(23)},
          {"cuMemAddressFree", Duration(1)}};
}

}  // namespace simcuda
