#include "daemon/observe/logging.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace gpumem::observe {
namespace {

using Level = manager::Log::Level;

constexpr std::size_t kWaitingLines = 8192;

const char* NameOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "debug";
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "error";
}

// sd-daemon(3): SD_ERR, SD_WARNING, SD_INFO, SD_DEBUG.
const char* PriorityOf(Level level) {
  switch (level) {
    case Level::kDebug:
      return "<7>";
    case Level::kInfo:
      return "<6>";
    case Level::kWarning:
      return "<4>";
    case Level::kError:
      return "<3>";
  }
  return "<3>";
}

spdlog::level::level_enum SpdlogLevel(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

Level FromSpdlogLevel(spdlog::level::level_enum level) {
  if (level <= spdlog::level::debug) return Level::kDebug;
  if (level == spdlog::level::info) return Level::kInfo;
  return level == spdlog::level::warn ? Level::kWarning : Level::kError;
}

// The length of the well-formed UTF-8 character (RFC 3629) at the start of `text`; 0 when there is none.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned char lowest = 0x80, highest = 0xbf;  // of the second byte
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) lowest = 0xa0;   // shorter forms exist
    if (lead == 0xed) highest = 0x9f;  // surrogates
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) lowest = 0x90;
    if (lead == 0xf4) highest = 0x8f;  // beyond U+10FFFF
  }
  if (length == 0 || text.size() < length || byte(1) < lowest || byte(1) > highest) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

void AppendEscapedByte(unsigned char byte, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->append({'\\', 'x', kHex[byte >> 4], kHex[byte & 0xf]});
}

std::string TimeText(std::chrono::system_clock::time_point at) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(at), absl::UTCTimeZone());
}

class LineFormatter : public spdlog::formatter {
 public:
  LineFormatter(LogOptions options, bool to_journal) : options_(std::move(options)), to_journal_(to_journal) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    std::string line = FormatLogLine(options_, to_journal_, message.time, FromSpdlogLevel(message.level),
                                     std::string_view(message.payload.data(), message.payload.size()));
    line += '\n';
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(options_, to_journal_);
  }

 private:
  const LogOptions options_;
  const bool to_journal_;
};

class SpdlogLog : public manager::Log {
 public:
  explicit SpdlogLog(const LogOptions& options)
      : pool_(std::make_shared<spdlog::details::thread_pool>(kWaitingLines, 1)) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    const bool to_journal =
        options.journald == Journald::kYes || (options.journald == Journald::kDetect && StderrIsJournal());
    sink->set_formatter(std::make_unique<LineFormatter>(options, to_journal));
    logger_ = std::make_shared<spdlog::async_logger>(options.component, std::move(sink), pool_,
                                                     spdlog::async_overflow_policy::overrun_oldest);
    logger_->set_level(SpdlogLevel(options.lowest));
  }

  ~SpdlogLog() override { ReportDropped(); }

  void Write(Level level, std::string_view message) override {
    // Not while lines are being dropped: the reports would push out more of them.
    if (pool_->queue_size() < kWaitingLines / 2) ReportDropped();
    logger_->log(SpdlogLevel(level), spdlog::string_view_t(message.data(), message.size()));
  }

 private:
  void ReportDropped() {
    const std::size_t dropped = pool_->overrun_counter();
    const std::size_t told = told_dropped_.exchange(dropped);
    if (dropped > told) {
      logger_->log(spdlog::level::warn,
                   absl::StrCat(dropped - told, " log lines were dropped: standard error is slow"));
    }
  }

  // The pool is destroyed last: its end writes out what waits.
  std::shared_ptr<spdlog::details::thread_pool> pool_;
  std::shared_ptr<spdlog::async_logger> logger_;
  std::atomic<std::size_t> told_dropped_{0};
};

}  // namespace

std::string EscapeForLog(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = Utf8Length(text);
    const bool c1_control = length == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (lead == '\\') {
      out += "\\\\";
    } else if (lead == '\n') {
      out += "\\n";
    } else if (lead == '\t') {
      out += "\\t";
    } else if (length == 0 || lead < 0x20 || lead == 0x7f) {
      AppendEscapedByte(lead, &out);
    } else if (c1_control) {
      AppendEscapedByte(lead, &out);
      AppendEscapedByte(static_cast<unsigned char>(text[1]), &out);
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

std::string FormatLogLine(const LogOptions& options, bool to_journal, std::chrono::system_clock::time_point at,
                          Level level, std::string_view message) {
  std::string line = to_journal ? PriorityOf(level) : "";
  if (options.format == LogFormat::kJson) {
    nlohmann::ordered_json fields;
    fields["ts"] = TimeText(at);
    fields["level"] = NameOf(level);
    if (!options.component.empty()) fields["component"] = options.component;
    fields["msg"] = message;
    // ASCII only: every control character is escaped, and what is not UTF-8 becomes U+FFFD.
    return line + fields.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
  }
  if (!to_journal) absl::StrAppend(&line, TimeText(at), " ", NameOf(level), " ");
  if (!options.component.empty()) absl::StrAppend(&line, options.component, ": ");
  return line + EscapeForLog(message);
}

bool StderrIsJournal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  if (stream == nullptr || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return absl::StrCat(status.st_dev, ":", status.st_ino) == stream;
}

std::unique_ptr<manager::Log> InitLogging(const LogOptions& options) { return std::make_unique<SpdlogLog>(options); }

}  // namespace gpumem::observe
