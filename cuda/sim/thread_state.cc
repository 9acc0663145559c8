// cuda/sim/thread_state.cc: see the header.
#include "cuda/sim/thread_state.h"

#include <pthread.h>

#include <atomic>

#include "cuda/sim/capture.h"
#include "cuda/sim/streams.h"

namespace simcuda {
namespace {

std::uint64_t NextThreadId() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

ThreadState::ThreadState() : id(NextThreadId()) {}

ThreadState::~ThreadState() {
  for (const auto& [weak, stream] : default_streams_) {
    Captures::All().Abandon(stream);
    if (const auto context = weak.lock()) context->RemoveStream(stream);
  }
}

std::shared_ptr<Stream> ThreadState::DefaultStream(const std::shared_ptr<Context>& context) {
  for (const auto& [weak, stream] : default_streams_) {
    if (weak.lock() == context) return stream;
  }
  auto stream = context->AddStream(/*blocking=*/true);
  if (stream != nullptr) default_streams_.emplace_back(context, stream);
  return stream;
}

// A key and not thread_local: the C library frees the thread-local storage of a library that was loaded at run time on
// whichever thread takes over the stack, which the thread sanitizer reports as a race.
ThreadState& ThisThread() {
  static const pthread_key_t key = [] {
    pthread_key_t made = 0;
    pthread_key_create(&made, [](void* state) { delete static_cast<ThreadState*>(state); });
    return made;
  }();
  auto* state = static_cast<ThreadState*>(pthread_getspecific(key));
  if (state == nullptr) {
    state = new ThreadState;
    pthread_setspecific(key, state);
  }
  return *state;
}

}  // namespace simcuda
