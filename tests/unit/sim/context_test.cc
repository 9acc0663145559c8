// Contexts beside the primary one; what streams and events tell; default streams for each thread.
#include <atomic>
#include <functional>
#include <thread>

#include "cuda/sim/sim_api.h"
#include "tests/unit/sim/own_kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

class ContextTest : public MachineTest {};

constexpr unsigned kSpin = 1;          // CU_CTX_SCHED_SPIN
constexpr unsigned kBlockingSync = 4;  // CU_CTX_SCHED_BLOCKING_SYNC

CUresult CreateContext(const Gpu& gpu, CUcontext* context, unsigned flags, CUdevice device) {
  return Entry<CUcontext*, unsigned, CUdevice>(gpu, "cuCtxCreate_v2")(context, flags, device);
}
CUresult DestroyContext(const Gpu& gpu, CUcontext context) { return Entry<CUcontext>(gpu, "cuCtxDestroy_v2")(context); }
CUcontext Current(const Gpu& gpu) {
  CUcontext context = nullptr;
  EXPECT_EQ(gpu->CtxGetCurrent(&context), CUDA_SUCCESS);
  return context;
}

TEST_F(ContextTest, CreatePushesAndDestroyPops) {
  InChild([&] {
    Gpu gpu;
    CUcontext made = nullptr;
    EXPECT_EQ(CreateContext(gpu, nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CreateContext(gpu, &made, 0x100, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CreateContext(gpu, &made, kSpin | kBlockingSync, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(CreateContext(gpu, &made, 0, 2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(Current(gpu), gpu.context);
    ASSERT_EQ(CreateContext(gpu, &made, kBlockingSync, 1), CUDA_SUCCESS);
    EXPECT_EQ(Current(gpu), made);
    CUdevice device = 0;
    EXPECT_EQ(gpu->CtxGetDevice(&device), CUDA_SUCCESS);
    EXPECT_EQ(device, 1);
    unsigned flags = 0;
    EXPECT_EQ(Entry<unsigned*>(gpu, "cuCtxGetFlags")(&flags), CUDA_SUCCESS);
    EXPECT_EQ(flags, kBlockingSync);
    unsigned version = 0;
    EXPECT_EQ((Entry<CUcontext, unsigned*>(gpu, "cuCtxGetApiVersion")(nullptr, &version)), CUDA_SUCCESS);
    EXPECT_GE(version, 3020u);
    std::atomic<int> step{0};
    std::thread other([&] {
      EXPECT_EQ(gpu->CtxSetCurrent(made), CUDA_SUCCESS);
      step = 1;
      while (step != 2) std::this_thread::yield();
      EXPECT_EQ(Current(gpu), made);
      EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    });
    while (step != 1) std::this_thread::yield();
    EXPECT_EQ(DestroyContext(gpu, made), CUDA_SUCCESS);
    step = 2;
    other.join();
    EXPECT_EQ(Current(gpu), gpu.context);
    EXPECT_EQ(DestroyContext(gpu, made), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(DestroyContext(gpu, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(DestroyContext(gpu, gpu.context), CUDA_ERROR_INVALID_CONTEXT);  // it is the primary one
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);

    const auto v3 = Entry<CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice>(gpu, "cuCtxCreate_v3");
    const auto v4 = Entry<CUcontext*, CUctxCreateParams*, unsigned, CUdevice>(gpu, "cuCtxCreate_v4");
    EXPECT_EQ(v3(&made, nullptr, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(DestroyContext(gpu, made), CUDA_SUCCESS);
    EXPECT_EQ(v4(&made, nullptr, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(DestroyContext(gpu, made), CUDA_SUCCESS);
    EXPECT_EQ(v3(&made, nullptr, 1, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST_F(ContextTest, AContextsEndTakesItsPlainMemoryAndStreamsButNotThatOfCuMemCreate) {
  InChild([&] {
    Gpu gpu;
    CUcontext made = nullptr;
    ASSERT_EQ(CreateContext(gpu, &made, 0, 0), CUDA_SUCCESS);
    CUdeviceptr plain = 0;
    ASSERT_EQ((Entry<CUdeviceptr*, size_t>(gpu, "cuMemAlloc_v2")(&plain, kMiB)), CUDA_SUCCESS);
    const CUstream stream = NewStream(gpu);
    Mapped mapped = CreateMapped(gpu, 4 * kMiB);
    EXPECT_EQ(gpu->MemsetD32(mapped.address(), 3, 1), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 6 * kMiB);
    EXPECT_EQ(DestroyContext(gpu, made), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 4 * kMiB);
    EXPECT_EQ(Word(gpu, mapped.address()), 3u);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(gpu->MemsetD8(plain, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Entry<CUdeviceptr>(gpu, "cuMemFree_v2")(plain), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST_F(ContextTest, ThePrimaryContextIsResetUnderItsHolders) {
  InChild([&] {
    Gpu gpu;
    const auto reset = Entry<CUdevice>(gpu, "cuDevicePrimaryCtxReset_v2");
    const auto set_flags = Entry<CUdevice, unsigned>(gpu, "cuDevicePrimaryCtxSetFlags_v2");
    const auto get_state = Entry<CUdevice, unsigned*, int*>(gpu, "cuDevicePrimaryCtxGetState");
    unsigned flags = 99;
    int active = 99;
    EXPECT_EQ(get_state(1, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(flags, 0u);
    EXPECT_EQ(active, 0);
    EXPECT_EQ(set_flags(1, kSpin), CUDA_SUCCESS);
    EXPECT_EQ(set_flags(1, 0x100), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(set_flags(2, 0), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(get_state(1, &flags, &active), CUDA_SUCCESS);
    EXPECT_EQ(flags, kSpin);

    CUdeviceptr plain = 0;
    ASSERT_EQ((Entry<CUdeviceptr*, size_t>(gpu, "cuMemAlloc_v2")(&plain, kMiB)), CUDA_SUCCESS);
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 4 * kMiB);
    EXPECT_EQ(get_state(0, nullptr, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, 1);
    EXPECT_EQ(reset(2), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(reset(0), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 4 * kMiB);
    EXPECT_EQ(get_state(0, nullptr, &active), CUDA_SUCCESS);
    EXPECT_EQ(active, 0);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CUcontext anew = nullptr;
    EXPECT_EQ(gpu->DevicePrimaryCtxRetain(&anew, 0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSetCurrent(anew), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(gpu->DevicePrimaryCtxRelease(0), CUDA_SUCCESS);  // the first holder's
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(gpu->DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->DevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(reset(0), CUDA_SUCCESS);  // nothing there: nothing to do
  });
}

TEST_F(ContextTest, CallsThatNameAContext) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    CUcontext second = nullptr;
    ASSERT_EQ(gpu->DevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    const auto get_device = Entry<CUdevice*, CUcontext>(gpu, "cuCtxGetDevice_v2");
    const auto synchronize = Entry<CUcontext>(gpu, "cuCtxSynchronize_v2");
    CUdevice device = 9;
    EXPECT_EQ(get_device(&device, second), CUDA_SUCCESS);
    EXPECT_EQ(device, 1);
    EXPECT_EQ(get_device(&device, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(get_device(&device, reinterpret_cast<CUcontext>(std::uintptr_t{5})), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(own.LaunchWait(gpu, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(synchronize(second), CUDA_SUCCESS);  // does not wait for the other context's work
    EXPECT_EQ(g_ran, 0);
    g_go = true;
    EXPECT_EQ(synchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(g_ran, 1);
  });
}

TEST_F(ContextTest, StreamsTellWhatTheyAre) {
  InChild([&] {
    Gpu gpu;
    const auto get_flags = Entry<CUstream, unsigned*>(gpu, "cuStreamGetFlags");
    const auto get_priority = Entry<CUstream, int*>(gpu, "cuStreamGetPriority");
    const auto get_context = Entry<CUstream, CUcontext*>(gpu, "cuStreamGetCtx");
    const auto with_priority = Entry<CUstream*, unsigned, int>(gpu, "cuStreamCreateWithPriority");
    int least = -1;
    int greatest = 1;
    EXPECT_EQ((Entry<int*, int*>(gpu, "cuCtxGetStreamPriorityRange")(&least, &greatest)), CUDA_SUCCESS);
    EXPECT_EQ(least, 0);
    EXPECT_LT(greatest, 0);
    unsigned flags = 9;
    int priority = 9;
    CUcontext context = nullptr;
    const CUstream stream = NewStream(gpu, CU_STREAM_NON_BLOCKING);
    EXPECT_EQ(get_flags(stream, &flags), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(get_flags(nullptr, &flags), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_DEFAULT));
    EXPECT_EQ(get_flags(stream, nullptr), CUDA_ERROR_INVALID_VALUE);
    CUstream urgent = nullptr;
    ASSERT_EQ(with_priority(&urgent, CU_STREAM_DEFAULT, greatest - 10), CUDA_SUCCESS);
    EXPECT_EQ(get_priority(urgent, &priority), CUDA_SUCCESS);
    EXPECT_EQ(priority, greatest);
    EXPECT_EQ(get_priority(stream, &priority), CUDA_SUCCESS);
    EXPECT_EQ(priority, 0);
    CUcontext second = nullptr;
    ASSERT_EQ(gpu->DevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSetCurrent(second), CUDA_SUCCESS);
    EXPECT_EQ(get_context(stream, &context), CUDA_SUCCESS);
    EXPECT_EQ(context, gpu.context);
    CUgreenCtx green = reinterpret_cast<CUgreenCtx>(&priority);
    EXPECT_EQ((Entry<CUstream, CUcontext*, CUgreenCtx*>(gpu, "cuStreamGetCtx_v2")(stream, &context, &green)),
              CUDA_SUCCESS);
    EXPECT_EQ(green, nullptr);
    EXPECT_EQ(get_context(nullptr, &context), CUDA_SUCCESS);
    EXPECT_EQ(context, second);
    // An event of one context is not recorded in a stream of another; a stream may wait for it.
    CUevent event = nullptr;
    ASSERT_EQ(gpu->EventCreate(&event, 0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(gpu->EventRecord(event, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamWaitEvent(stream, event, 0), CUDA_SUCCESS);
  });
}

TEST_F(ContextTest, ElapsedTimeIsBetweenTwoEventsThatHaveHappened) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    const auto elapsed = Entry<float*, CUevent, CUevent>(gpu, "cuEventElapsedTime_v2");
    const CUstream stream = NewStream(gpu);
    CUevent start = nullptr;
    CUevent end = nullptr;
    CUevent untimed = nullptr;
    ASSERT_EQ(gpu->EventCreate(&start, 0), CUDA_SUCCESS);
    ASSERT_EQ(gpu->EventCreate(&end, 0), CUDA_SUCCESS);
    ASSERT_EQ(gpu->EventCreate(&untimed, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    float ms = -1;
    EXPECT_EQ(gpu->EventRecord(start, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(untimed, stream), CUDA_SUCCESS);
    EXPECT_EQ(elapsed(&ms, start, end), CUDA_ERROR_INVALID_HANDLE);  // never recorded
    EXPECT_EQ(elapsed(&ms, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(elapsed(nullptr, start, start), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(end, stream), CUDA_SUCCESS);
    EXPECT_EQ(elapsed(&ms, start, end), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(ms, -1);
    g_go = true;
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(elapsed(&ms, start, end), CUDA_SUCCESS);
    EXPECT_GT(ms, 0);
    float back = 0;
    EXPECT_EQ(elapsed(&back, end, start), CUDA_SUCCESS);
    EXPECT_EQ(back, -ms);
  });
}

TEST_F(ContextTest, HostFunctionsRunInTheirPlace) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    const auto launch = Entry<CUstream, CUhostFn, void*>(gpu, "cuLaunchHostFunc");
    const CUstream stream = NewStream(gpu);
    int seen = -1;
    EXPECT_EQ(launch(stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    EXPECT_EQ(launch(
                  stream, [](void* data) { *static_cast<int*>(data) = g_ran; }, &seen),
              CUDA_SUCCESS);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    g_go = true;
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(seen, 1);
  });
}

TEST_F(ContextTest, EachThreadHasADefaultStreamOfItsOwn) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUdeviceptr at = mapped.address();
    const auto fill = Entry<CUdeviceptr, unsigned, size_t, CUstream>(gpu, "cuMemsetD32Async_ptsz");
    const auto fill_now = Entry<CUdeviceptr, unsigned, size_t>(gpu, "cuMemsetD32_v2_ptds");
    const auto query = Entry<CUstream>(gpu, "cuStreamQuery_ptsz");
    const auto synchronize = Entry<CUstream>(gpu, "cuStreamSynchronize_ptsz");
    const CUstream mine = reinterpret_cast<CUstream>(simcuda::kPerThreadStream);
    EXPECT_EQ(own.LaunchWait(gpu, mine), CUDA_SUCCESS);
    EXPECT_EQ(fill(at, 1, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(query(nullptr), CUDA_ERROR_NOT_READY);
    std::thread([&] {
      EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
      EXPECT_EQ(fill_now(at + 64, 2, 1), CUDA_SUCCESS);  // does not wait for the other thread's
      EXPECT_EQ(query(mine), CUDA_SUCCESS);
    }).join();
    // But the context's default stream comes after both, and what comes later after it.
    EXPECT_EQ(gpu->MemcpyDtoDAsync(at + 128, at, 4, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(fill(at, 3, 1, nullptr), CUDA_SUCCESS);
    ::usleep(20000);  // for what does not wait, to be early
    EXPECT_EQ(gpu->StreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    g_go = true;
    EXPECT_EQ(synchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, at), 3u);
    EXPECT_EQ(Word(gpu, at + 64), 2u);
    EXPECT_EQ(Word(gpu, at + 128), 1u);
    unsigned flags = 9;
    EXPECT_EQ((Entry<CUstream, unsigned*>(gpu, "cuStreamGetFlags_ptsz")(nullptr, &flags)), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_DEFAULT));
    EXPECT_EQ(gpu->StreamDestroy(mine), CUDA_ERROR_INVALID_HANDLE);
  });
}

// Work that a thread left behind in its default stream still runs, and the context still waits for it.
TEST_F(ContextTest, AThreadsDefaultStreamOutlivesItUntilItsWorkIsDone) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream mine = reinterpret_cast<CUstream>(simcuda::kPerThreadStream);
    CUevent event = nullptr;
    ASSERT_EQ(gpu->EventCreate(&event, 0), CUDA_SUCCESS);
    const auto threads = [] {
      const auto all = std::filesystem::directory_iterator("/proc/self/task");
      return std::distance(begin(all), end(all));
    };
    const auto before = threads();
    std::thread([&] {
      EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
      EXPECT_EQ(own.LaunchWait(gpu, mine), CUDA_SUCCESS);
      EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 6, 1, mine), CUDA_SUCCESS);
      EXPECT_EQ(gpu->EventRecord(event, mine), CUDA_SUCCESS);
    }).join();
    g_go = true;
    EXPECT_EQ(gpu->EventSynchronize(event), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, mapped.address()), 6u);
    while (threads() > before) ::usleep(1000);  // its worker goes; would it stay, this would not end
  });
}

TEST_F(ContextTest, GetProcAddressGivesTheVariantThatIsAskedFor) {
  InChild([&] {
    Gpu gpu(false);
    const auto get =
        Entry<const char*, void**, int, std::uint64_t, CUdriverProcAddressQueryResult*>(gpu, "cuGetProcAddress_v2");
    const auto expect = [&](const char* base, int version, std::uint64_t flags, const char* exported) {
      SCOPED_TRACE(testing::Message() << base << " " << version << " flags " << flags);
      void* found = nullptr;
      CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      EXPECT_EQ(get(base, &found, version, flags, &status), CUDA_SUCCESS);
      EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
      EXPECT_NE(found, nullptr);
      EXPECT_EQ(found, gpu->FindSymbol(exported));
    };
    constexpr std::uint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    constexpr std::uint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    expect("cuMemcpyHtoD", 13000, 0, "cuMemcpyHtoD_v2");
    expect("cuMemcpyHtoD", 13000, kLegacy, "cuMemcpyHtoD_v2");
    expect("cuMemcpyHtoD", 13000, kPerThread, "cuMemcpyHtoD_v2_ptds");
    expect("cuMemcpyHtoD", 4000, kPerThread, "cuMemcpyHtoD_v2");  // there was none yet
    expect("cuMemsetD8Async", 13000, kPerThread, "cuMemsetD8Async_ptsz");
    expect("cuMemCreate", 13000, kPerThread, "cuMemCreate");  // has no stream, and no variant
    expect("cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture");
    expect("cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2");
    expect("cuStreamBeginCapture", 10010, kPerThread, "cuStreamBeginCapture_v2_ptsz");
    expect("cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2");
    expect("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags");
    expect("cuGraphInstantiateWithFlags", 11040, 0, "cuGraphInstantiateWithFlags");
    expect("cuCtxCreate", 11000, 0, "cuCtxCreate_v2");
    expect("cuCtxCreate", 12000, 0, "cuCtxCreate_v3");
    expect("cuCtxCreate", 13000, 0, "cuCtxCreate_v4");
    expect("cuCtxSynchronize", 12090, 0, "cuCtxSynchronize");
    expect("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2");
    expect("cuDeviceGetUuid", 10000, 0, "cuDeviceGetUuid");
    expect("cuEventElapsedTime", 12000, 0, "cuEventElapsedTime");
    void* found = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    EXPECT_EQ(get("cuMemcpyHtoD", &found, 13000, 3, &status), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(get("cuMemcpyHtoD_v2_ptds", &found, 13000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    const auto get_ptsz = Entry<const char*, void**, int, std::uint64_t, CUdriverProcAddressQueryResult*>(
        gpu, "cuGetProcAddress_v2_ptsz");
    EXPECT_EQ(get_ptsz("cuStreamQuery", &found, 13000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, gpu->FindSymbol("cuStreamQuery_ptsz"));
    EXPECT_EQ(get_ptsz("cuStreamQuery", &found, 13000, kLegacy, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, gpu->FindSymbol("cuStreamQuery"));
  });
}

}  // namespace
}  // namespace simtest
