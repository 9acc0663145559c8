// tests/unit/sim/own_kernels.h: kernels of a program's own: one that is in flight until the test says so, and one with
// parameters of several sizes. For use in child processes: each has its own variables.
#ifndef GPUMEM_TESTS_UNIT_SIM_OWN_KERNELS_H_
#define GPUMEM_TESTS_UNIT_SIM_OWN_KERNELS_H_

#include <atomic>
#include <cstring>
#include <thread>

#include "cuda/sim/simcuda.h"
#include "tests/unit/sim/sim_machine.h"

namespace simtest {

inline std::atomic<bool> g_go{false};
inline std::atomic<int> g_started{0};
inline std::atomic<int> g_ran{0};

// A kernel that is in flight until the test says so.
inline int WaitForGo(const simcuda_launch*) {
  ++g_started;
  while (!g_go.load()) std::this_thread::yield();
  ++g_ran;
  return 0;
}

inline int (*g_write)(const simcuda_launch*, std::uint64_t, const void*, std::size_t) = nullptr;

// Stores a sum at its first parameter: parameters of several sizes.
inline int AddBytes(const simcuda_launch* launch) {
  std::uint64_t address = 0;
  std::uint8_t a = 0;
  std::uint16_t b[2] = {};
  std::memcpy(&address, launch->parameters[0], 8);
  std::memcpy(&a, launch->parameters[1], 1);
  std::memcpy(b, launch->parameters[2], 4);
  const std::uint32_t sum = a + b[0] + b[1] + launch->grid[0] + launch->block[1];
  return g_write(launch, address, &sum, sizeof sum);
}

inline constexpr char kOwnPtx[] = R"(
.version 7.0  // a comment with .entry nothing( in it
.target sm_80
.address_size 64
/* .entry neither( */
.visible .entry wait_for_go()
{
  ret;
}
.visible .entry add_bytes(
  .param .u64 .ptr .global .align 8 at,
  .param .u8 a,
  .param .align 4 .b8 b[4]
)
{
  ret;
}
.visible .entry nobody_knows(.param .u32 x)
{
  ret;
}
)";

struct OwnKernels {
  CUmodule module = nullptr;
  CUfunction wait = nullptr;
  CUfunction add = nullptr;

  explicit OwnKernels(const Gpu& gpu) {
    using Register = int (*)(const char*, simcuda_kernel);
    const auto add_kernel = reinterpret_cast<Register>(gpu->FindSymbol("simcuda_register_kernel"));
    g_write = reinterpret_cast<decltype(g_write)>(gpu->FindSymbol("simcuda_write"));
    EXPECT_EQ(add_kernel("wait_for_go", &WaitForGo), 0);
    EXPECT_EQ(add_kernel("add_bytes", &AddBytes), 0);
    EXPECT_NE(add_kernel("add_bytes", &AddBytes), 0);
    EXPECT_EQ(gpu->ModuleLoadData(&module, kOwnPtx), CUDA_SUCCESS);
    EXPECT_EQ(gpu->ModuleGetFunction(&wait, module, "wait_for_go"), CUDA_SUCCESS);
    EXPECT_EQ(gpu->ModuleGetFunction(&add, module, "add_bytes"), CUDA_SUCCESS);
  }
  CUresult LaunchWait(const Gpu& gpu, CUstream stream) const {
    return gpu->LaunchKernel(wait, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  }
};

inline CUstream NewStream(const Gpu& gpu, unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  EXPECT_EQ(gpu->StreamCreate(&stream, flags), CUDA_SUCCESS);
  return stream;
}

inline std::uint32_t Word(const Gpu& gpu, CUdeviceptr address) {
  std::uint32_t word = 0;
  EXPECT_EQ(gpu->MemcpyDtoH(&word, address, sizeof word), CUDA_SUCCESS);
  return word;
}

}  // namespace simtest

#endif  // GPUMEM_TESTS_UNIT_SIM_OWN_KERNELS_H_
