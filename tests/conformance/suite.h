// tests/conformance/suite.h: what a check is, and how it says what it saw.
//
// A check states one fact about the driver. It runs in a process of its own, which main.cc starts and gives a deadline,
// so that a sticky error, a crash or a hang touches that check alone. What it finds goes to main.cc through a pipe.
//
// Facts differ in how sure they are, and so do the expectations:
//   documented or seen in source       CODE(call, code): another code fails the check
//   that it is refused is sure,        REFUSED("what", call, code): any error that leaves the process usable will do;
//   the code is not                    the code is a reading, and another one than `code` shows as "differs"
//   unknown                            EITHER("what", call, code): success will do as well
// With --strict (for the simulation, which takes the strictest answer) the last two fail where they would differ.
// std and libc only, as all of tests/conformance.
#ifndef GPUMEM_TESTS_CONFORMANCE_SUITE_H_
#define GPUMEM_TESTS_CONFORMANCE_SUITE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/cuda_api.h"

namespace conformance {

// The driver's entry points, found by their exported names. A null one is not there.
struct Driver {
#define CONFORMANCE_ENTRY(member, exported, parameters) CUresult(*member) parameters = nullptr;
#include "tests/conformance/entry_points.def"
#undef CONFORMANCE_ENTRY
  bool simulated = false;
};
extern Driver cu;

// Loads libcuda.so.1 by the usual search. False with one line in `*error`.
bool LoadDriver(std::string* error);
// "CUDA_ERROR_INVALID_VALUE (1)".
std::string CodeText(CUresult code);
// Whether the process is of no use for CUDA after this code (cuda.h).
bool IsFatal(CUresult code);

// Codes that cuda/cuda_decls.h does not need.
inline constexpr auto kStreamCaptureUnsupported = static_cast<CUresult>(900);
inline constexpr auto kStreamCaptureInvalidated = static_cast<CUresult>(901);
inline constexpr auto kStreamCaptureImplicit = static_cast<CUresult>(906);

struct Options {
  int device = 0;
  bool strict = false;
};

class Check;

struct Definition {
  const char* name;    // stable: area.subject.rule
  const char* fact;    // one line
  const char* source;  // where the fact is from, with its mark
  void (*body)(Check& t);
};

// All checks, by name.
std::vector<Definition> AllDefinitions();

struct Registration {
  explicit Registration(const Definition& definition);
};

// Thrown to end a check early; main.cc catches it.
struct Stop {};

class Check {
 public:
  Check(const Options& options, int report_fd) : options_(options), report_fd_(report_fd) {}
  const Options& options() const { return options_; }
  int device() const { return options_.device; }

  // The expectations behind the macros. `call` is the call's text.
  void Must(const char* call, CUresult got);  // ends the check when it is not CUDA_SUCCESS
  void Code(const char* call, CUresult got, CUresult want);
  void Refused(const char* what, const char* call, CUresult got, CUresult strict);
  void Either(const char* what, const char* call, CUresult got, CUresult strict);
  void True(const char* condition, bool holds);
  void Equal(const char* what, std::uint64_t got, std::uint64_t want);

  void Fail(const std::string& what);
  // A value for the table at the end. Never asserted.
  void Reading(const std::string& what, const std::string& value);
  // A value whose strictest form the simulation must have.
  void Reading(const std::string& what, const std::string& value, const std::string& strict);
  [[noreturn]] void Skip(const std::string& why);
  // Ends the check with what it has said so far.
  [[noreturn]] void End() { throw Stop{}; }

 private:
  void Report(char kind, const std::string& text);
  const Options& options_;
  const int report_fd_;
};

#define CONFORMANCE_CHECK(id, name, fact, source)                                        \
  static void id(::conformance::Check& t);                                               \
  static const ::conformance::Registration registration_##id({name, fact, source, &id}); \
  static void id([[maybe_unused]] ::conformance::Check& t)

// They expect the check as `t`.
#define MUST(call) t.Must(#call, (call))
#define CODE(call, want) t.Code(#call, (call), want)
#define REFUSED(what, call, strict) t.Refused(what, #call, (call), strict)
#define EITHER(what, call, strict) t.Either(what, #call, (call), strict)
#define TRUE(condition) t.True(#condition, (condition))
#define NEED(member) \
  if (::conformance::cu.member == nullptr) t.Skip("this driver has no entry point for " #member)

}  // namespace conformance

#endif  // GPUMEM_TESTS_CONFORMANCE_SUITE_H_
