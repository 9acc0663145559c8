// tests/conformance/checks_stream.cc: the order of work, and stream capture.
#include <thread>

#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

// ---- Order. ----

CONFORMANCE_CHECK(StreamOrder, "stream.in-order", "work of one stream runs in order, and asynchronously",
                  "cuda.h [D]") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  SlowWork work(t);
  const CUstream stream = NewStream(t);
  CUresult queried = CUDA_SUCCESS;
  for (int attempt = 0; attempt < 5 && queried == CUDA_SUCCESS; ++attempt) {
    work.Start(stream);
    MUST(cu.MemsetD32Async(memory.address, 1, 1, stream));
    MUST(cu.MemcpyDtoDAsync(memory.address + 64, memory.address, 4, stream));
    MUST(cu.MemsetD32Async(memory.address, 2, 1, stream));
    queried = cu.StreamQuery(stream);
    MUST(cu.StreamSynchronize(stream));
    CODE(cu.StreamQuery(stream), CUDA_SUCCESS);
    t.Equal("the first value, copied", Word(t, memory.address + 64), 1);
    t.Equal("the second value", Word(t, memory.address), 2);
  }
  t.Code("cuStreamQuery with work in flight, in 5 attempts", queried, CUDA_ERROR_NOT_READY);
}

CONFORMANCE_CHECK(StreamsApart, "stream.independent",
                  "a non-blocking stream waits for no other and not for the default", "cuda.h [D]") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  SlowWork work(t);
  const CUstream slow = NewStream(t);
  const CUstream quick = NewStream(t);
  for (int attempt = 0; attempt < 5; ++attempt) {
    work.Start(slow);
    MUST(cu.MemsetD32Async(memory.address, 3, 1, quick));
    MUST(cu.StreamSynchronize(quick));
    t.Equal("a word", Word(t, memory.address), 3);  // through the default stream
    const CUresult still = cu.StreamQuery(slow);
    MUST(cu.StreamSynchronize(slow));
    if (still == CUDA_ERROR_NOT_READY) return;
  }
  t.Fail("in 5 attempts the slow stream was always done first: streams wait for each other, or the work is too short");
}

CONFORMANCE_CHECK(DefaultStream, "stream.default", "the default stream waits for blocking streams, and they for it",
                  "cuda.h [D]") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  SlowWork work(t);
  const CUstream first = NewStream(t, CU_STREAM_DEFAULT);
  const CUstream second = NewStream(t, CU_STREAM_DEFAULT);
  work.Start(first);
  MUST(cu.MemsetD32Async(memory.address, 1, 1, first));
  MUST(cu.MemsetD32Async(memory.address, 2, 1, nullptr));
  MUST(cu.MemcpyDtoDAsync(memory.address + 64, memory.address, 4, nullptr));
  MUST(cu.MemsetD32Async(memory.address, 3, 1, second));
  MUST(cu.StreamSynchronize(second));
  t.Equal("what the default stream saw", Word(t, memory.address + 64), 2);
  t.Equal("the last value", Word(t, memory.address), 3);
}

CONFORMANCE_CHECK(Events, "stream.events", "an event is done with the work before it, and orders other streams",
                  "cuda.h [D]") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  SlowWork work(t);
  const CUstream first = NewStream(t);
  const CUstream second = NewStream(t);
  CUevent event = nullptr;
  MUST(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CODE(cu.EventQuery(event), CUDA_SUCCESS);  // never recorded
  CUresult queried = CUDA_SUCCESS;
  for (std::uint32_t attempt = 1; attempt <= 5 && queried == CUDA_SUCCESS; ++attempt) {
    work.Start(first);
    MUST(cu.MemsetD32Async(memory.address, attempt, 1, first));
    MUST(cu.EventRecord(event, first));
    queried = cu.EventQuery(event);
    MUST(cu.StreamWaitEvent(second, event, 0));
    MUST(cu.MemcpyDtoDAsync(memory.address + 64, memory.address, 4, second));
    MUST(cu.StreamSynchronize(second));
    t.Equal("what the second stream saw", Word(t, memory.address + 64), attempt);
    MUST(cu.EventSynchronize(event));
    CODE(cu.EventQuery(event), CUDA_SUCCESS);
  }
  t.Code("cuEventQuery with work in flight, in 5 attempts", queried, CUDA_ERROR_NOT_READY);
  MUST(cu.EventDestroy(event));
}

CONFORMANCE_CHECK(CtxSynchronizeAll, "stream.context-synchronize", "cuCtxSynchronize waits for every stream",
                  "cuda.h [D]") {
  InitWithContext(t);
  SlowWork work(t);
  const CUstream one = NewStream(t);
  const CUstream two = NewStream(t, CU_STREAM_DEFAULT);
  work.Start(one);
  work.Start(two);
  MUST(cu.CtxSynchronize());
  CODE(cu.StreamQuery(one), CUDA_SUCCESS);
  CODE(cu.StreamQuery(two), CUDA_SUCCESS);
}

CONFORMANCE_CHECK(CurrentContext, "context.per-thread", "the current context is each thread's own, and a stack",
                  "cuda.h [D]") {
  InitWithContext(t);
  CUcontext mine = nullptr;
  MUST(cu.CtxGetCurrent(&mine));
  TRUE(mine != nullptr);
  CUcontext other = mine;
  std::thread([&] { cu.CtxGetCurrent(&other); }).join();
  TRUE(other == nullptr);
  MUST(cu.CtxPushCurrent(mine));
  CUcontext popped = nullptr;
  MUST(cu.CtxPopCurrent(&popped));
  TRUE(popped == mine);
  CUdevice device = -1;
  MUST(cu.CtxGetDevice(&device));
  t.Equal("its device", static_cast<std::uint64_t>(device), static_cast<std::uint64_t>(t.device()));
  unsigned int flags = 0;
  int active = 0;
  MUST(cu.PrimaryCtxGetState(t.device(), &flags, &active));
  t.Equal("active", static_cast<std::uint64_t>(active), 1);
  MUST(cu.PrimaryCtxRelease(t.device()));
  MUST(cu.PrimaryCtxGetState(t.device(), &flags, &active));
  t.Equal("active after its last release", static_cast<std::uint64_t>(active), 0);
}

// ---- Capture. ----

void NeedCapture(Check& t) {
  NEED(StreamBeginCapture);
  NEED(StreamEndCapture);
  NEED(StreamIsCapturing);
  NEED(ThreadExchangeCaptureMode);
  NEED(GraphDestroy);
  InitWithContext(t);
}

CUstreamCaptureStatus StatusOf(Check& t, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  MUST(cu.StreamIsCapturing(stream, &status));
  return status;
}

void EndWell(Check& t, CUstream stream) {
  void* graph = nullptr;
  MUST(cu.StreamEndCapture(stream, &graph));
  TRUE(graph != nullptr);
  MUST(cu.GraphDestroy(graph));
  t.Equal("the status afterwards", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

void EndInvalidated(Check& t, CUstream stream) {
  t.Equal("the status", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  void* graph = &t;
  CODE(cu.StreamEndCapture(stream, &graph), kStreamCaptureInvalidated);
  TRUE(graph == nullptr);
  t.Equal("the status afterwards", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_NONE);
}

CONFORMANCE_CHECK(CaptureMode, "capture.thread-mode", "a thread's capture mode is global at first and is exchanged",
                  "cuda.h [D]") {
  NEED(ThreadExchangeCaptureMode);
  InitWithContext(t);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  MUST(cu.ThreadExchangeCaptureMode(&mode));
  t.Equal("the first mode", mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  MUST(cu.ThreadExchangeCaptureMode(&mode));
  t.Equal("what was set", mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureMode others = CU_STREAM_CAPTURE_MODE_RELAXED;
  mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  MUST(cu.ThreadExchangeCaptureMode(&mode));
  std::thread([&] { cu.ThreadExchangeCaptureMode(&others); }).join();
  t.Equal("another thread's first mode", others, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CONFORMANCE_CHECK(CaptureStatus, "capture.status", "a stream captures from its begin to its end", "cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  t.Equal("before", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_NONE);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  t.Equal("during", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EndWell(t, stream);
  void* graph = nullptr;
  REFUSED("an end without a begin", cu.StreamEndCapture(stream, &graph), static_cast<CUresult>(401));
}

CONFORMANCE_CHECK(CaptureDoesNotRun, "capture.work-waits", "captured work does not run", "cuda.h [D]") {
  NeedCapture(t);
  const Memory memory = CreateMapped(t, Unit(t));
  Fill(t, memory.address, 4, 5);
  const CUstream stream = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cu.MemsetD32Async(memory.address, 6, 1, stream));
  EndWell(t, stream);
  MUST(cu.CtxSynchronize());
  t.Equal("a word", Word(t, memory.address), 5);
}

CONFORMANCE_CHECK(CaptureVmm, "capture.vmm-calls-allowed",
                  "VMM calls are legal during a global capture and leave it as it is",
                  "VMM_DESIGN [D']; older drivers U") {
  NeedCapture(t);
  const std::uint64_t unit = Unit(t);
  const CUstream stream = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const Memory memory = CreateMapped(t, unit);
  const gpumem::UniqueFd fd = Export(t, memory.handle);
  const Memory alias = MapHandle(t, Import(t, fd.get()), unit);
  UnmapAndFree(t, alias);
  UnmapAndFree(t, memory);
  MUST(cu.MemRelease(alias.handle));
  MUST(cu.MemRelease(memory.handle));
  t.Equal("the status", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EndWell(t, stream);
}

CONFORMANCE_CHECK(CaptureSync, "capture.stream-sync-invalidates",
                  "cuStreamSynchronize of another stream is refused and invalidates a global capture",
                  "VMM_DESIGN [D'], cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  const CUstream other = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CODE(cu.StreamSynchronize(other), kStreamCaptureUnsupported);
  EndInvalidated(t, stream);
  MUST(cu.StreamSynchronize(other));
}

CONFORMANCE_CHECK(CaptureSyncThread, "capture.other-thread-invalidates",
                  "so does one on another thread, which knows of no capture", "cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  const CUstream other = NewStream(t);
  CUcontext context = nullptr;
  MUST(cu.CtxGetCurrent(&context));
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUresult got = CUDA_SUCCESS;
  std::thread([&] {
    cu.CtxSetCurrent(context);
    got = cu.StreamSynchronize(other);
  }).join();
  CODE(got, kStreamCaptureUnsupported);
  EndInvalidated(t, stream);
}

CONFORMANCE_CHECK(CaptureRelaxed, "capture.relaxed-thread", "a thread in relaxed mode may synchronise other streams",
                  "cuda.h [D], VMM_DESIGN [D']") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  const CUstream other = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  MUST(cu.ThreadExchangeCaptureMode(&mode));
  MUST(cu.StreamSynchronize(other));
  MUST(cu.ThreadExchangeCaptureMode(&mode));
  t.Equal("the status", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EndWell(t, stream);
}

CONFORMANCE_CHECK(CaptureThreadLocal, "capture.thread-local", "a thread-local capture concerns its own thread alone",
                  "cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  const CUstream other = NewStream(t);
  CUcontext context = nullptr;
  MUST(cu.CtxGetCurrent(&context));
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUresult got = CUDA_ERROR_UNKNOWN;
  std::thread([&] {
    cu.CtxSetCurrent(context);
    got = cu.StreamSynchronize(other);
  }).join();
  CODE(got, CUDA_SUCCESS);
  t.Equal("the status", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CODE(cu.StreamSynchronize(other), kStreamCaptureUnsupported);
  EndInvalidated(t, stream);
}

CONFORMANCE_CHECK(CaptureRelaxedCapture, "capture.relaxed-capture", "a relaxed capture forbids nothing to others",
                  "cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  const CUstream other = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cu.StreamSynchronize(other));
  t.Equal("the status", StatusOf(t, stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EndWell(t, stream);
}

CONFORMANCE_CHECK(CaptureSyncItself, "capture.sync-itself", "the capturing stream itself can never be synchronised",
                  "cuda.h [D]") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  REFUSED("cuStreamSynchronize", cu.StreamSynchronize(stream), kStreamCaptureUnsupported);
  EndInvalidated(t, stream);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  REFUSED("cuStreamQuery", cu.StreamQuery(stream), kStreamCaptureUnsupported);
  void* graph = nullptr;
  cu.StreamEndCapture(stream, &graph);
}

CONFORMANCE_CHECK(CaptureCtxSync, "capture.context-sync", "cuCtxSynchronize during a capture is refused",
                  "cuda.h [D]; the code, and what becomes of the capture, are U") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  REFUSED("cuCtxSynchronize", cu.CtxSynchronize(), kStreamCaptureUnsupported);
  t.Reading("the capture", StatusOf(t, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? "invalidated" : "goes on",
            "invalidated");
}

CONFORMANCE_CHECK(CaptureAlloc, "capture.alloc-invalidates", "cuMemAlloc during a global capture invalidates it",
                  "cuda.h [D] 'cudaMalloc-like'") {
  NeedCapture(t);
  const CUstream stream = NewStream(t);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr address = 0;
  CODE(cu.MemAlloc(&address, 4096), kStreamCaptureUnsupported);
  EndInvalidated(t, stream);
}

CONFORMANCE_CHECK(CaptureImplicit, "capture.implicit", "work in the default stream while a blocking stream captures",
                  "cuda.h [D]: 906, and the capture is invalidated") {
  NeedCapture(t);
  const Memory memory = CreateMapped(t, Unit(t));
  const CUstream stream = NewStream(t, CU_STREAM_DEFAULT);
  MUST(cu.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  REFUSED("cuMemsetD32Async in the default stream", cu.MemsetD32Async(memory.address, 1, 1, nullptr),
          kStreamCaptureImplicit);
  EndInvalidated(t, stream);
}

}  // namespace
}  // namespace conformance
