// cuda/sim/simgpu_settings.cc: see the header.
#include "cuda/sim/simgpu_settings.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "cuda/sim/config.h"
#include "cuda/sim/control.h"
#include "cuda/sim/store.h"

namespace simcuda {
namespace {

using Words = std::vector<std::string>;

bool Fail(std::string* error, const std::string& text) {
  *error = text;
  return false;
}

// The devices that a command may name: by index, UUID, or a UUID's unique beginning.
const DeviceConfig* FindDevice(const Config& config, const std::string& text, std::string* error) {
  const std::vector<int> index = [&] {
    std::vector<int> found;
    for (std::size_t i = 0; i < config.devices.size(); ++i) {
      const std::string uuid = config.devices[i].uuid.ToString();
      if (text == std::to_string(i) || (text.size() > 4 && uuid.rfind(text, 0) == 0))
        found.push_back(static_cast<int>(i));
    }
    return found;
  }();
  if (index.size() == 1) return &config.devices[static_cast<std::size_t>(index[0])];
  *error = "'" + text + "' names " + (index.empty() ? "no device" : "several devices") + "; there are:";
  for (std::size_t i = 0; i < config.devices.size(); ++i) {
    *error += "\n  " + std::to_string(i) + "  " + config.devices[i].uuid.ToString();
  }
  return nullptr;
}

// What every command needs. `open` is false when there is no machine; `error` says so.
struct Machine {
  Config config;
  std::unique_ptr<Control> control;
};

bool OpenMachine(const std::string& dir, Machine* machine, std::string* error) {
  if (dir.empty()) return Fail(error, "give --dir DIR or set SIMCUDA_DIR: it names the simulated machine");
  if (!ReadConfig(dir, &machine->config, error)) return false;
  machine->control = Control::Open(dir, error);
  return machine->control != nullptr;
}

// Whether any call could be meant: a misspelt one would be waited for in vain.
bool IsEntry(std::string_view name) {
  static constexpr const char* kNames[] = {
#define SIMCUDA_ENTRY(base, exported, since) #base,
#define SIMCUDA_PER_THREAD_ENTRY SIMCUDA_ENTRY
#include "cuda/sim/entries.def"
#undef SIMCUDA_PER_THREAD_ENTRY
#undef SIMCUDA_ENTRY
      "kernel", "work", "close"};
  Rule rule;
  rule.entry = name;
  if (name.substr(0, 4) == "nvml") return true;
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&rule](const char* known) { return rule.MatchesEntry(known); });
}
bool UnknownEntry(std::string_view name, std::string* error) {
  return Fail(error, "'" + std::string(name) +
                         "' is no entry point: write it as cuGetProcAddress names it (cuMemCreate, without _v2), an "
                         "NVML function as it is exported, kernel, work or close");
}

bool ListRules(const Machine& machine, std::string* error) {
  Settings settings;
  if (!machine.control->Read(&settings, error)) return false;
  if (settings.rules.empty()) std::printf("no rules\n");
  for (const Rule& rule : settings.rules) {
    const RuleCounts counts = machine.control->Counts(rule);
    std::printf("%s  # matched %llu calls, acted on %llu, blocks %u now%s\n", FormatRule(rule).c_str(),
                static_cast<unsigned long long>(counts.calls), static_cast<unsigned long long>(counts.acted),
                counts.blocked_now, counts.released ? ", released" : "");
  }
  return true;
}

bool AddRule(const Machine& machine, const Words& fields, std::string* error) {
  Rule rule;
  bool acts = false;
  for (std::string field : fields) {
    if (field.rfind("device=", 0) == 0) {
      const DeviceConfig* const device = FindDevice(machine.config, field.substr(7), error);
      if (device == nullptr) return false;
      field = "device=" + device->uuid.ToString();
    }
    if (field.rfind("id=", 0) == 0) return Fail(error, "a rule's id is given by simgpu");
    if (!ParseRuleField(field, &rule, error)) return false;
    acts = acts || field.rfind("do=", 0) == 0;
  }
  if (!IsEntry(rule.entry)) return UnknownEntry(rule.entry, error);
  if (!acts)
    return Fail(error,
                "a rule needs do=ACTION: fail:CODE, poison:CODE, lose, delay:TIME, block, kill-before or "
                "kill-after");
  const bool added = machine.control->Update(
      [&](Settings* settings, std::string* why) {
        rule.id = machine.control->NewRuleId(*settings);
        if (rule.id == 0)
          return Fail(why, "there are " + std::to_string(kMostRules) + " rules, which is the limit; remove some");
        settings->rules.push_back(rule);
        return true;
      },
      error);
  if (added) std::printf("%llu\n", static_cast<unsigned long long>(rule.id));
  return added;
}

bool FindRules(const Settings& settings, const std::string& which, std::vector<Rule>* found, std::string* error) {
  for (const Rule& rule : settings.rules) {
    if (which == "all" || which == std::to_string(rule.id)) found->push_back(rule);
  }
  return which == "all" || !found->empty() || Fail(error, "there is no rule '" + which + "'; see simgpu rule ls");
}

bool RemoveRules(const Machine& machine, const std::string& which, std::string* error) {
  return machine.control->Update(
      [&which](Settings* settings, std::string* why) {
        std::vector<Rule> found;
        if (!FindRules(*settings, which, &found, why)) return false;
        for (const Rule& gone : found) {
          settings->rules.erase(std::remove_if(settings->rules.begin(), settings->rules.end(),
                                               [&gone](const Rule& rule) { return rule.id == gone.id; }),
                                settings->rules.end());
        }
        return true;
      },
      error);
}

bool ReleaseRules(const Machine& machine, const std::string& which, std::string* error) {
  Settings settings;
  std::vector<Rule> found;
  if (!machine.control->Read(&settings, error) || !FindRules(settings, which, &found, error)) return false;
  for (const Rule& rule : found) machine.control->Release(rule);
  return true;
}

// Everything of `fields` but "recover".
bool ApplyDeviceFields(const Words& fields, DeviceSettings* set, std::string* error) {
  for (const std::string& field : fields) {
    if (field == "recover") continue;
    if (field.rfind("life=", 0) == 0) return Fail(error, "a device's life rises by 'recover' alone");
    if (!ParseDeviceField(field, set, error)) return false;
  }
  return true;
}

// `simgpu device 0 state=lost`, `simgpu device 0 recover`.
bool SetDevice(const std::string& dir, const Machine& machine, const std::string& name, const Words& fields,
               std::string* error) {
  const DeviceConfig* const device = FindDevice(machine.config, name, error);
  if (device == nullptr) return false;
  DeviceSettings checked;
  if (!ApplyDeviceFields(fields, &checked, error)) return false;
  const auto update = [&](const std::function<bool(DeviceSettings*, std::string*)>& change) {
    return machine.control->Update(
        [&](Settings* settings, std::string* why) {
          DeviceSettings set = settings->DeviceOf(device->uuid);
          if (!change(&set, why)) return false;
          settings->devices[device->uuid] = set;
          return true;
        },
        error);
  };
  const bool recover = std::find(fields.begin(), fields.end(), "recover") != fields.end();
  if (recover) {
    // First nobody of the old life can do anything more; then it is emptied; then the new life begins.
    const auto store = DeviceStore::Open(dir, *device, error);
    if (store == nullptr) return false;
    const bool lost = update([](DeviceSettings* set, std::string*) {
      set->state = DeviceState::kLost;
      ++set->life;
      return true;
    });
    if (!lost) return false;
    if (store->Clear() != DeviceStore::Outcome::kOk) return Fail(error, "the device's memory could not be cleared");
  }
  return update([&](DeviceSettings* set, std::string* why) {
    if (recover) {
      set->state = DeviceState::kOk;
      set->recovery_action = 0;
    }
    return ApplyDeviceFields(fields, set, why);
  });
}

bool PostXid(const Machine& machine, const std::string& name, unsigned int code, std::string* error) {
  const DeviceConfig* const device = FindDevice(machine.config, name, error);
  if (device == nullptr) return false;
  machine.control->PostXid(device->uuid, code);
  return true;
}

bool SetLatencies(const Machine& machine, const Words& fields, std::string* error) {
  return machine.control->Update(
      [&fields](Settings* settings, std::string* why) {
        for (const std::string& field : fields) {
          if (field == "zero") {
            settings->latencies.clear();
            continue;
          }
          const std::string named = field.substr(0, field.find('='));
          if (field.find('=') != std::string::npos && !IsEntry(named)) return UnknownEntry(named, why);
          const auto profile = LatencyProfile(field);
          for (const auto& [entry, time] : profile) settings->latencies[entry] = time;
          if (profile.empty() && !ParseLatency(field, settings, why)) {
            *why += "; the profiles are a100 and zero";
            return false;
          }
        }
        return true;
      },
      error);
}

bool SetAnswers(const Machine& machine, const Words& fields, std::string* error) {
  if (fields.empty()) {
    Settings settings;
    if (!machine.control->Read(&settings, error)) return false;
    for (const QuestionInfo& info : Questions()) {
      std::printf("%-20s %4d  %s\n", info.name, settings.AnswerTo(info.question), info.about);
    }
    return true;
  }
  return machine.control->Update(
      [&fields](Settings* settings, std::string* why) {
        return std::all_of(fields.begin(), fields.end(),
                           [&](const std::string& field) { return ParseAnswer(field, settings, why); });
      },
      error);
}

bool ShowSettings(const Machine& machine, std::string* error) {
  Settings settings;
  if (!machine.control->Read(&settings, error)) return false;
  std::fputs(FormatSettings(settings).c_str(), stdout);
  return true;
}

// The text of a file (or "-") in place of all settings. Rules get new ids, so that their calls count from 1.
bool LoadSettings(const Machine& machine, const std::string& path, std::string* error) {
  std::ifstream file;
  if (path != "-") {
    std::error_code ignored;
    file.open(path);
    if (!file || std::filesystem::is_directory(path, ignored)) return Fail(error, "cannot read '" + path + "'");
  }
  std::ostringstream text;
  text << (path == "-" ? std::cin.rdbuf() : file.rdbuf());
  Settings loaded;
  if (!ParseSettings(text.str(), &loaded, error)) {
    *error = "'" + path + "' " + *error;
    return false;
  }
  if (loaded.rules.size() > kMostRules) {
    return Fail(error, "'" + path + "' has " + std::to_string(loaded.rules.size()) + " rules; the limit is " +
                           std::to_string(kMostRules));
  }
  return machine.control->Update(
      [&](Settings* settings, std::string*) {
        std::vector<Rule> rules;
        rules.swap(loaded.rules);
        for (const auto& [uuid, device] : settings->devices) {  // a life never goes back
          DeviceSettings& mine = loaded.devices[uuid];
          mine.life = std::max(mine.life, device.life);
        }
        for (Rule& rule : rules) {
          rule.id = machine.control->NewRuleId(loaded);
          loaded.rules.push_back(rule);
        }
        *settings = loaded;
        return true;
      },
      error, /*repair=*/true);
}

}  // namespace

void AddSettingsCommands(CLI::App* app, const std::string* dir, int* exit_code) {
  using Run = std::function<bool(const Machine& machine, std::string* error)>;
  const auto on = [dir, exit_code](CLI::App* command, Run run) {
    command->callback([dir, exit_code, run = std::move(run)] {
      Machine machine;
      std::string error;
      if (OpenMachine(*dir, &machine, &error) && run(machine, &error)) return;
      std::fprintf(stderr, "simgpu: %s\n", error.c_str());
      *exit_code = 1;
    });
  };
  const auto words = std::make_shared<Words>();
  const auto name = std::make_shared<std::string>();

  CLI::App* const rule = app->add_subcommand("rule", "Faults by rule");
  rule->require_subcommand(1);
  CLI::App* const add = rule->add_subcommand("add", "Add a rule and print its id");
  add->add_option("FIELD", *words, "process=, device=, entry=, call=N|N..|N..M, do=ACTION")->required();
  on(add, [words](const Machine& machine, std::string* error) { return AddRule(machine, *words, error); });
  CLI::App* const list = rule->add_subcommand("ls", "Show the rules and what they did");
  on(list, ListRules);
  CLI::App* const remove = rule->add_subcommand("rm", "Remove a rule; what it blocks goes on");
  remove->add_option("ID", *name, "A rule's id, or 'all'")->required();
  on(remove, [name](const Machine& machine, std::string* error) { return RemoveRules(machine, *name, error); });
  CLI::App* const release = rule->add_subcommand("release", "Let what a rule blocks go on, now and from now on");
  release->add_option("ID", *name, "A rule's id, or 'all'")->required();
  on(release, [name](const Machine& machine, std::string* error) { return ReleaseRules(machine, *name, error); });

  CLI::App* const device = app->add_subcommand("device", "Change a device's condition");
  device->add_option("DEVICE", *name, "Its index or UUID")->required();
  device
      ->add_option("FIELD", *words,
                   "state=ok|lost|hung, recover, persistence=on|off, recovery-action=0..5, "
                   "process-list-lag=TIME, dead-writes=TIME")
      ->required();
  on(device, [dir, name, words](const Machine& machine, std::string* error) {
    return SetDevice(*dir, machine, *name, *words, error);
  });

  const auto code = std::make_shared<unsigned int>(0);
  CLI::App* const xid = app->add_subcommand("xid", "Report an Xid through NVML");
  xid->add_option("DEVICE", *name, "Its index or UUID")->required();
  xid->add_option("CODE", *code, "The Xid")->required();
  on(xid, [name, code](const Machine& machine, std::string* error) { return PostXid(machine, *name, *code, error); });

  CLI::App* const latency = app->add_subcommand("latency", "What calls cost: a100, zero, or ENTRY=TIME…");
  latency->add_option("ENTRY=TIME", *words, "A profile or single entry points")->required();
  on(latency, [words](const Machine& machine, std::string* error) { return SetLatencies(machine, *words, error); });

  CLI::App* const answer =
      app->add_subcommand("answer", "Answers where the real driver's is not known; none: list them");
  answer->add_option("NAME=CODE", *words, "What to answer");
  on(answer, [words](const Machine& machine, std::string* error) { return SetAnswers(machine, *words, error); });

  CLI::App* const settings = app->add_subcommand("settings", "All of it as text");
  settings->require_subcommand(1);
  on(settings->add_subcommand("show", "Print it"), ShowSettings);
  CLI::App* const load = settings->add_subcommand("load", "Put a file's in place of it");
  load->add_option("FILE", *name, "As 'show' prints it; - for standard input")->required();
  on(load, [name](const Machine& machine, std::string* error) { return LoadSettings(machine, *name, error); });
}

}  // namespace simcuda
