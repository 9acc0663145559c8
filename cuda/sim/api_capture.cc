// cuda/sim/api_capture.cc: stream capture and graphs, as exported.
#include <cstring>
#include <memory>
#include <utility>

#include "cuda/sim/api_call.h"
#include "cuda/sim/capture.h"
#include "cuda/sim/graph.h"
#include "cuda/sim/sim_api.h"
#include "cuda/sim/streams.h"
#include "cuda/sim/thread_state.h"

using simcuda::Call;
using simcuda::Captures;
using simcuda::EnterStream;
using simcuda::Graph;
using simcuda::GraphExec;
using simcuda::GraphExecs;
using simcuda::Graphs;
using simcuda::PerThread;
using simcuda::Process;

// The toolkit's header gives these names the newest ABI; the older ones have functions of their own here.
#undef cuStreamBeginCapture
#undef cuStreamGetCaptureInfo
#undef cuGraphInstantiate

namespace {

bool IsMode(int mode) {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
         mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// `more`: whether the caller wants the graph so far and the nodes that the stream's next work comes after, which the
// simulation has no handles for.
CUresult CaptureInfo(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, bool more) {
  Call call;
  CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (more) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t number = 0;
  result = Captures::All().Status(call, status, &number);
  if (result == CUDA_SUCCESS && id != nullptr && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE) *id = number;
  return result;
}

// Making an executable graph may allocate on the device: as unsafe during a capture as cuMemAlloc.
CUresult Instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  Call call;
  CUresult result = simcuda::EnterContext(&call);
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned long long kAutoFreeOnLaunch = 1;  // there are no allocation nodes: nothing to free
  constexpr unsigned long long kDeviceLaunch = 4;
  constexpr unsigned long long kUseNodePriority = 8;
  if (exec == nullptr || (flags & ~(kAutoFreeOnLaunch | kDeviceLaunch | kUseNodePriority)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((flags & kDeviceLaunch) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  auto found = Graphs().Find(graph);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = Captures::All().CheckUnsafe();
  if (result != CUDA_SUCCESS) return result;
  *exec = GraphExecs().Add(std::make_shared<GraphExec>(std::move(found)));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  SIMCUDA_CALL(cuStreamBeginCapture);
  Call call;
  const CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  return IsMode(mode) ? Captures::All().Begin(call, mode) : CUDA_ERROR_INVALID_VALUE;
}

// The ABI of CUDA 10.0: as the default mode of 10.1.
CUresult cuStreamBeginCapture(CUstream stream) {
  return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  SIMCUDA_CALL(cuStreamEndCapture);
  Call call;
  CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  std::shared_ptr<const Graph> captured;
  result = Captures::All().End(call, &captured);
  if (result == CUDA_SUCCESS) *graph = Graphs().Add(std::move(captured));
  return result;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  SIMCUDA_CALL(cuStreamIsCapturing);
  return CaptureInfo(stream, status, nullptr, false);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id) {
  SIMCUDA_CALL(cuStreamGetCaptureInfo);
  return CaptureInfo(stream, status, id, false);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, size_t* count) {
  SIMCUDA_CALL(cuStreamGetCaptureInfo);
  return CaptureInfo(stream, status, id, graph != nullptr || nodes != nullptr || count != nullptr);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                   const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  SIMCUDA_CALL(cuStreamGetCaptureInfo);
  return CaptureInfo(stream, status, id, graph != nullptr || nodes != nullptr || edges != nullptr || count != nullptr);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIMCUDA_CALL(cuThreadExchangeStreamCaptureMode);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  int number = 0;  // a caller's memory may hold what is no enumerator
  if (mode != nullptr) std::memcpy(&number, mode, sizeof number);
  if (mode == nullptr || !IsMode(number)) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, simcuda::ThisThread().capture_mode);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  SIMCUDA_CALL(cuGraphDestroy);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  return Graphs().Remove(graph) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  SIMCUDA_CALL(cuGraphInstantiateWithFlags);
  return Instantiate(exec, graph, flags);
}

// The ABIs of CUDA 10.0 and 11.0.
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  SIMCUDA_CALL(cuGraphInstantiate);
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) log[0] = 0;
  return Instantiate(exec, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

// A launch that is under way still runs to its end.
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  SIMCUDA_CALL(cuGraphExecDestroy);
  CUresult result = CUDA_SUCCESS;
  if (Process::Enter(&result) == nullptr) return result;
  return GraphExecs().Remove(exec) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A launch is not captured: the simulation has no graphs within graphs.
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  SIMCUDA_CALL(cuGraphLaunch);
  Call call;
  CUresult result = EnterStream(stream, &call);
  if (result != CUDA_SUCCESS) return result;
  const auto found = GraphExecs().Find(exec);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = Captures::All().CheckNotCapturing(call);
  if (result != CUDA_SUCCESS) return result;
  found->Launch(*call.context, call.stream);
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return cuStreamBeginCapture(PerThread(stream)); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return cuStreamBeginCapture_v2(PerThread(stream), mode);
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return cuStreamEndCapture(PerThread(stream), graph);
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return cuStreamIsCapturing(PerThread(stream), status);
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id) {
  return cuStreamGetCaptureInfo(PerThread(stream), status, id);
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                        const CUgraphNode** nodes, size_t* count) {
  return cuStreamGetCaptureInfo_v2(PerThread(stream), status, id, graph, nodes, count);
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, uint64_t* id, CUgraph* graph,
                                        const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count) {
  return cuStreamGetCaptureInfo_v3(PerThread(stream), status, id, graph, nodes, edges, count);
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, PerThread(stream)); }

}  // extern "C"
