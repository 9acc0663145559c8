// cuda/sim/thread_state.h: what the driver keeps for each thread: its contexts, its capture mode, its default streams.
#ifndef GPUMEM_CUDA_SIM_THREAD_STATE_H_
#define GPUMEM_CUDA_SIM_THREAD_STATE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/cuda_api.h"

namespace simcuda {

class Context;
class Stream;

// Used by its own thread only. As the thread ends, its default streams are closed (their work still runs).
struct ThreadState {
  ThreadState();
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  // The per-thread default stream in that context, made at first use. Null when the system gives no thread.
  std::shared_ptr<Stream> DefaultStream(const std::shared_ptr<Context>& context);

  const std::uint64_t id;           // never reused, unlike the system's
  std::vector<CUcontext> contexts;  // that this thread pushed; the last one is current
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

 private:
  std::vector<std::pair<std::weak_ptr<Context>, std::shared_ptr<Stream>>> default_streams_;
};

ThreadState& ThisThread();

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_THREAD_STATE_H_
