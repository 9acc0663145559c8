// daemon/observe/logging.h: the daemon's log: one line for each message, on standard error. May call spdlog.
//
// Messages may hold what a peer chose (a process's name, a holder's): control characters and bytes that are not UTF-8
// never reach a terminal or split a line.
//
// Formats
//   human  2026-01-02T03:04:05.678Z warning front: message      (without the time under journald, which adds its own)
//   json   {"ts":"2026-01-02T03:04:05.678Z","level":"warning","component":"front","msg":"message"}
// Under journald (sd-daemon(3)) each line starts with its priority, "<4>".
#ifndef GPUMEM_DAEMON_OBSERVE_LOGGING_H_
#define GPUMEM_DAEMON_OBSERVE_LOGGING_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "daemon/manager/ports.h"

namespace gpumem::observe {

enum class LogFormat { kHuman, kJson };
// kDetect: when $JOURNAL_STREAM names the very file that standard error is (systemd.exec(5)).
enum class Journald { kDetect, kYes, kNo };

struct LogOptions {
  LogFormat format = LogFormat::kHuman;
  manager::Log::Level lowest = manager::Log::Level::kInfo;
  Journald journald = Journald::kDetect;
  std::string component;  // "front", "arena", "keeper"
};

// The log of this process, to be made once and kept to the end. Writing never blocks: a thread of its own writes the
// lines, and when standard error takes them too slowly the oldest are dropped and the log says how many. Destroying it
// writes out what waits. Thread-safe. A process that forks without exec must not use it in the child.
std::unique_ptr<manager::Log> InitLogging(const LogOptions& options);

// Whether standard error is journald's stream.
bool StderrIsJournal();

// One line, without its line end. Exposed for tests.
std::string FormatLogLine(const LogOptions& options, bool to_journal, std::chrono::system_clock::time_point at,
                          manager::Log::Level level, std::string_view message);

// The text with control characters (C0, DEL, C1) and bytes that are not UTF-8 written as \n, \t or \xNN, and \ as \\.
std::string EscapeForLog(std::string_view text);

}  // namespace gpumem::observe

#endif  // GPUMEM_DAEMON_OBSERVE_LOGGING_H_
