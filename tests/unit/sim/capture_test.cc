// Stream capture: work that is recorded and not run, the graphs that come of it, and what a capture forbids.
#include <functional>
#include <thread>
#include <utility>

#include "cuda/sim/sim_api.h"
#include "tests/unit/sim/own_kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

class CaptureTest : public MachineTest {};

constexpr CUstreamCaptureMode kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr CUstreamCaptureMode kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr CUstreamCaptureMode kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

struct CaptureApi {
  const Gpu& gpu;
  CUresult (*begin)(CUstream, CUstreamCaptureMode) = Entry<CUstream, CUstreamCaptureMode>(gpu,
                                                                                          "cuStreamBeginCapture_v2");
  CUresult (*end)(CUstream, CUgraph*) = Entry<CUstream, CUgraph*>(gpu, "cuStreamEndCapture");
  CUresult (*instantiate)(CUgraphExec*, CUgraph, unsigned long long) =
      Entry<CUgraphExec*, CUgraph, unsigned long long>(gpu, "cuGraphInstantiateWithFlags");
  CUresult (*launch)(CUgraphExec, CUstream) = Entry<CUgraphExec, CUstream>(gpu, "cuGraphLaunch");
  CUresult (*destroy)(CUgraph) = Entry<CUgraph>(gpu, "cuGraphDestroy");
  CUresult (*destroy_exec)(CUgraphExec) = Entry<CUgraphExec>(gpu, "cuGraphExecDestroy");
  CUresult (*record_with_flags)(CUevent, CUstream,
                                unsigned) = Entry<CUevent, CUstream, unsigned>(gpu, "cuEventRecordWithFlags");

  explicit CaptureApi(const Gpu& of) : gpu(of) {}

  CUstreamCaptureStatus Status(CUstream stream) const {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(gpu->StreamIsCapturing(stream, &status), CUDA_SUCCESS);
    return status;
  }
  // Ends a capture that gives a graph, and makes it launchable.
  CUgraphExec EndAndInstantiate(CUstream stream) const {
    CUgraph graph = nullptr;
    EXPECT_EQ(end(stream, &graph), CUDA_SUCCESS);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(instantiate(&exec, graph, 0), CUDA_SUCCESS);
    EXPECT_EQ(destroy(graph), CUDA_SUCCESS);  // the executable one does not need it
    return exec;
  }
  void SetMode(CUstreamCaptureMode mode) const { EXPECT_EQ(gpu->ThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS); }
  CUevent NewEvent() const {
    CUevent event = nullptr;
    EXPECT_EQ(gpu->EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return event;
  }
  // The capture is broken: its stream refuses work, its end gives no graph, and then all is well again.
  void ExpectBroken(CUstream stream, CUdeviceptr address) const {
    EXPECT_EQ(Status(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EXPECT_EQ(gpu->MemsetD32Async(address, 1, 1, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUgraph graph = reinterpret_cast<CUgraph>(std::uintptr_t{1});
    EXPECT_EQ(end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(Status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(gpu->MemsetD32Async(address, 1, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
  }
};

TEST_F(CaptureTest, CapturedWorkRunsWhenTheGraphIsLaunchedAndEachTime) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream stream = NewStream(gpu);
    std::uint32_t source = 10;
    std::uint32_t seen = 0;
    CUdeviceptr sum_at = at + 4096;
    std::uint8_t a = 1;
    std::uint16_t b[2] = {20, 300};
    void* parameters[] = {&sum_at, &a, b};
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(api.Status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(gpu->MemsetD32Async(at, 7, 2, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyHtoDAsync(at, &source, 4, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoDAsync(at + 64, at, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->LaunchKernel(own.add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoHAsync(&seen, sum_at, 4, stream), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(stream);
    EXPECT_EQ(api.Status(stream), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at + 64), 0u);  // nothing ran
    a = 99;                             // a launch's parameters are copies
    for (source = 100; source < 103; ++source) {
      EXPECT_EQ(api.launch(exec, stream), CUDA_SUCCESS);
      EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
      EXPECT_EQ(Word(gpu, at + 64), source);  // the source was read by the launch
      EXPECT_EQ(Word(gpu, at + 68), 7u);
      EXPECT_EQ(seen, 1u + 20 + 300 + 1 + 1);
      seen = 0;
    }
    EXPECT_EQ(api.launch(exec, nullptr), CUDA_SUCCESS);  // also into another stream
    EXPECT_EQ(api.destroy_exec(exec), CUDA_SUCCESS);     // while it runs
    EXPECT_EQ(gpu->StreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(seen, 1u + 20 + 300 + 1 + 1);
    EXPECT_EQ(api.destroy_exec(exec), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.launch(exec, stream), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(CaptureTest, OneGraphsLaunchesNeverOverlap) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    OwnKernels own(gpu);
    const CUstream stream = NewStream(gpu);
    const CUstream other = NewStream(gpu);
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(stream);
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    const CUgraphExec empty = api.EndAndInstantiate(stream);
    EXPECT_EQ(api.launch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(api.launch(exec, other), CUDA_SUCCESS);
    EXPECT_EQ(api.launch(empty, other), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamQuery(other), CUDA_ERROR_NOT_READY);
    ::usleep(20000);  // for what does not wait, to be early
    EXPECT_LE(g_started, 1);
    g_go = true;
    EXPECT_EQ(gpu->StreamSynchronize(other), CUDA_SUCCESS);
    EXPECT_EQ(g_ran, 2);
  });
}

TEST_F(CaptureTest, AStreamThatWaitsForACapturedEventJoinsAndMustRejoin) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream origin = NewStream(gpu);
    const CUstream fork = NewStream(gpu, CU_STREAM_DEFAULT);
    const CUevent forked = api.NewEvent();
    const CUevent joined = api.NewEvent();
    const auto capture_fork = [&] {
      ASSERT_EQ(api.begin(origin, kGlobal), CUDA_SUCCESS);
      EXPECT_EQ(gpu->MemsetD32Async(at, 1, 1, origin), CUDA_SUCCESS);
      EXPECT_EQ(gpu->EventRecord(forked, origin), CUDA_SUCCESS);
      EXPECT_EQ(gpu->StreamWaitEvent(fork, forked, 0), CUDA_SUCCESS);
      EXPECT_EQ(api.Status(fork), CU_STREAM_CAPTURE_STATUS_ACTIVE);
      EXPECT_EQ(gpu->MemcpyDtoDAsync(at + 64, at, 4, fork), CUDA_SUCCESS);
    };
    capture_fork();
    EXPECT_EQ(gpu->EventRecord(joined, fork), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(origin, joined, 0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoDAsync(at + 128, at + 64, 4, origin), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(origin);
    EXPECT_EQ(api.Status(fork), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(api.launch(exec, origin), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(origin), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at + 128), 1u);

    CUgraph graph = nullptr;
    capture_fork();  // and no join
    EXPECT_EQ(api.end(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(api.Status(fork), CU_STREAM_CAPTURE_STATUS_NONE);
    capture_fork();
    EXPECT_EQ(gpu->EventRecord(joined, fork), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(origin, joined, 0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(at + 64, 3, 1, fork), CUDA_SUCCESS);  // more work after the join
    EXPECT_EQ(api.end(origin, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    capture_fork();
    EXPECT_EQ(api.end(fork, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    api.ExpectBroken(origin, at);
  });
}

TEST_F(CaptureTest, UnsafeCallsAreRefusedAndBreakTheCapture) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream stream = NewStream(gpu);
    const CUstream other = NewStream(gpu);
    const CUevent event = api.NewEvent();
    EXPECT_EQ(gpu->EventRecord(event, other), CUDA_SUCCESS);
    const auto alloc = Entry<CUdeviceptr*, size_t>(gpu, "cuMemAlloc_v2");
    const auto free = Entry<CUdeviceptr>(gpu, "cuMemFree_v2");
    const auto host_register = Entry<void*, size_t, unsigned>(gpu, "cuMemHostRegister_v2");
    const auto host_unregister = Entry<void*>(gpu, "cuMemHostUnregister");
    ASSERT_EQ(api.begin(stream, kRelaxed), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    ASSERT_EQ(api.end(stream, &graph), CUDA_SUCCESS);
    CUdeviceptr plain = 0;
    ASSERT_EQ(alloc(&plain, 64), CUDA_SUCCESS);
    void* pinned = nullptr;
    ASSERT_EQ(gpu->MemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
    std::uint32_t word = 0;
    CUdeviceptr more = 0;
    void* more_pinned = nullptr;
    CUgraphExec exec = nullptr;
    CUmodule module = nullptr;
    const std::pair<const char*, std::function<CUresult()>> calls[] = {
        {"cuMemAlloc", [&] { return alloc(&more, 64); }},
        {"cuMemHostAlloc", [&] { return gpu->MemHostAlloc(&more_pinned, 64, 0); }},
        {"cuMemHostRegister", [&] { return host_register(&word, 4, 0); }},
        {"cuMemHostUnregister", [&] { return host_unregister(&word); }},
        {"cuStreamSynchronize", [&] { return gpu->StreamSynchronize(other); }},
        {"cuStreamQuery", [&] { return gpu->StreamQuery(other); }},
        {"cuEventQuery", [&] { return gpu->EventQuery(event); }},
        {"cuEventSynchronize", [&] { return gpu->EventSynchronize(event); }},
        {"cuMemcpyHtoD", [&] { return gpu->MemcpyHtoD(at, &word, 4); }},
        {"cuMemcpyDtoH", [&] { return gpu->MemcpyDtoH(&word, at, 4); }},
        {"cuMemcpyDtoD", [&] { return gpu->MemcpyDtoD(at + 8, at, 4); }},
        {"cuMemsetD8", [&] { return gpu->MemsetD8(at, 1, 4); }},
        {"cuMemsetD32", [&] { return gpu->MemsetD32(at, 1, 1); }},
        {"cuGraphInstantiate", [&] { return api.instantiate(&exec, graph, 0); }},
        {"cuModuleLoadData", [&] { return gpu->ModuleLoadData(&module, kOwnPtx); }},
        {"cuMemFreeHost", [&] { return gpu->MemFreeHost(pinned); }},
        {"cuMemFree", [&] { return free(plain); }},
    };
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(name);
      for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal}) {
        ASSERT_EQ(api.begin(stream, mode), CUDA_SUCCESS);
        EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        api.ExpectBroken(stream, at);
      }
      // A relaxed capture, or a relaxed thread, forbids none of them.
      ASSERT_EQ(api.begin(stream, kRelaxed), CUDA_SUCCESS);
      EXPECT_NE(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      EXPECT_EQ(api.Status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
      ASSERT_EQ(api.end(stream, &graph), CUDA_SUCCESS);
      ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
      api.SetMode(kRelaxed);
      EXPECT_NE(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      api.SetMode(kGlobal);
      EXPECT_EQ(api.Status(stream), CU_STREAM_CAPTURE_STATUS_ACTIVE);
      ASSERT_EQ(api.end(stream, &graph), CUDA_SUCCESS);
    }
  });
}

TEST_F(CaptureTest, WhatForbidsUnsafeCallsInAnotherThread) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream stream = NewStream(gpu);
    const CUstream other = NewStream(gpu);
    // The result of an unsafe call in a thread of the mode, and whether the capture is whole after it.
    const auto expect = [&](CUstreamCaptureMode captured, CUstreamCaptureMode thread_mode, bool allowed) {
      SCOPED_TRACE(testing::Message() << "capture " << captured << ", thread " << thread_mode);
      ASSERT_EQ(api.begin(stream, captured), CUDA_SUCCESS);
      std::thread([&] {
        EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
        api.SetMode(thread_mode);
        EXPECT_EQ(gpu->StreamSynchronize(other), allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      }).join();
      CUgraph graph = nullptr;
      EXPECT_EQ(api.end(stream, &graph), allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    };
    expect(kGlobal, kGlobal, false);
    expect(kGlobal, kThreadLocal, true);
    expect(kGlobal, kRelaxed, true);
    expect(kThreadLocal, kGlobal, true);
    expect(kRelaxed, kGlobal, true);

    // One's own capture forbids them whatever the thread's mode but the relaxed one.
    ASSERT_EQ(api.begin(stream, kThreadLocal), CUDA_SUCCESS);
    api.SetMode(kThreadLocal);
    EXPECT_EQ(gpu->StreamSynchronize(other), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    api.SetMode(kGlobal);
    api.ExpectBroken(stream, mapped.address());
    CUstreamCaptureMode bad = static_cast<CUstreamCaptureMode>(99);
    EXPECT_EQ(gpu->ThreadExchangeStreamCaptureMode(&bad), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->ThreadExchangeStreamCaptureMode(nullptr), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(CaptureTest, WhatCaptureCannotTakeIsRefusedInEveryMode) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream stream = NewStream(gpu);
    const CUevent event = api.NewEvent();
    ASSERT_EQ(api.begin(stream, kRelaxed), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(stream);
    api.SetMode(kRelaxed);
    const std::pair<CUresult, std::function<CUresult()>> calls[] = {
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return gpu->StreamSynchronize(stream); }},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return gpu->StreamQuery(stream); }},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return gpu->CtxSynchronize(); }},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return gpu->StreamDestroy(stream); }},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return gpu->DevicePrimaryCtxRelease(0); }},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, [&] { return api.launch(exec, stream); }},
        {CUDA_ERROR_CAPTURED_EVENT,
         [&] {
           EXPECT_EQ(gpu->EventRecord(event, stream), CUDA_SUCCESS);
           return gpu->EventQuery(event);
         }},
        {CUDA_ERROR_CAPTURED_EVENT,
         [&] {
           EXPECT_EQ(gpu->EventRecord(event, stream), CUDA_SUCCESS);
           return gpu->EventSynchronize(event);
         }},
    };
    int number = 0;
    for (const auto& [expected, call] : calls) {
      SCOPED_TRACE(number++);
      ASSERT_EQ(api.begin(stream, kRelaxed), CUDA_SUCCESS);
      EXPECT_EQ(call(), expected);
      api.ExpectBroken(stream, mapped.address());
    }
    // An event that was last recorded in a capture has no state of its own also when that is over, until it is recorded
    // anew.
    EXPECT_EQ(gpu->EventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(gpu->StreamWaitEvent(stream, event, 0), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(gpu->EventRecord(event, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventSynchronize(event), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamDestroy(stream), CUDA_SUCCESS);
  });
}

TEST_F(CaptureTest, TheDefaultStreamIsOfNoUseBesideABlockingCapture) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream blocking = NewStream(gpu, CU_STREAM_DEFAULT);
    const CUstream apart = NewStream(gpu, CU_STREAM_NON_BLOCKING);
    const CUevent event = api.NewEvent();
    std::uint32_t word = 0;
    const std::function<CUresult()> calls[] = {
        [&] { return gpu->MemsetD32Async(at, 1, 1, nullptr); }, [&] { return gpu->MemcpyHtoD(at, &word, 4); },
        [&] { return gpu->StreamSynchronize(nullptr); },        [&] { return gpu->StreamQuery(nullptr); },
        [&] { return gpu->EventRecord(event, nullptr); },       [&] { return gpu->StreamWaitEvent(nullptr, event, 0); },
    };
    for (const auto& call : calls) {
      ASSERT_EQ(api.begin(blocking, kRelaxed), CUDA_SUCCESS);
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      EXPECT_EQ(gpu->StreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      EXPECT_EQ(api.Status(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);  // to ask breaks nothing
      EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      api.ExpectBroken(blocking, at);
    }
    // Beside another capture it is, for work that nobody waits for; it can be no part of one.
    ASSERT_EQ(api.begin(apart, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(api.Status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(gpu->MemsetD32Async(at, 5, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(api.Status(apart), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(gpu->EventRecord(event, apart), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(nullptr, event, 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    api.ExpectBroken(apart, at);
    // In another context the default stream is another one.
    CUcontext other = nullptr;
    ASSERT_EQ(gpu->DevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
    ASSERT_EQ(api.begin(blocking, kThreadLocal), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSetCurrent(other), CUDA_SUCCESS);
    EXPECT_EQ(api.Status(nullptr), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(gpu->EventRecord(api.NewEvent(), nullptr), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    EXPECT_EQ(api.end(blocking, &graph), CUDA_SUCCESS);
  });
}

TEST_F(CaptureTest, BeginningAndEnding) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream stream = NewStream(gpu);
    CUgraph graph = nullptr;
    EXPECT_EQ(api.begin(nullptr, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(api.begin(stream, static_cast<CUstreamCaptureMode>(3)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.begin(reinterpret_cast<CUstream>(std::uintptr_t{99}), kGlobal), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(api.end(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(api.begin(stream, kGlobal), CUDA_ERROR_ILLEGAL_STATE);
    EXPECT_EQ(api.end(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->StreamIsCapturing(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.end(stream, &graph), CUDA_SUCCESS);
    EXPECT_EQ(api.destroy(graph), CUDA_SUCCESS);
    EXPECT_EQ(api.destroy(graph), CUDA_ERROR_INVALID_VALUE);
    CUgraphExec exec = nullptr;
    EXPECT_EQ(api.instantiate(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);

    const auto end_elsewhere = [&](CUresult expected) {
      std::thread([&] {
        EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
        EXPECT_EQ(api.end(stream, &graph), expected);
      }).join();
    };
    for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal}) {
      ASSERT_EQ(api.begin(stream, mode), CUDA_SUCCESS);
      end_elsewhere(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
      api.ExpectBroken(stream, mapped.address());
    }
    ASSERT_EQ(api.begin(stream, kRelaxed), CUDA_SUCCESS);
    end_elsewhere(CUDA_SUCCESS);
    EXPECT_EQ(api.instantiate(nullptr, graph, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.instantiate(&exec, graph, 1u << 20), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.instantiate(&exec, graph, 4), CUDA_ERROR_NOT_SUPPORTED);
    const auto older = Entry<CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t>(gpu, "cuGraphInstantiate_v2");
    char log[8] = "xxxxxxx";
    EXPECT_EQ(older(&exec, graph, nullptr, log, sizeof log), CUDA_SUCCESS);
    EXPECT_EQ(log[0], 0);

    // The ABI of CUDA 10.0 has no mode: it is the strict one.
    EXPECT_EQ(Entry<CUstream>(gpu, "cuStreamBeginCapture")(stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    api.ExpectBroken(stream, mapped.address());
  });
}

TEST_F(CaptureTest, CapturesAreIslands) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream one = NewStream(gpu);
    const CUstream two = NewStream(gpu);
    const CUevent event = api.NewEvent();
    // A wait for work that no launch could repeat: of an event recorded outside, and of one never recorded.
    for (int round = 0; round < 2; ++round) {
      ASSERT_EQ(api.begin(one, kRelaxed), CUDA_SUCCESS);
      EXPECT_EQ(gpu->StreamWaitEvent(one, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
      api.ExpectBroken(one, mapped.address());
      EXPECT_EQ(gpu->EventRecord(event, two), CUDA_SUCCESS);
    }
    // Two captures do not become one.
    ASSERT_EQ(api.begin(one, kRelaxed), CUDA_SUCCESS);
    ASSERT_EQ(api.begin(two, kRelaxed), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(event, one), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(two, event, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    EXPECT_EQ(api.Status(two), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    api.SetMode(kRelaxed);
    api.ExpectBroken(one, mapped.address());
    api.ExpectBroken(two, mapped.address());
    // An event of a broken capture leads nowhere.
    ASSERT_EQ(api.begin(one, kRelaxed), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(event, one), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamQuery(one), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(gpu->StreamWaitEvent(two, event, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(gpu->EventRecord(event, one), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    api.ExpectBroken(one, mapped.address());
  });
}

TEST_F(CaptureTest, ExternalEventsAreNodesOfTheGraph) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    OwnKernels own(gpu);
    const CUstream stream = NewStream(gpu);
    const CUstream other = NewStream(gpu);
    const CUevent before = api.NewEvent();
    const CUevent after = api.NewEvent();
    EXPECT_EQ(api.record_with_flags(after, stream, 1), CUDA_ERROR_INVALID_VALUE);  // only in a capture
    EXPECT_EQ(gpu->StreamWaitEvent(stream, before, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(api.record_with_flags(after, stream, 2), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(stream, before, 1), CUDA_SUCCESS);
    EXPECT_EQ(api.record_with_flags(after, stream, 1), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(stream);
    EXPECT_EQ(own.LaunchWait(gpu, other), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(before, other), CUDA_SUCCESS);
    EXPECT_EQ(api.launch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventQuery(after), CUDA_ERROR_NOT_READY);
    g_go = true;
    EXPECT_EQ(gpu->EventSynchronize(after), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventQuery(before), CUDA_SUCCESS);
  });
}

TEST_F(CaptureTest, VirtualMemoryCallsAreLegalAndALaunchSeesWhatIsMappedThen) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream stream = NewStream(gpu);
    ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(at, 9, 1, stream), CUDA_SUCCESS);
    {
      Mapped more = CreateMapped(gpu, 2 * kMiB);  // create, reserve, map, access; and all of it back
    }
    gpumem::UniqueFd fd;
    EXPECT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(stream);

    // Other memory at the same address.
    gpumem::cuda::PhysicalHandle other = CreateHandle(gpu, 2 * kMiB);
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_SUCCESS);
    ASSERT_EQ(gpumem::cuda::Mapping::Map(*gpu, at, other, &mapped.mapping), CUDA_SUCCESS);
    ASSERT_EQ(mapped.mapping.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
    EXPECT_EQ(api.launch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at), 9u);
    Mapped first = MapHandle(gpu, std::move(mapped.handle));
    EXPECT_EQ(Word(gpu, first.address()), 0u);
    // And none.
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_SUCCESS);
    EXPECT_EQ(api.launch(exec, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST_F(CaptureTest, EachCaptureHasItsId) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    const CUstream stream = NewStream(gpu);
    const auto info = Entry<CUstream, CUstreamCaptureStatus*, std::uint64_t*>(gpu, "cuStreamGetCaptureInfo");
    const auto info_v3 = Entry<CUstream, CUstreamCaptureStatus*, std::uint64_t*, CUgraph*, const CUgraphNode**,
                               const CUgraphEdgeData**, size_t*>(gpu, "cuStreamGetCaptureInfo_v3");
    std::uint64_t last = 0;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(api.begin(stream, kGlobal), CUDA_SUCCESS);
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      std::uint64_t id = 0;
      std::uint64_t again = 0;
      EXPECT_EQ(info(stream, &status, &id), CUDA_SUCCESS);
      EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
      EXPECT_EQ(info_v3(stream, &status, &again, nullptr, nullptr, nullptr, nullptr), CUDA_SUCCESS);
      EXPECT_EQ(id, again);
      EXPECT_NE(id, last);
      last = id;
      CUgraph graph = nullptr;
      EXPECT_EQ(api.end(stream, &graph), CUDA_SUCCESS);
    }
  });
}

// A capture of a stream that goes with its thread would forbid things to the others for ever.
TEST_F(CaptureTest, ThePerThreadStreamCapturesAndItsThreadsEndEndsThat) {
  InChild([&] {
    Gpu gpu;
    CaptureApi api(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const CUstream mine = reinterpret_cast<CUstream>(simcuda::kPerThreadStream);
    ASSERT_EQ(api.begin(mine, kGlobal), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(at, 4, 1, mine), CUDA_SUCCESS);
    const CUgraphExec exec = api.EndAndInstantiate(mine);
    EXPECT_EQ(api.launch(exec, mine), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(mine), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at), 4u);
    std::thread([&] {
      EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
      EXPECT_EQ(api.begin(mine, kGlobal), CUDA_SUCCESS);
    }).join();
    EXPECT_EQ(api.Status(mine), CU_STREAM_CAPTURE_STATUS_NONE);  // this thread's is another stream
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace simtest
