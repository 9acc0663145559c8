// tests/conformance/main.cc: runs the checks of the CUDA driver that is installed here, or of the simulated one.
//
// It needs a C++20 compiler and libcuda.so.1, nothing else. From the project's root:
//   g++ -std=c++20 -O2 -I. tests/conformance/*.cc -ldl -pthread -o conformance && ./conformance
//
// Each check runs in a process of its own, started from this same program, with a deadline.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/conformance/agent.h"
#include "tests/conformance/gpu.h"
#include "tests/conformance/suite.h"

namespace conformance {
namespace {

using gpumem::UniqueFd;

constexpr double kDeadlineSeconds = 60;

struct Arguments {
  Options options;
  bool list = false;
  bool agent = false;
  bool hold = true;
  std::string child;  // the check to run in this process
  std::string json;
  std::vector<std::string> filters;
};

constexpr char kUsage[] =
    R"(conformance: whether this machine's CUDA driver does what the project takes for granted

  conformance [--list] [--device N] [--strict] [--json FILE] [--no-hold] [FILTER...]

  FILTER       only the check of that name, or the checks whose names contain it
  --list       the checks, the facts they state and where those are from
  --device N   the device to use (0)
  --strict     also where the driver's answer is not known for sure: the strictest one (what the simulation gives)
  --json FILE  everything, for programs
  --no-hold    do not keep the devices open meanwhile, as nvidia-persistenced does

Exit status: 0 when no check failed, 1 when one did, 2 when none could run.
)";

enum class Outcome { kOk, kFail, kDiffers, kSkipped };

struct Result {
  Definition definition;
  std::vector<std::string> failures;
  std::vector<std::string> differences;
  std::vector<std::pair<std::string, std::string>> readings;  // name, value
  std::string skipped;
  std::string output;  // what the check's process wrote to its standard output and error
  double seconds = 0;

  Outcome outcome() const {
    if (!failures.empty()) return Outcome::kFail;
    if (!skipped.empty()) return Outcome::kSkipped;
    return differences.empty() ? Outcome::kOk : Outcome::kDiffers;
  }
};

const char* Text(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOk:
      return "ok";
    case Outcome::kFail:
      return "FAIL";
    case Outcome::kDiffers:
      return "differs";
    case Outcome::kSkipped:
      return "skipped";
  }
  return "?";
}

// ---- In the check's process. ----

int RunChild(const Arguments& arguments) {
  constexpr int kReport = 3;
  Check t(arguments.options, kReport);
  std::string error;
  if (!LoadDriver(&error)) {
    t.Fail(error);
  } else {
    for (const Definition& definition : AllDefinitions()) {
      if (arguments.child != definition.name) continue;
      try {
        definition.body(t);
      } catch (const Stop&) {
      }
    }
  }
  std::fflush(nullptr);
  if (::write(kReport, "E\n", 2) != 2) return 1;  // it came to its end
  ::_exit(0);  // not through exit handlers: the driver's own may be confused by what the check did
}

// ---- In the first process. ----

std::string Describe(int status) {
  if (WIFSIGNALED(status)) {
    return std::string("the check's process was killed by signal ") + std::to_string(WTERMSIG(status)) + " (" +
           ::strsignal(WTERMSIG(status)) + ")";
  }
  return "the check's process ended with status " + std::to_string(WEXITSTATUS(status)) + " before its check did";
}

// Reads the report until its end or the deadline. False: the deadline.
bool ReadReport(int fd, std::string* text) {
  const double end = Now() + kDeadlineSeconds;
  while (true) {
    pollfd wait{fd, POLLIN, 0};
    const int ready = ::poll(&wait, 1, std::max(0, static_cast<int>((end - Now()) * 1000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return false;
    char buffer[4096];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text->append(buffer, static_cast<std::size_t>(count));
    // Helpers of the check may hold the pipe's other end for ever: its last line is the end.
    if (text->size() >= 2 && text->compare(text->size() - 2, 2, "E\n") == 0 &&
        (text->size() == 2 || (*text)[text->size() - 3] == '\n')) {
      return true;
    }
  }
}

// False when the check did not come to its end.
bool TakeReport(const std::string& text, Result* result) {
  bool ended = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    const std::string rest = line.substr(1);
    switch (line[0]) {
      case 'F':
        result->failures.push_back(rest);
        break;
      case 'D':
        result->differences.push_back(rest);
        break;
      case 'S':
        result->skipped = rest;
        break;
      case 'R': {
        const std::size_t tab = std::min(rest.find('\t'), rest.size() - 1);
        result->readings.emplace_back(std::string(result->definition.name) + ": " + rest.substr(0, tab),
                                      rest.substr(tab + 1));
        break;
      }
      case 'E':
        ended = true;
        break;
    }
  }
  return ended;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  ::lseek(fd, 0, SEEK_SET);
  while (true) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

// Starts this program again for one check; its report is on descriptor 3.
pid_t Spawn(const Arguments& arguments, const char* name, int report, int output) {
  const std::string device = std::to_string(arguments.options.device);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setpgid(0, 0);  // it and its helpers end together
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::dup2(report, 3);
  if (report == 3) ::fcntl(3, F_SETFD, 0);
  ::execl("/proc/self/exe", "conformance", "--child", name, "--device", device.c_str(),
          arguments.options.strict ? "--strict" : static_cast<const char*>(nullptr), static_cast<char*>(nullptr));
  ::_exit(127);
}

Result RunCheck(const Arguments& arguments, const Definition& definition) {
  Result result;
  result.definition = definition;
  int report[2];
  const UniqueFd output(::memfd_create("conformance-output", MFD_CLOEXEC));
  if (!output.valid() || ::pipe2(report, O_CLOEXEC) != 0) {
    result.failures.push_back(std::string("cannot run it: ") + std::strerror(errno));
    return result;
  }
  const UniqueFd near(report[0]);
  UniqueFd far(report[1]);
  const double start = Now();
  const pid_t pid = Spawn(arguments, definition.name, far.get(), output.get());
  far.reset();
  std::string text;
  const bool in_time = pid > 0 && ReadReport(near.get(), &text);
  if (!in_time && pid > 0) ::kill(-pid, SIGKILL);
  const bool ended = TakeReport(text, &result);
  int status = 0;
  if (pid > 0) {
    ::waitpid(pid, &status, 0);
    ::kill(-pid, SIGKILL);  // helpers that it left
  }
  result.seconds = Now() - start;
  result.output = ReadAll(output.get());
  if (!in_time) {
    result.failures.push_back("it did not end within " + std::to_string(static_cast<int>(kDeadlineSeconds)) +
                              " s and was killed");
  } else if (!ended || status != 0) {
    result.failures.push_back(Describe(status));
  }
  return result;
}

// ---- Reports. ----

void PrintResult(const Result& result, int width) {
  std::string note;
  if (result.outcome() == Outcome::kSkipped) note = result.skipped;
  if (result.outcome() == Outcome::kDiffers) note = result.differences[0];
  std::printf("%-*s  %-7s  %s\n", width, result.definition.name, Text(result.outcome()), note.c_str());
  if (result.outcome() == Outcome::kFail) {
    std::printf("    fact:   %s\n    source: %s\n", result.definition.fact, result.definition.source);
    for (const std::string& failure : result.failures) std::printf("    %s\n", failure.c_str());
    if (!result.output.empty()) std::printf("    its output:\n%s\n", result.output.c_str());
  }
  std::fflush(stdout);
}

void PrintReadings(const std::vector<Result>& results) {
  int width = 0;
  for (const Result& result : results) {
    for (const auto& reading : result.readings) width = std::max(width, static_cast<int>(reading.first.size()));
  }
  if (width == 0) return;
  std::printf("\nReadings:\n");
  for (const Result& result : results) {
    for (const auto& [name, value] : result.readings) std::printf("  %-*s  %s\n", width, name.c_str(), value.c_str());
  }
  std::printf("\n");
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  return out + "\"";
}

std::string QuotedList(const std::vector<std::string>& list) {
  std::string out = "[";
  for (const std::string& text : list) out += (out.size() > 1 ? "," : "") + Quoted(text);
  return out + "]";
}

bool WriteJson(const Arguments& arguments, const std::string& driver, const std::vector<Result>& results) {
  std::string out = "{\"driver\":" + Quoted(driver) + ",\"device\":" + std::to_string(arguments.options.device) +
                    ",\"strict\":" + (arguments.options.strict ? "true" : "false") + ",\"checks\":[";
  const char* comma = "";
  for (const Result& result : results) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3f", result.seconds);
    out += std::string(comma) + "\n{\"name\":" + Quoted(result.definition.name) +
           ",\"fact\":" + Quoted(result.definition.fact) + ",\"source\":" + Quoted(result.definition.source) +
           ",\"outcome\":" + Quoted(Text(result.outcome())) + ",\"seconds\":" + seconds +
           ",\"failures\":" + QuotedList(result.failures) + ",\"differences\":" + QuotedList(result.differences) +
           ",\"skipped\":" + Quoted(result.skipped) + ",\"readings\":{";
    const char* inner = "";
    for (const auto& [name, value] : result.readings) {
      out += inner + Quoted(name) + ":" + Quoted(value);
      inner = ",";
    }
    out += "}}";
    comma = ",";
  }
  out += "]}\n";
  std::FILE* const file = std::fopen(arguments.json.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = std::fwrite(out.data(), 1, out.size(), file) == out.size();
  return std::fclose(file) == 0 && written;
}

// A device stays initialised as long as anyone has it open. Without this each check's process would pay for it where no
// persistence daemon runs, and memory that only a descriptor holds would go with the last process.
std::vector<UniqueFd> HoldDevices() {
  std::vector<UniqueFd> held;
  for (int i = 0; i < 64; ++i) {
    UniqueFd fd(::open(("/dev/nvidia" + std::to_string(i)).c_str(), O_RDWR | O_CLOEXEC));
    if (fd.valid()) held.push_back(std::move(fd));
  }
  return held;
}

// A filter that is a whole name selects that check alone, also where it begins others.
bool Matches(const Arguments& arguments, const Definition& definition) {
  if (arguments.filters.empty()) return true;
  const std::vector<Definition> all = AllDefinitions();
  for (const std::string& filter : arguments.filters) {
    const bool whole = std::any_of(all.begin(), all.end(), [&](const Definition& each) { return filter == each.name; });
    if (whole ? filter == definition.name : std::strstr(definition.name, filter.c_str()) != nullptr) return true;
  }
  return false;
}

int List(const Arguments& arguments) {
  for (const Definition& definition : AllDefinitions()) {
    if (Matches(arguments, definition)) {
      std::printf("%s\n    %s\n    %s\n", definition.name, definition.fact, definition.source);
    }
  }
  return 0;
}

int RunAll(const Arguments& arguments) {
  std::string error;
  int version = 0;
  if (!LoadDriver(&error) || cu.DriverGetVersion(&version) != CUDA_SUCCESS) {
    std::fprintf(stderr, "conformance: %s\n", error.empty() ? "the driver does not tell its version" : error.c_str());
    return 2;
  }
  const std::string driver = "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
                             (cu.simulated ? ", simulated" : ", a real driver");
  std::vector<Definition> chosen;
  int width = 0;
  for (const Definition& definition : AllDefinitions()) {
    if (!Matches(arguments, definition)) continue;
    chosen.push_back(definition);
    width = std::max(width, static_cast<int>(std::strlen(definition.name)));
  }
  if (chosen.empty()) {
    std::fprintf(stderr, "conformance: no check's name contains that; --list shows them\n");
    return 2;
  }
  std::printf("%s; %zu checks on device %d\n", driver.c_str(), chosen.size(), arguments.options.device);
  std::fflush(stdout);
  const std::vector<UniqueFd> held = arguments.hold ? HoldDevices() : std::vector<UniqueFd>();
  std::vector<Result> results;
  int counts[4] = {};
  for (const Definition& definition : chosen) {
    results.push_back(RunCheck(arguments, definition));
    ++counts[static_cast<int>(results.back().outcome())];
    PrintResult(results.back(), width);
  }
  PrintReadings(results);
  if (!arguments.json.empty() && !WriteJson(arguments, driver, results)) {
    std::fprintf(stderr, "conformance: cannot write '%s': %s\n", arguments.json.c_str(), std::strerror(errno));
    return 2;
  }
  std::printf("%d ok, %d failed, %d differ, %d skipped\n", counts[0], counts[1], counts[2], counts[3]);
  return counts[1] > 0 ? 1 : 0;
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&]() -> std::string { return i + 1 < argc ? argv[++i] : ""; };
    if (argument == "--list") {
      arguments->list = true;
    } else if (argument == "--agent") {
      arguments->agent = true;
    } else if (argument == "--child") {
      arguments->child = value();
    } else if (argument == "--device") {
      arguments->options.device = std::atoi(value().c_str());
    } else if (argument == "--strict") {
      arguments->options.strict = true;
    } else if (argument == "--json") {
      arguments->json = value();
    } else if (argument == "--no-hold") {
      arguments->hold = false;
    } else if (argument[0] == '-') {
      return false;
    } else {
      arguments->filters.push_back(argument);
    }
  }
  return arguments->options.device >= 0;
}

}  // namespace

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  if (arguments.agent) RunAgent(3);
  if (!arguments.child.empty()) return RunChild(arguments);
  return arguments.list ? List(arguments) : RunAll(arguments);
}

}  // namespace conformance

int main(int argc, char** argv) { return conformance::Main(argc, argv); }
