// Contexts, streams, events, kernels; and the sticky error of a process whose kernel went wrong.
#include <thread>

#include "cuda/kernels.h"
#include "tests/unit/sim/own_kernels.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::cuda::Kernels;

class StreamTest : public MachineTest {};

TEST_F(StreamTest, WorkIsAsynchronousAndInOrder) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream stream = NewStream(gpu);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 5, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 6, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(Word(gpu, mapped.address()), 0u);  // the default stream does not wait for a non-blocking one
    g_go = true;
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamQuery(stream), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, mapped.address()), 6u);
    EXPECT_EQ(gpu->StreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(StreamTest, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream blocking = NewStream(gpu, CU_STREAM_DEFAULT);
    const CUstream later = NewStream(gpu, CU_STREAM_DEFAULT);
    // Each writes the same word: the last value tells the order.
    EXPECT_EQ(own.LaunchWait(gpu, blocking), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 1, 1, blocking), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 2, 1, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoDAsync(mapped.address() + 64, mapped.address(), 4, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 3, 1, later), CUDA_SUCCESS);
    ::usleep(20000);  // for what does not wait, to be early
    EXPECT_EQ(gpu->StreamQuery(later), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(gpu->StreamQuery(nullptr), CUDA_ERROR_NOT_READY);
    g_go = true;
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, mapped.address() + 64), 2u);
    EXPECT_EQ(Word(gpu, mapped.address()), 3u);
  });
}

TEST_F(StreamTest, EventsOrderStreams) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream first = NewStream(gpu);
    const CUstream second = NewStream(gpu);
    CUevent event = nullptr;
    ASSERT_EQ(gpu->EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventQuery(event), CUDA_SUCCESS);  // never recorded: done
    EXPECT_EQ(own.LaunchWait(gpu, first), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 7, 1, first), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventRecord(event, first), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(gpu->StreamWaitEvent(second, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoDAsync(mapped.address() + 8, mapped.address(), 4, second), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamQuery(second), CUDA_ERROR_NOT_READY);
    g_go = true;
    EXPECT_EQ(gpu->EventSynchronize(event), CUDA_SUCCESS);
    EXPECT_EQ(gpu->StreamSynchronize(second), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, mapped.address() + 8), 7u);
    EXPECT_EQ(gpu->EventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(gpu->EventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(StreamTest, KernelsOfTheProjectAndOfPrograms) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    std::unique_ptr<Kernels> kernels;
    ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
    EXPECT_EQ(kernels->Fill(nullptr, mapped.address(), 1000, 0xa5a5a5a5), CUDA_SUCCESS);
    EXPECT_EQ(kernels->Store(nullptr, mapped.address() + 4, 3), CUDA_SUCCESS);
    EXPECT_EQ(Word(gpu, mapped.address()), 0xa5a5a5a5u);
    EXPECT_EQ(Word(gpu, mapped.address() + 4), 3u);
    EXPECT_EQ(Word(gpu, mapped.address() + 4 * 999), 0xa5a5a5a5u);
    EXPECT_EQ(Word(gpu, mapped.address() + 4 * 1000), 0u);

    CUdeviceptr at = mapped.address() + 4096;
    std::uint8_t a = 1;
    std::uint16_t b[2] = {20, 300};
    void* parameters[] = {&at, &a, b};
    EXPECT_EQ(gpu->LaunchKernel(own.add, 1000, 1, 1, 1, 5, 1, 0, nullptr, parameters, nullptr), CUDA_SUCCESS);
    a = 99;  // the launch took copies
    EXPECT_EQ(Word(gpu, at), 1u + 20 + 300 + 1000 + 5);
    EXPECT_EQ(gpu->LaunchKernel(own.add, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);

    CUfunction function = nullptr;
    EXPECT_EQ(gpu->ModuleGetFunction(&function, own.module, "nobody_knows"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(gpu->ModuleGetFunction(&function, own.module, "nothing"), CUDA_ERROR_NOT_FOUND);
    CUmodule module = nullptr;
    EXPECT_EQ(gpu->ModuleLoadData(&module, "no ptx at all"), CUDA_ERROR_INVALID_PTX);
    EXPECT_EQ(gpu->ModuleLoadData(&module,
                                  "\x7f"
                                  "ELF"),
              CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(gpu->LaunchKernel(own.wait, 0, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->LaunchKernel(own.wait, 1, 1, 1, 1025, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(gpu->ModuleUnload(own.module), CUDA_SUCCESS);
    EXPECT_EQ(gpu->ModuleUnload(own.module), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST_F(StreamTest, CallsNeedAContext) {
  InChild([&] {
    Gpu gpu;
    char byte = 0;
    EXPECT_EQ(gpu->CtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemcpyDtoH(&byte, 4096, 1), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    std::thread([&] {
      CUcontext current = gpu.context;
      EXPECT_EQ(gpu->CtxGetCurrent(&current), CUDA_SUCCESS);
      EXPECT_EQ(current, nullptr);  // a context is current to one thread
    }).join();
    EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
    EXPECT_EQ(gpu->DevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(gpu->DevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    // Memory is not the context's.
    gpumem::cuda::PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    EXPECT_EQ(handle.Release(), CUDA_SUCCESS);
  });
}

TEST_F(StreamTest, AStoreThroughAReadOnlyMappingIsStickyAndHarmsNobodyElse) {
  gpumem::UniqueFd shared;
  Child peer([&](int socket) {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    gpumem::UniqueFd fd;
    EXPECT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
    Receive(socket);  // the other process has faulted
    EXPECT_EQ(Word(gpu, mapped.address()), 0u);
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_SUCCESS);
  });
  shared = Receive(peer.socket());
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle;
    ASSERT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, shared.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    Mapped mapped = MapHandle(gpu, std::move(handle), CU_MEM_ACCESS_FLAGS_PROT_READ);
    std::unique_ptr<Kernels> kernels;
    ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
    EXPECT_EQ(kernels->Store(nullptr, mapped.address(), 1), CUDA_SUCCESS);  // the launch itself says nothing
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    // From now on everything fails with it.
    CUstream stream = nullptr;
    char byte = 0;
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(gpu->StreamCreate(&stream, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(gpu->MemcpyDtoH(&byte, mapped.address(), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(kernels->Store(nullptr, mapped.address(), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(mapped.handle.Release(), CUDA_ERROR_ILLEGAL_ADDRESS);
    // But the words for it are still there.
    EXPECT_EQ(gpu->DescribeError(CUDA_ERROR_ILLEGAL_ADDRESS),
              "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
  });
  Send(peer.socket());
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(StreamTest, NothingRunsAfterAFault) {
  Child faulting([&](int socket) {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    gpumem::UniqueFd fd;
    EXPECT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
    std::unique_ptr<Kernels> kernels;
    ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
    EXPECT_EQ(own.LaunchWait(gpu, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(kernels->Store(nullptr, 0x1000, 1), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 1, 1, nullptr), CUDA_SUCCESS);  // queued behind it
    g_go = true;
    EXPECT_EQ(gpu->CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
  gpumem::UniqueFd fd = Receive(faulting.socket());
  EXPECT_EQ(faulting.Wait(), 0);
  InChild([&] {
    Gpu gpu;
    gpumem::cuda::PhysicalHandle handle;
    ASSERT_EQ(gpumem::cuda::PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    Mapped mapped = MapHandle(gpu, std::move(handle));
    EXPECT_EQ(Word(gpu, mapped.address()), 0u);
  });
}

TEST_F(StreamTest, OtherWaysToBecomeSticky) {
  const auto faulting = [&](CUresult expected, const std::function<void(Gpu&, Kernels&, Mapped&)>& act) {
    InChild([&] {
      Gpu gpu;
      Mapped mapped = CreateMapped(gpu, 2 * kMiB);
      std::unique_ptr<Kernels> kernels;
      ASSERT_EQ(Kernels::Load(*gpu, &kernels), CUDA_SUCCESS);
      act(gpu, *kernels, mapped);
      EXPECT_EQ(gpu->CtxSynchronize(), expected);
      EXPECT_EQ(gpu->CtxSynchronize(), expected);
    });
  };
  faulting(CUDA_ERROR_ILLEGAL_ADDRESS, [](Gpu&, Kernels& kernels, Mapped&) { kernels.Store(nullptr, 0x1000, 1); });
  faulting(CUDA_ERROR_ILLEGAL_ADDRESS, [](Gpu&, Kernels& kernels, Mapped& mapped) {
    kernels.Fill(nullptr, mapped.address(), kMiB / 2 + 1, 1);  // one word too far
  });
  faulting(CUDA_ERROR_MISALIGNED_ADDRESS,
           [](Gpu&, Kernels& kernels, Mapped& mapped) { kernels.Store(nullptr, mapped.address() + 1, 1); });
  // Newly mapped without access.
  faulting(CUDA_ERROR_ILLEGAL_ADDRESS, [](Gpu&, Kernels& kernels, Mapped& mapped) {
    EXPECT_EQ(mapped.mapping.SetAccess(0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_SUCCESS);
    kernels.Store(nullptr, mapped.address(), 1);
  });
}

TEST_F(StreamTest, UnmapDoesNotWaitForWorkInFlight) {
  InChild([&] {
    Gpu gpu;
    OwnKernels own(gpu);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    const CUstream stream = NewStream(gpu);
    EXPECT_EQ(own.LaunchWait(gpu, stream), CUDA_SUCCESS);
    EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), 1, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_SUCCESS);
    EXPECT_EQ(gpu->CtxGetCurrent(&gpu.context), CUDA_SUCCESS);
    g_go = true;
    EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST_F(StreamTest, ManyThreadsShareTheDriver) {
  InChild([&] {
    Gpu gpu;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        EXPECT_EQ(gpu->CtxSetCurrent(gpu.context), CUDA_SUCCESS);
        const CUstream stream = NewStream(gpu, t % 2 == 0 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING);
        for (int i = 0; i < 20; ++i) {
          Mapped mapped = CreateMapped(gpu, 2 * kMiB);
          EXPECT_EQ(gpu->MemsetD32Async(mapped.address(), static_cast<unsigned>(i), 64, stream), CUDA_SUCCESS);
          std::uint32_t word = 99;
          EXPECT_EQ(gpu->MemcpyDtoHAsync(&word, mapped.address() + 128, 4, stream), CUDA_SUCCESS);
          EXPECT_EQ(gpu->StreamSynchronize(stream), CUDA_SUCCESS);
          EXPECT_EQ(word, static_cast<unsigned>(i));
        }
        EXPECT_EQ(gpu->StreamDestroy(stream), CUDA_SUCCESS);
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
}

}  // namespace
}  // namespace simtest
