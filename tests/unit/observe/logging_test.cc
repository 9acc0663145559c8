#include "daemon/observe/logging.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

namespace gpumem::observe {
namespace {

using Level = manager::Log::Level;
using ::testing::HasSubstr;

const std::chrono::system_clock::time_point kTime =
    std::chrono::system_clock::time_point(std::chrono::milliseconds(1'767'323'045'678));  // 2026-01-02T03:04:05.678Z

LogOptions OptionsFor(LogFormat format) {
  LogOptions options;
  options.format = format;
  options.component = "front";
  return options;
}

// Standard error goes to a file while this lives.
class CapturedStderr {
 public:
  CapturedStderr() : saved_(::dup(STDERR_FILENO)) {
    char name[] = "/tmp/gpumem-log-XXXXXX";
    file_ = ::mkstemp(name);
    ::unlink(name);
    ::dup2(file_, STDERR_FILENO);
  }
  ~CapturedStderr() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    ::close(file_);
  }
  std::string Text() const {
    char buffer[8192];
    const ssize_t got = ::pread(file_, buffer, sizeof(buffer), 0);
    return std::string(buffer, got > 0 ? static_cast<std::size_t>(got) : 0);
  }

 private:
  int saved_;
  int file_;
};

TEST(LoggingTest, AHumanLine) {
  EXPECT_EQ(FormatLogLine(OptionsFor(LogFormat::kHuman), false, kTime, Level::kWarning, "two words"),
            "2026-01-02T03:04:05.678Z warning front: two words");
}

TEST(LoggingTest, AJsonLine) {
  EXPECT_EQ(FormatLogLine(OptionsFor(LogFormat::kJson), false, kTime, Level::kInfo, "two words"),
            R"({"ts":"2026-01-02T03:04:05.678Z","level":"info","component":"front","msg":"two words"})");
}

TEST(LoggingTest, JournaldGetsThePriorityAndNoTime) {
  const LogOptions human = OptionsFor(LogFormat::kHuman);
  EXPECT_EQ(FormatLogLine(human, true, kTime, Level::kDebug, "m"), "<7>front: m");
  EXPECT_EQ(FormatLogLine(human, true, kTime, Level::kInfo, "m"), "<6>front: m");
  EXPECT_EQ(FormatLogLine(human, true, kTime, Level::kWarning, "m"), "<4>front: m");
  EXPECT_EQ(FormatLogLine(human, true, kTime, Level::kError, "m"), "<3>front: m");
  EXPECT_THAT(FormatLogLine(OptionsFor(LogFormat::kJson), true, kTime, Level::kError, "m"),
              ::testing::StartsWith("<3>{\"ts\""));
}

TEST(LoggingTest, ControlCharactersNeverReachATerminal) {
  EXPECT_EQ(EscapeForLog("plain text, 100%"), "plain text, 100%");
  EXPECT_EQ(EscapeForLog("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(EscapeForLog("\x1b[31mred\x7f\r"), "\\x1b[31mred\\x7f\\x0d");
  EXPECT_EQ(EscapeForLog(std::string_view("nul\0!", 5)), "nul\\x00!");
  EXPECT_EQ(EscapeForLog("C:\\n"), "C:\\\\n") << "an escape cannot be forged";
  EXPECT_EQ(EscapeForLog("\xc2\x9b"
                         "31m"),
            "\\xc2\\x9b"
            "31m")
      << "a C1 control introduces sequences too";
}

TEST(LoggingTest, TextOfTheWorldStaysAndBrokenBytesAreShown) {
  EXPECT_EQ(EscapeForLog("größe 漢字 🙂"), "größe 漢字 🙂");
  EXPECT_EQ(EscapeForLog("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(EscapeForLog("\xc0\xaf"), "\\xc0\\xaf") << "longer than needed";
  EXPECT_EQ(EscapeForLog("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(EscapeForLog("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(EscapeForLog("\xe2\x82"), "\\xe2\\x82") << "cut off";
}

TEST(LoggingTest, JsonLinesHoldAnyBytes) {
  std::string every;
  for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
  const std::string line = FormatLogLine(OptionsFor(LogFormat::kJson), false, kTime, Level::kInfo, every);
  for (const char c : line) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_TRUE(nlohmann::json::parse(line).contains("msg"));
}

TEST(LoggingTest, LinesGoToStandardErrorFromTheLowestLevelOn) {
  CapturedStderr captured;
  {
    LogOptions options = OptionsFor(LogFormat::kHuman);
    options.journald = Journald::kYes;
    const auto log = InitLogging(options);
    log->Write(Level::kDebug, "hidden");
    log->Write(Level::kInfo, "shown {} %s");
    log->Write(Level::kError, "last\nword");
  }
  EXPECT_EQ(captured.Text(), "<6>front: shown {} %s\n<3>front: last\\nword\n");
}

TEST(LoggingTest, TheJournalIsRecognizedByItsFile) {
  CapturedStderr captured;
  struct stat status {};
  ASSERT_EQ(::fstat(STDERR_FILENO, &status), 0);
  const std::string self = std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino);
  ::unsetenv("JOURNAL_STREAM");
  EXPECT_FALSE(StderrIsJournal());
  ::setenv("JOURNAL_STREAM", "8:1", 1);
  EXPECT_FALSE(StderrIsJournal()) << "inherited from a parent whose standard error was the journal";
  ::setenv("JOURNAL_STREAM", self.c_str(), 1);
  EXPECT_TRUE(StderrIsJournal());
  { InitLogging(OptionsFor(LogFormat::kHuman))->Write(Level::kInfo, "to the journal"); }
  ::unsetenv("JOURNAL_STREAM");
  EXPECT_EQ(captured.Text(), "<6>front: to the journal\n");
}

TEST(LoggingTest, AStuckStandardErrorHoldsNobodyUpAndLossesAreTold) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const int saved = ::dup(STDERR_FILENO);
  ::dup2(pipe[1], STDERR_FILENO);
  ::close(pipe[1]);
  auto log = InitLogging(OptionsFor(LogFormat::kHuman));
  for (int i = 0; i < 30'000; ++i) log->Write(Level::kInfo, "a line of some length, again and again");
  // Reached although nobody reads. Now somebody does.
  std::string text;
  std::thread reader([&] {
    char buffer[65536];
    ssize_t got;
    while ((got = ::read(pipe[0], buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<std::size_t>(got));
  });
  log.reset();
  ::dup2(saved, STDERR_FILENO);  // closes the pipe's last write end
  ::close(saved);
  reader.join();
  ::close(pipe[0]);
  EXPECT_THAT(text, HasSubstr("log lines were dropped"));
}

}  // namespace
}  // namespace gpumem::observe
