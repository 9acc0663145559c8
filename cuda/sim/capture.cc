// cuda/sim/capture.cc: see the header.
#include "cuda/sim/capture.h"

#include <algorithm>
#include <utility>

#include "cuda/sim/breaks.h"
#include "cuda/sim/faults.h"
#include "cuda/sim/thread_state.h"

namespace simcuda {

using gpumem::MutexLock;

namespace {

// Adds the nodes that are not there yet.
void Merge(const std::vector<std::size_t>& from, std::vector<std::size_t>* into) {
  for (const std::size_t node : from) {
    if (std::find(into->begin(), into->end(), node) == into->end()) into->push_back(node);
  }
}

Submission RecordSubmission(const std::shared_ptr<Event>& event) {
  return [event](Context& context, const std::shared_ptr<Stream>& stream, std::vector<Mark> after) {
    auto time = std::make_shared<EventTime>();
    Mark mark = context.Enqueue(
        stream,
        [time] {
          time->Stamp();
          return CUDA_SUCCESS;
        },
        std::move(after));
    const MutexLock lock(&event->mu);
    event->recorded = mark;
    event->time = std::move(time);
    event->captured = CapturedPoint{};
    return mark;
  };
}

// Waits for what the event stands for when the work is submitted.
Submission WaitSubmission(const std::shared_ptr<Event>& event) {
  return [event](Context& context, const std::shared_ptr<Stream>& stream, std::vector<Mark> after) {
    {
      const MutexLock lock(&event->mu);
      after.push_back(event->recorded);
    }
    return context.Enqueue(
        stream, [] { return CUDA_SUCCESS; }, std::move(after));
  };
}

}  // namespace

Captures& Captures::All() {
  static auto* const captures = new Captures;
  return *captures;
}

Captures::Member* Captures::Find(const Call& call) {
  const auto found = members_.find(call.stream);
  return found != members_.end() ? &found->second : nullptr;
}

CUresult Captures::CheckUse(const Call& call) {
  const Member* const member = Find(call);
  if (member != nullptr && member->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (call.stream != call.context->default_stream()) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  for (auto& [stream, other] : members_) {
    if (other.context != call.context || !stream->blocking()) continue;
    if (SIMCUDA_BREAK("capture-implicit-allowed")) continue;
    other.capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult Captures::CheckUnsafeLocked() {
  const ThreadState& thread = ThisThread();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED && !SIMCUDA_BREAK("capture-mode-ignored")) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  for (auto& [stream, member] : members_) {
    Capture& capture = *member.capture;
    const bool forbids = capture.thread == thread.id ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                                     : capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                           thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids && !SIMCUDA_BREAK("capture-always-global")) continue;
    if (SIMCUDA_BREAK("capture-unsafe-allowed")) continue;
    if (!SIMCUDA_BREAK("capture-not-invalidated")) capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult Captures::CheckUnsafe() {
  const MutexLock lock(&mu_);
  return CheckUnsafeLocked();
}

CUresult Captures::CheckWait(const Call& call) {
  const CUresult result = CheckNotCapturing(call);
  return result == CUDA_SUCCESS ? CheckUnsafe() : result;
}

CUresult Captures::CheckWaitAll(const std::shared_ptr<Context>& context) {
  const MutexLock lock(&mu_);
  CUresult result = CUDA_SUCCESS;
  for (auto& [stream, member] : members_) {
    if (member.context != context) continue;
    member.capture->invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result == CUDA_SUCCESS ? CheckUnsafeLocked() : result;
}

CUresult Captures::CheckNotCapturing(const Call& call) {
  const MutexLock lock(&mu_);
  const CUresult result = CheckUse(call);
  Member* const member = Find(call);
  if (result != CUDA_SUCCESS || member == nullptr) return result;
  if (SIMCUDA_BREAK("capture-wait-allowed")) return CUDA_SUCCESS;
  member->capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::CheckEvent(Event& event) {
  std::shared_ptr<Capture> capture;
  {
    const MutexLock lock(&event.mu);
    capture = event.captured.capture;
  }
  const MutexLock lock(&mu_);
  if (capture == nullptr) return CheckUnsafeLocked();
  capture->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult Captures::Begin(const Call& call, CUstreamCaptureMode mode) {
  const MutexLock lock(&mu_);
  if (call.stream == call.context->default_stream()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (Find(call) != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->id = ++last_id_;
  capture->mode = mode;
  capture->thread = ThisThread().id;
  capture->origin = call.stream;
  capture->graph = std::make_shared<Graph>();
  members_[call.stream] = Member{std::move(capture), call.context, {}};
  return CUDA_SUCCESS;
}

CUresult Captures::End(const Call& call, std::shared_ptr<const Graph>* graph) {
  const MutexLock lock(&mu_);
  const Member* const member = Find(call);
  if (member == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = member->capture;
  if (capture->origin != call.stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != ThisThread().id) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const std::vector<std::size_t> ends = member->tail;
  const bool joined = std::all_of(members_.begin(), members_.end(), [&](const auto& other) {
    return other.second.capture != capture || capture->graph->Reaches(ends, other.second.tail);
  });
  const std::shared_ptr<Graph> made = capture->graph;
  Remove(capture);
  if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = made;
  return CUDA_SUCCESS;
}

CUresult Captures::Status(const Call& call, CUstreamCaptureStatus* status, std::uint64_t* id) {
  const MutexLock lock(&mu_);
  if (call.stream == call.context->default_stream()) {
    for (const auto& [stream, member] : members_) {
      if (member.context == call.context && stream->blocking()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  const Member* const member = Find(call);
  if (member == nullptr) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  *status = member->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  *id = member->capture->id;
  return CUDA_SUCCESS;
}

void Captures::Abandon(const std::shared_ptr<Stream>& stream) {
  const MutexLock lock(&mu_);
  const auto found = members_.find(stream);
  if (found == members_.end()) return;
  const std::shared_ptr<Capture> capture = found->second.capture;
  capture->invalidated = true;
  members_.erase(found);
  if (capture->origin == stream) Remove(capture);
}

void Captures::Remove(const std::shared_ptr<Capture>& capture) {
  for (auto at = members_.begin(); at != members_.end();) {
    at = at->second.capture == capture ? members_.erase(at) : std::next(at);
  }
  capture->ended = true;
  capture->graph = nullptr;
}

void Captures::Add(Member* member, Submission submission) {
  std::vector<GraphNode>& nodes = member->capture->graph->nodes;
  nodes.push_back(GraphNode{std::move(submission), std::move(member->tail)});
  member->tail = {nodes.size() - 1};
}

CUresult Captures::Submit(const Call& call, Submission submission) {
  {
    const MutexLock lock(&mu_);
    if (const CUresult result = CheckUse(call); result != CUDA_SUCCESS) return result;
    if (Member* const member = Find(call); member != nullptr && !SIMCUDA_BREAK("capture-runs-work")) {
      Add(member, std::move(submission));
      return CUDA_SUCCESS;
    }
  }
  submission(*call.context, call.stream, {});
  return CUDA_SUCCESS;
}

CUresult Captures::RecordEvent(const Call& call, const std::shared_ptr<Event>& event, bool external) {
  {
    const MutexLock lock(&mu_);
    if (const CUresult result = CheckUse(call); result != CUDA_SUCCESS) return result;
    Member* const member = Find(call);
    if (external && member == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (member != nullptr) {
      if (external) {
        Add(member, RecordSubmission(event));
      } else {
        const MutexLock event_lock(&event->mu);
        event->captured = CapturedPoint{member->capture, member->tail};
      }
      return CUDA_SUCCESS;
    }
  }
  RecordSubmission(event)(*call.context, call.stream, {});
  return CUDA_SUCCESS;
}

CUresult Captures::WaitEvent(const Call& call, const std::shared_ptr<Event>& event, bool external) {
  CapturedPoint point;
  {
    const MutexLock lock(&event->mu);
    point = event->captured;
  }
  {
    const MutexLock lock(&mu_);
    if (const CUresult result = CheckUse(call); result != CUDA_SUCCESS) return result;
    Member* const member = Find(call);
    if (external) {
      if (member == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (point.capture != nullptr) {
        member->capture->invalidated = true;
        return CUDA_ERROR_CAPTURED_EVENT;
      }
      Add(member, WaitSubmission(event));
      return CUDA_SUCCESS;
    }
    if (point.capture != nullptr || member != nullptr) return JoinLocked(call, point);
  }
  WaitSubmission(event)(*call.context, call.stream, {});
  return CUDA_SUCCESS;
}

// The call's stream waits for `point`, where at least one of the two is part of a capture.
CUresult Captures::JoinLocked(const Call& call, const CapturedPoint& point) {
  Member* const member = Find(call);
  if (member == nullptr) {
    if (point.capture->ended) return CUDA_ERROR_CAPTURED_EVENT;
    if (point.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (call.stream == call.context->default_stream()) {  // it cannot be captured
      point.capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    members_[call.stream] = Member{point.capture, call.context, point.nodes};
    return CUDA_SUCCESS;
  }
  if (member->capture == point.capture) {
    Merge(point.nodes, &member->tail);
    return CUDA_SUCCESS;
  }
  member->capture->invalidated = true;
  // A wait for work outside the capture, which a launch of the graph could not repeat.
  if (point.capture == nullptr || point.capture->ended) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  point.capture->invalidated = true;
  return CUDA_ERROR_STREAM_CAPTURE_MERGE;
}

bool VmmCallsBreakCapture() { return AnswerTo(Question::kCaptureVmm) != 0 || SIMCUDA_BREAK("capture-forbids-vmm"); }

CUresult CheckVmmCall() { return VmmCallsBreakCapture() ? Captures::All().CheckUnsafe() : CUDA_SUCCESS; }

CUresult Submit(const Call& call, std::function<CUresult()> work) {
  return Captures::All().Submit(
      call, [work = std::move(work)](Context& context, const std::shared_ptr<Stream>& stream, std::vector<Mark> after) {
        return context.Enqueue(stream, work, std::move(after));
      });
}

}  // namespace simcuda
