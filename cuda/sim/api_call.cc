// cuda/sim/api_call.cc: see the header.
#include "cuda/sim/api_call.h"

#include "cuda/sim/breaks.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/process.h"

namespace simcuda {
namespace {

CUresult ResultOf(const Verdict& verdict, Process* process) {
  switch (verdict.kind) {
    case Verdict::Kind::kGo:
      return CUDA_SUCCESS;
    case Verdict::Kind::kFail:
      return static_cast<CUresult>(verdict.code);
    case Verdict::Kind::kPoison:
      if (process != nullptr && !SIMCUDA_BREAK("poison-told-once"))
        process->Poison(static_cast<CUresult>(verdict.code));
      return static_cast<CUresult>(verdict.code);
    case Verdict::Kind::kLost:
      return static_cast<CUresult>(AnswerTo(Question::kDeviceLost));
  }
  return CUDA_ERROR_UNKNOWN;
}

// Passes the point, and finds a device that was recovered since this process began: to it, that one stays lost.
CUresult Pass(const char* what, Process* process, int ordinal, bool* kill_after) {
  const VisibleDevice* const device = process != nullptr && process->IsDevice(ordinal)
                                          ? &process->devices()[static_cast<std::size_t>(ordinal)]
                                          : nullptr;
  Verdict verdict = PassFaultPoint(what, device != nullptr ? &device->store->config().uuid : nullptr);
  if (verdict.kind == Verdict::Kind::kGo && device != nullptr && process->IsOfEarlierLife(*device)) {
    verdict.kind = Verdict::Kind::kLost;
  }
  *kill_after = verdict.kill_after;
  return ResultOf(verdict, process);
}

}  // namespace

// A forked child must not wait for locks that its parent's threads held, and its calls say themselves what is wrong.
bool ApiCall::MayFault() { return !Process::IsForkedChild() && !NothingIsSet(); }

void ApiCall::Pass(const char* entry, int ordinal) {
  Process* const process = Process::IfInitialised();
  if (process != nullptr && ordinal == kAnyDevice) {
    ordinal = CurrentOrdinal();
    if (ordinal == kAnyDevice && process->devices().size() == 1) ordinal = 0;
  }
  result_ = simcuda::Pass(entry, process, ordinal, &kill_after_);
}

ApiCall::~ApiCall() {
  if (kill_after_) KillThisProcess();
}

CUresult PassWorkPoint(const char* what, int ordinal) {
  if (NothingIsSet()) return CUDA_SUCCESS;
  bool kill_after = false;  // means a call's end; work has none
  return Pass(what, Process::IfInitialised(), ordinal, &kill_after);
}

}  // namespace simcuda
