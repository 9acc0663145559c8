// cuda/sim/faults.h: the point that every call of the simulated libraries passes, where the machine's settings act on
// it: latencies, rules, and the device's condition.
//
// Nothing is set: two loads. Thread-safe. It may sleep, block, or kill the process.
#ifndef GPUMEM_CUDA_SIM_FAULTS_H_
#define GPUMEM_CUDA_SIM_FAULTS_H_

#include <memory>
#include <string_view>

#include "base/device_uuid.h"
#include "cuda/sim/settings.h"

namespace simcuda {

struct Verdict {
  enum class Kind : std::uint8_t {
    kGo,
    kFail,    // with `code`
    kPoison,  // … and it is the process's sticky error from now on
    kLost,    // the device is lost to this process
  };
  Kind kind = Kind::kGo;
  int code = 0;
  bool kill_after = false;  // SIGKILL once the call took effect
};

// The quick way out: this process's machine has no settings, or there is no machine.
bool NothingIsSet();

// Before `entry` takes effect. `device`: the one that the call concerns, or null.
Verdict PassFaultPoint(std::string_view entry, const gpumem::DeviceUuid* device);
// SIGKILL for this process: nothing of it runs any more.
void KillThisProcess();

// The settings of this process's machine as they are now; the defaults when there is none.
std::shared_ptr<const Settings> CurrentSettings();
int AnswerTo(Question question);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_FAULTS_H_
