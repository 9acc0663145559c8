// tests/conformance/suite.cc: see the header.
#include "tests/conformance/suite.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace conformance {
namespace {

// Registrations run before main, in any order.
std::vector<Definition>& Registered() {
  static std::vector<Definition> definitions;
  return definitions;
}

}  // namespace

Driver cu;

Registration::Registration(const Definition& definition) { Registered().push_back(definition); }

std::vector<Definition> AllDefinitions() {
  std::vector<Definition> all = Registered();
  std::sort(all.begin(), all.end(),
            [](const Definition& a, const Definition& b) { return std::strcmp(a.name, b.name) < 0; });
  return all;
}

bool LoadDriver(std::string* error) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = std::string("cannot load the CUDA driver: ") + ::dlerror();
    return false;
  }
#define CONFORMANCE_ENTRY(member, exported, parameters) \
  cu.member = reinterpret_cast<CUresult(*) parameters>(::dlsym(library, #exported));
#include "tests/conformance/entry_points.def"
#undef CONFORMANCE_ENTRY
  cu.simulated = ::dlsym(library, "simcuda_api_version") != nullptr;
  if (cu.Init != nullptr && cu.DriverGetVersion != nullptr && cu.GetErrorName != nullptr && cu.MemCreate != nullptr) {
    return true;
  }
  *error = "libcuda.so.1 is no CUDA driver of 10.2 or later: it has no cuMemCreate";
  return false;
}

std::string CodeText(CUresult code) {
  const char* name = nullptr;
  if (cu.GetErrorName == nullptr || cu.GetErrorName(code, &name) != CUDA_SUCCESS || name == nullptr) name = "code";
  return std::string(name) + " (" + std::to_string(static_cast<int>(code)) + ")";
}

bool IsFatal(CUresult code) {
  switch (static_cast<int>(code)) {
    case 4:    // DEINITIALIZED
    case 46:   // DEVICE_UNAVAILABLE
    case 214:  // ECC_UNCORRECTABLE
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 810:  // MPS_CLIENT_TERMINATED
    case 911:  // EXTERNAL_DEVICE
      return true;
    default:
      return false;
  }
}

void Check::Must(const char* call, CUresult got) {
  if (got == CUDA_SUCCESS) return;
  Code(call, got, CUDA_SUCCESS);
  End();
}

void Check::Code(const char* call, CUresult got, CUresult want) {
  if (got != want) Fail(std::string(call) + ": expected " + CodeText(want) + ", got " + CodeText(got));
}

void Check::Refused(const char* what, const char* call, CUresult got, CUresult strict) {
  if (got == CUDA_SUCCESS || IsFatal(got)) {
    Reading(what, CodeText(got));
    Fail(std::string(what) + ": " + call + ": expected an error such as " + CodeText(strict) + ", got " +
         CodeText(got));
    return;
  }
  Either(what, call, got, strict);
}

void Check::Either(const char* what, const char* call, CUresult got, CUresult strict) {
  Reading(what, CodeText(got));
  if (got == strict) return;
  const std::string text =
      std::string(what) + ": " + call + ": expected " + CodeText(strict) + ", got " + CodeText(got);
  options_.strict ? Fail(text) : Report('D', text);
}

void Check::True(const char* condition, bool holds) {
  if (!holds) Fail(std::string("expected: ") + condition);
}

void Check::Equal(const char* what, std::uint64_t got, std::uint64_t want) {
  if (got != want) {
    Fail(std::string(what) + ": expected " + std::to_string(want) + ", got " + std::to_string(got));
  }
}

void Check::Fail(const std::string& what) { Report('F', what); }

void Check::Reading(const std::string& what, const std::string& value) { Report('R', what + "\t" + value); }

void Check::Reading(const std::string& what, const std::string& value, const std::string& strict) {
  Reading(what, value);
  if (value == strict) return;
  const std::string text = what + ": expected " + strict + ", got " + value;
  options_.strict ? Fail(text) : Report('D', text);
}

void Check::Skip(const std::string& why) {
  Report('S', why);
  End();
}

// One line, one write: lines of a check and of its forked children do not mix.
void Check::Report(char kind, const std::string& text) {
  std::string line = kind + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line.push_back('\n');
  if (::write(report_fd_, line.data(), line.size()) < 0) ::_exit(1);
}

}  // namespace conformance
