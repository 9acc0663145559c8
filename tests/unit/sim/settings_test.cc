// cuda/sim/settings.h and control.h: what a machine was told, as text and shared between processes.
#include "cuda/sim/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "cuda/sim/control.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using simcuda::Action;
using simcuda::Control;
using simcuda::DeviceState;
using simcuda::ParseSettings;
using simcuda::Question;
using simcuda::Rule;
using simcuda::Settings;
using testing::HasSubstr;

constexpr char kText[] =
    "rule id=7 process=arena device=GPU-00112233-4455-6677-8899-aabbccddeeff entry=cuMemCreate call=3..5 do=fail:2\n"
    "rule id=8 process=* entry=cuMem* call=2.. do=delay:50ms\n"
    "rule id=9 process=123 entry=kernel call=1 do=kill-after\n"
    "latency cuMemCreate=193us\n"
    "answer map-size=999\n"
    "device GPU-00112233-4455-6677-8899-aabbccddeeff state=hung life=4 persistence=off recovery-action=1 "
    "process-list-lag=2s dead-writes=500us\n";

TEST(SimSettings, AreTheSameAfterTheyWereWrittenAndRead) {
  Settings settings;
  std::string error;
  ASSERT_TRUE(ParseSettings(kText, &settings, &error)) << error;
  EXPECT_EQ(FormatSettings(settings), kText);
  ASSERT_EQ(settings.rules.size(), 3u);
  EXPECT_EQ(settings.rules[0].first_call, 3u);
  EXPECT_EQ(settings.rules[0].last_call, 5u);
  EXPECT_EQ(settings.rules[1].delay, std::chrono::milliseconds(50));
  EXPECT_EQ(settings.rules[2].action, Action::kKillAfter);
  EXPECT_EQ(settings.AnswerTo(Question::kMapSize), 999);
  EXPECT_EQ(settings.AnswerTo(Question::kHiddenDevice), 101);
  const auto uuid = *gpumem::DeviceUuid::Parse("GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ(settings.DeviceOf(uuid).state, DeviceState::kHung);
  EXPECT_EQ(settings.DeviceOf(uuid).life, 4u);
  EXPECT_FALSE(settings.DeviceOf(uuid).persistence);
}

TEST(SimSettings, SayWhichLineIsWrongAndWhatIsExpected) {
  const struct {
    const char* text;
    const char* says;
  } kCases[] = {
      {"\n# a comment\nrul do=block", "line 3: 'rul' is no setting"},
      {"rule entry=cuMemMap", "line 1: a rule needs do=ACTION"},
      {"rule do=explode", "do=explode is no action; there are fail:CODE"},
      {"rule do=fail:CUDA_ERROR_NONSENSE", "'CUDA_ERROR_NONSENSE' is no error's name or number"},
      {"rule do=fail:0", "is no error's name"},
      {"rule do=delay:5", "write a time like 250us"},
      {"rule do=delay:99999999s", "write a time like 250us"},
      {"rule call=0 do=block", "the first call is 1"},
      {"rule call=5..3 do=block", "write N, N.. or N..M"},
      {"rule colour=red do=block", "a rule has no 'colour'"},
      {"device GPU-1 state=lost", "expected 'device UUID"},
      {"device GPU-00112233-4455-6677-8899-aabbccddeeff state=broken", "there are ok, lost and hung"},
      {"device GPU-00112233-4455-6677-8899-aabbccddeeff recovery-action=9", "from 0 to 5"},
      {"answer colour=1", "'colour' is no question"},
      {"latency cuMemCreate", "is not ENTRY=TIME"},
  };
  for (const auto& one : kCases) {
    Settings settings;
    settings.answers["map-size"] = 5;
    std::string error;
    EXPECT_FALSE(ParseSettings(one.text, &settings, &error)) << one.text;
    EXPECT_THAT(error, HasSubstr(one.says));
    EXPECT_EQ(settings.answers.size(), 1u) << "a refused text must change nothing";
  }
}

TEST(SimSettings, ARuleNamesOneEntryOrABeginning) {
  Rule rule;
  EXPECT_TRUE(rule.MatchesEntry("cuInit"));
  rule.entry = "cuMemCreate";
  EXPECT_TRUE(rule.MatchesEntry("cuMemCreate"));
  EXPECT_FALSE(rule.MatchesEntry("cuMemCreateX"));
  rule.entry = "cuMem*";
  EXPECT_TRUE(rule.MatchesEntry("cuMemMap"));
  EXPECT_FALSE(rule.MatchesEntry("cuInit"));
}

class ControlTest : public MachineTest {
 protected:
  std::unique_ptr<Control> Open() {
    std::string error;
    auto control = Control::Open(dir_, &error);
    EXPECT_NE(control, nullptr) << error;
    return control;
  }
};

TEST_F(ControlTest, AChangeIsSeenByOthersAndWakesThem) {
  const auto mine = Open();
  const auto others = Open();
  const std::uint32_t seen = others->generation();
  std::thread waiter([&] {
    while (others->generation() == seen) others->WaitForChange(seen, std::chrono::milliseconds(60000));
  });
  std::string error;
  EXPECT_TRUE(mine->Update(
      [](Settings* settings, std::string*) {
        settings->answers["map-size"] = 2;
        return true;
      },
      &error))
      << error;
  waiter.join();
  Settings settings;
  ASSERT_TRUE(others->Read(&settings, &error)) << error;
  EXPECT_EQ(settings.AnswerTo(Question::kMapSize), 2);
}

TEST_F(ControlTest, ARefusedChangeChangesNothing) {
  const auto control = Open();
  const std::uint32_t before = control->generation();
  std::string error;
  EXPECT_FALSE(control->Update(
      [](Settings* settings, std::string* why) {
        settings->answers["map-size"] = 2;
        *why = "no";
        return false;
      },
      &error));
  EXPECT_EQ(error, "no");
  EXPECT_EQ(control->generation(), before);
  Settings settings;
  ASSERT_TRUE(control->Read(&settings, &error));
  EXPECT_TRUE(settings.answers.empty());
}

TEST_F(ControlTest, RuleIdsAreNeverUsedAgainAndNeverShareTheirCounts) {
  const auto control = Open();
  Settings settings;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 256; ++i) {
    Rule rule;
    rule.id = control->NewRuleId(settings);
    ASSERT_TRUE(ids.insert(rule.id).second) << rule.id;
    EXPECT_EQ(control->CountCall(rule), 1u) << "rule " << rule.id << " counts with another";
    settings.rules.push_back(rule);
  }
  EXPECT_EQ(control->NewRuleId(settings), 0u) << "the 257th";
  settings.rules.erase(settings.rules.begin());
  const std::uint64_t next = control->NewRuleId(settings);
  EXPECT_TRUE(ids.insert(next).second) << next;
  Rule rule;
  rule.id = next;
  EXPECT_EQ(control->CountCall(rule), 1u) << "a new rule counts from the beginning";
}

TEST_F(ControlTest, XidsComeInOrderAndTheOldestAreForgotten) {
  const auto control = Open();
  for (std::uint32_t code = 1; code <= 70; ++code) control->PostXid(config_.devices[code % 2].uuid, code);
  const auto events = Open()->XidsAfter(0);
  ASSERT_EQ(events.size(), 64u);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].code, i + 7);
    EXPECT_EQ(events[i].device, config_.devices[events[i].code % 2].uuid);
  }
  EXPECT_EQ(control->XidsAfter(69).size(), 1u);
  EXPECT_TRUE(control->XidsAfter(70).empty());
}

}  // namespace
}  // namespace simtest
