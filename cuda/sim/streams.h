// cuda/sim/streams.h: contexts, streams and events: work in order, on a worker thread for each stream.
#ifndef GPUMEM_CUDA_SIM_STREAMS_H_
#define GPUMEM_CUDA_SIM_STREAMS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cuda/cuda_api.h"
#include "cuda/sim/process.h"
#include "cuda/sim/registry.h"

namespace simcuda {

class Stream;

// A point in a stream: done when everything up to that piece of work has run. Empty: always done.
struct Mark {
  std::shared_ptr<Stream> stream;
  std::uint64_t ticket = 0;

  bool Done() const;
  void Wait() const;
};

// Runs its work in order on a thread of its own, which ends after Close when the work is done. Thread-safe.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // `blocking`: ordered against the context's default stream, as the driver does without CU_STREAM_NON_BLOCKING.
  // Null when the system gives no thread.
  static std::shared_ptr<Stream> Start(bool blocking);

  // Runs `work` after everything enqueued so far and after `after`.
  std::uint64_t Enqueue(std::vector<Mark> after, std::function<void()> work);
  void Close();

  bool blocking() const { return blocking_; }
  Mark Now();
  bool Done(std::uint64_t ticket);
  void Wait(std::uint64_t ticket);

 private:
  explicit Stream(bool blocking) : blocking_(blocking) {}
  void Run();

  struct Work {
    std::vector<Mark> after;
    std::function<void()> run;
  };
  const bool blocking_;
  gpumem::Mutex mu_;
  gpumem::CondVar changed_;
  std::deque<Work> queue_ GPUMEM_GUARDED_BY(mu_);
  std::uint64_t enqueued_ GPUMEM_GUARDED_BY(mu_) = 0;
  std::uint64_t completed_ GPUMEM_GUARDED_BY(mu_) = 0;
  bool closed_ GPUMEM_GUARDED_BY(mu_) = false;
};

// One context on one device: its streams, and the rule of the default stream: work in it waits for all earlier work in
// blocking streams, and later work in blocking streams waits for it.
class Context {
 public:
  Context(Process& process, int device, std::unique_ptr<Presence> presence, std::shared_ptr<Stream> default_stream)
      : process_(process),
        device_(device),
        presence_(std::move(presence)),
        default_stream_(std::move(default_stream)) {}

  Process& process() const { return process_; }
  int device() const { return device_; }

  // Null when the system gives no thread.
  std::shared_ptr<Stream> AddStream(bool blocking);
  // Its queued work still runs.
  void RemoveStream(const std::shared_ptr<Stream>& stream);
  const std::shared_ptr<Stream>& default_stream() const { return default_stream_; }

  // Enqueues in the order that the driver promises. `work` is skipped in a process that is poisoned by then; what it
  // returns, when it is not CUDA_SUCCESS, poisons the process.
  Mark Enqueue(const std::shared_ptr<Stream>& stream, std::function<CUresult()> work, std::vector<Mark> after = {});
  // Waits for all work of all streams.
  void Synchronize();
  // Waits, closes the streams, and leaves the device's list of processes.
  void Destroy();

 private:
  Process& process_;
  const int device_;
  gpumem::Mutex mu_;
  std::unique_ptr<Presence> presence_ GPUMEM_GUARDED_BY(mu_);
  const std::shared_ptr<Stream> default_stream_;
  std::vector<std::shared_ptr<Stream>> streams_ GPUMEM_GUARDED_BY(mu_);
};

struct Event {
  gpumem::Mutex mu;
  Mark recorded GPUMEM_GUARDED_BY(mu);
};

// A stream handle's meaning.
struct StreamEntry {
  std::shared_ptr<Context> context;
  std::shared_ptr<Stream> stream;
};

Registry<CUcontext, Context>& Contexts();
Registry<CUstream, StreamEntry>& Streams();
Registry<CUevent, Event>& Events();

// What a call that works on `stream` needs: a working process, this thread's context, and the stream (null: the
// default one). Where the result is not CUDA_SUCCESS nothing else is set.
struct Call {
  Process* process = nullptr;
  std::shared_ptr<Context> context;  // the stream's
  std::shared_ptr<Stream> stream;
};
CUresult EnterContext(Call* call);
CUresult EnterStream(CUstream stream, Call* call);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_STREAMS_H_
