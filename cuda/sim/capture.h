// cuda/sim/capture.h: stream capture: which streams record their work instead of running it, and which calls that
// forbids.
//
// A capture begins in one stream (its origin), spreads to streams that wait for an event recorded in it, and ends in
// its origin. A call that breaks a rule is refused and invalidates the capture: its streams refuse all work until the
// origin's cuStreamEndCapture. The rules are those of cuStreamBeginCapture and cuThreadExchangeStreamCaptureMode; where
// they are silent, the call is refused.
#ifndef GPUMEM_CUDA_SIM_CAPTURE_H_
#define GPUMEM_CUDA_SIM_CAPTURE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "cuda/sim/graph.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"

namespace simcuda {

// One capture. Its fields belong to Captures and its lock.
struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::uint64_t thread = 0;  // that began it
  std::shared_ptr<Stream> origin;
  std::shared_ptr<Graph> graph;
  bool invalidated = false;
  bool ended = false;
};

// All captures of the process. Thread-safe.
class Captures {
 public:
  static Captures& All();

  CUresult Begin(const Call& call, CUstreamCaptureMode mode);
  // `*graph` is null when the capture gave none.
  CUresult End(const Call& call, std::shared_ptr<const Graph>* graph);
  // Of a stream that is the default one while a blocking stream captures, the status is not known: an error that
  // invalidates nothing.
  CUresult Status(const Call& call, CUstreamCaptureStatus* status, std::uint64_t* id);
  // The stream is going away with its thread: a capture that began in it is over.
  void Abandon(const std::shared_ptr<Stream>& stream);

  // For a call that may be unsafe (see cuThreadExchangeStreamCaptureMode) in this thread, with its present mode.
  CUresult CheckUnsafe();
  // For a call that waits for the call's stream or asks how far it is.
  CUresult CheckWait(const Call& call);
  // For a call that waits for a whole context, or ends it.
  CUresult CheckWaitAll(const std::shared_ptr<Context>& context);
  // For any other call that a capturing stream cannot take.
  CUresult CheckNotCapturing(const Call& call);
  // For a call that waits for an event or asks about it: refused when it was last recorded in a capture.
  CUresult CheckEvent(Event& event);

  // Puts the work into the call's stream, or, when that captures, into its graph.
  CUresult Submit(const Call& call, Submission submission);
  CUresult RecordEvent(const Call& call, const std::shared_ptr<Event>& event, bool external);
  CUresult WaitEvent(const Call& call, const std::shared_ptr<Event>& event, bool external);

 private:
  // One stream's part in a capture.
  struct Member {
    std::shared_ptr<Capture> capture;
    std::shared_ptr<Context> context;
    std::vector<std::size_t> tail;  // the nodes that its next work comes after
  };

  Member* Find(const Call& call) GPUMEM_REQUIRES(mu_);
  // The refusals that hold for every use of the call's stream.
  CUresult CheckUse(const Call& call) GPUMEM_REQUIRES(mu_);
  CUresult CheckUnsafeLocked() GPUMEM_REQUIRES(mu_);
  void Add(Member* member, Submission submission) GPUMEM_REQUIRES(mu_);
  CUresult JoinLocked(const Call& call, const CapturedPoint& point) GPUMEM_REQUIRES(mu_);
  void Remove(const std::shared_ptr<Capture>& capture) GPUMEM_REQUIRES(mu_);

  gpumem::Mutex mu_;
  std::uint64_t last_id_ GPUMEM_GUARDED_BY(mu_) = 0;
  std::map<std::shared_ptr<Stream>, Member> members_ GPUMEM_GUARDED_BY(mu_);
};

// Whether a virtual memory management call counts as unsafe during a capture. The driver says that none does; one place
// to change if a driver is found to differ.
bool VmmCallsBreakCapture();
// What every virtual memory management call asks first.
CUresult CheckVmmCall();

// Captures::Submit of plain work.
CUresult Submit(const Call& call, std::function<CUresult()> work);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_CAPTURE_H_
