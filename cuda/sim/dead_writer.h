// cuda/sim/dead_writer.h: a kernel that goes on writing after its process was killed.
//
// On hardware a kernel in flight may write for some time after SIGKILL: until the kernel driver has torn its channel
// down. Here a process of its own stands for the engine: forked when the kernel starts, so that it holds references to
// the same memory (which stays allocated as long as it lives), and ended with it.
#ifndef GPUMEM_CUDA_SIM_DEAD_WRITER_H_
#define GPUMEM_CUDA_SIM_DEAD_WRITER_H_

#include <functional>

#include "cuda/sim/settings.h"
#include "cuda/sim/vmm.h"

namespace simcuda {

// From its construction to its destruction: should this process be killed, `kernel` runs again and again for `time`.
// The engine is a stranger to the process: no child that waitid(2) would report, no descriptor but its own.
class DeadWriter {
 public:
  DeadWriter(Vmm& vmm, Duration time, const std::function<void()>& kernel);
  ~DeadWriter();
  DeadWriter(const DeadWriter&) = delete;
  DeadWriter& operator=(const DeadWriter&) = delete;

 private:
  int pipe_ = -1;
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_DEAD_WRITER_H_
