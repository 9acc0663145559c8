// cuda/sim/streams.h: contexts, streams and events: work in order, on a worker thread for each stream.
#ifndef GPUMEM_CUDA_SIM_STREAMS_H_
#define GPUMEM_CUDA_SIM_STREAMS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/process.h"
#include "cuda/sim/registry.h"
#include "cuda/sim/sim_api.h"

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
  static std::shared_ptr<Stream> Start(bool blocking, int priority = 0);

  // Runs `work` after everything enqueued so far and after `after`. After Close it is dropped, and done at once.
  std::uint64_t Enqueue(std::vector<Mark> after, std::function<void()> work);
  void Close();

  bool blocking() const { return blocking_; }
  int priority() const { return priority_; }  // only told: it changes nothing here
  Mark Now();
  bool Done(std::uint64_t ticket);
  void Wait(std::uint64_t ticket);

 private:
  Stream(bool blocking, int priority) : blocking_(blocking), priority_(priority) {}
  void Run();

  struct Work {
    std::vector<Mark> after;
    std::function<void()> run;
  };
  const bool blocking_;
  const int priority_;
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
  Context(Process& process, int device, unsigned flags, std::unique_ptr<Presence> presence,
          std::shared_ptr<Stream> default_stream)
      : process_(process),
        device_(device),
        flags_(flags),
        presence_(std::move(presence)),
        default_stream_(std::move(default_stream)) {}

  Process& process() const { return process_; }
  int device() const { return device_; }
  unsigned flags() const { return flags_; }
  // Its own handle, which is set once, before anybody else has it.
  CUcontext handle() const { return handle_.load(std::memory_order_acquire); }
  void set_handle(CUcontext handle) { handle_.store(handle, std::memory_order_release); }

  // Null when the system gives no thread.
  std::shared_ptr<Stream> AddStream(bool blocking, int priority = 0);
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
  bool destroyed() const { return destroyed_.load(std::memory_order_acquire); }

 private:
  Process& process_;
  const int device_;
  const unsigned flags_;
  std::atomic<CUcontext> handle_{nullptr};
  gpumem::Mutex mu_;
  std::unique_ptr<Presence> presence_ GPUMEM_GUARDED_BY(mu_);
  std::atomic<bool> destroyed_{false};
  const std::shared_ptr<Stream> default_stream_;
  std::vector<std::shared_ptr<Stream>> streams_ GPUMEM_GUARDED_BY(mu_);
};

// When an event's work ran.
class EventTime {
 public:
  void Stamp() { ns_.store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed); }
  std::int64_t ns() const { return ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> ns_{0};
};

struct Capture;  // cuda/sim/capture.h

// A point in a capture; none when `capture` is null.
struct CapturedPoint {
  std::shared_ptr<Capture> capture;
  std::vector<std::size_t> nodes;
};

struct Event {
  Event(std::shared_ptr<Context> in, bool keeps_time) : context(std::move(in)), timed(keeps_time) {}
  const std::shared_ptr<Context> context;
  const bool timed;
  gpumem::Mutex mu;
  Mark recorded GPUMEM_GUARDED_BY(mu);
  std::shared_ptr<EventTime> time GPUMEM_GUARDED_BY(mu);  // null: never recorded
  CapturedPoint captured GPUMEM_GUARDED_BY(mu);           // set: last recorded in a capture
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
// default one). Where the result is not CUDA_SUCCESS nothing else is set. What a capture has against the call is for
// the call to ask (cuda/sim/capture.h).
struct Call {
  Process* process = nullptr;
  std::shared_ptr<Context> context;  // the stream's
  std::shared_ptr<Stream> stream;
};
CUresult EnterContext(Call* call);
CUresult EnterStream(CUstream stream, Call* call);

// The default stream as the entry points ending in _ptds and _ptsz mean it.
inline CUstream PerThread(CUstream stream) {
  return stream != nullptr ? stream : reinterpret_cast<CUstream>(kPerThreadStream);
}

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_STREAMS_H_
