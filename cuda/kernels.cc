// cuda/kernels.cc: the PTX text and its launches.
#include "cuda/kernels.h"

#include <algorithm>

namespace gpumem::cuda {

// Written by hand for the oldest target that the project supports (Volta); newer devices run it as well. Each kernel
// but the last walks its words with a grid-wide stride: thread t of T takes words t, t + T, t + 2T, …
const char kKernelsPtx[] = R"ptx(
.version 6.0
.target sm_70
.address_size 64

.visible .entry gpumem_fill(
    .param .u64 address,
    .param .u64 count,
    .param .u32 value)
{
    .reg .pred  %done;
    .reg .u32   %value, %a, %b, %c;
    .reg .u64   %base, %count, %i, %stride, %at;

    ld.param.u64    %base, [address];
    ld.param.u64    %count, [count];
    ld.param.u32    %value, [value];
    cvta.to.global.u64 %base, %base;
    mov.u32         %a, %ctaid.x;
    mov.u32         %b, %ntid.x;
    mov.u32         %c, %tid.x;
    mul.wide.u32    %i, %a, %b;
    cvt.u64.u32     %at, %c;
    add.u64         %i, %i, %at;
    mov.u32         %a, %nctaid.x;
    mul.wide.u32    %stride, %a, %b;
fill_next:
    setp.ge.u64     %done, %i, %count;
    @%done bra      fill_end;
    shl.b64         %at, %i, 2;
    add.u64         %at, %base, %at;
    st.global.u32   [%at], %value;
    add.u64         %i, %i, %stride;
    bra             fill_next;
fill_end:
    ret;
}

.visible .entry gpumem_checksum(
    .param .u64 address,
    .param .u64 bytes,
    .param .u64 out)
{
    .reg .pred  %done;
    .reg .u32   %a, %b, %c;
    .reg .u64   %base, %bytes, %out, %i, %stride, %at, %words, %rest, %first;
    .reg .u64   %word, %mixed, %high, %weight, %sum, %byte, %shift;

    ld.param.u64    %base, [address];
    ld.param.u64    %bytes, [bytes];
    ld.param.u64    %out, [out];
    cvta.to.global.u64 %base, %base;
    cvta.to.global.u64 %out, %out;
    mov.u32         %a, %ctaid.x;
    mov.u32         %b, %ntid.x;
    mov.u32         %c, %tid.x;
    mul.wide.u32    %i, %a, %b;
    cvt.u64.u32     %at, %c;
    add.u64         %i, %i, %at;
    mov.u64         %first, %i;
    mov.u32         %a, %nctaid.x;
    mul.wide.u32    %stride, %a, %b;
    shr.u64         %words, %bytes, 3;
    and.b64         %rest, %bytes, 7;
    mov.u64         %sum, 0;
sum_next:
    setp.ge.u64     %done, %i, %words;
    @%done bra      sum_tail;
    shl.b64         %at, %i, 3;
    add.u64         %at, %base, %at;
    ld.global.u64   %word, [%at];
    mul.lo.u64      %mixed, %word, 0x9e3779b97f4a7c15;
    shr.u64         %high, %mixed, 32;
    xor.b64         %mixed, %mixed, %high;
    mul.lo.u64      %mixed, %mixed, 0xd6e8feb86659fd93;
    shl.b64         %weight, %i, 1;
    or.b64          %weight, %weight, 1;
    mul.lo.u64      %mixed, %mixed, %weight;
    add.u64         %sum, %sum, %mixed;
    add.u64         %i, %i, %stride;
    bra             sum_next;
sum_tail:
    // Thread 0 takes the last, shorter word, byte by byte from its end.
    setp.ne.u64     %done, %first, 0;
    @%done bra      sum_add;
    setp.eq.u64     %done, %rest, 0;
    @%done bra      sum_add;
    shl.b64         %at, %words, 3;
    add.u64         %at, %base, %at;
    mov.u64         %word, 0;
tail_next:
    sub.u64         %rest, %rest, 1;
    add.u64         %shift, %at, %rest;
    ld.global.u8    %byte, [%shift];
    shl.b64         %word, %word, 8;
    or.b64          %word, %word, %byte;
    setp.ne.u64     %done, %rest, 0;
    @%done bra      tail_next;
    mul.lo.u64      %mixed, %word, 0x9e3779b97f4a7c15;
    shr.u64         %high, %mixed, 32;
    xor.b64         %mixed, %mixed, %high;
    mul.lo.u64      %mixed, %mixed, 0xd6e8feb86659fd93;
    shl.b64         %weight, %words, 1;
    or.b64          %weight, %weight, 1;
    mul.lo.u64      %mixed, %mixed, %weight;
    add.u64         %sum, %sum, %mixed;
sum_add:
    red.global.add.u64 [%out], %sum;
    ret;
}

.visible .entry gpumem_store(
    .param .u64 address,
    .param .u32 value)
{
    .reg .u32   %value;
    .reg .u64   %at;

    ld.param.u64    %at, [address];
    ld.param.u32    %value, [value];
    cvta.to.global.u64 %at, %at;
    st.global.u32   [%at], %value;
    ret;
}
)ptx";

CUresult Kernels::Load(const Driver& driver, std::unique_ptr<Kernels>* out) {
  std::unique_ptr<Kernels> kernels(new Kernels(driver));
  CUresult result = driver.ModuleLoadData(&kernels->module_, kKernelsPtx);
  if (result == CUDA_SUCCESS) result = driver.ModuleGetFunction(&kernels->fill_, kernels->module_, "gpumem_fill");
  if (result == CUDA_SUCCESS) {
    result = driver.ModuleGetFunction(&kernels->checksum_, kernels->module_, "gpumem_checksum");
  }
  if (result == CUDA_SUCCESS) result = driver.ModuleGetFunction(&kernels->store_, kernels->module_, "gpumem_store");
  if (result == CUDA_SUCCESS) *out = std::move(kernels);
  return result;
}

Kernels::~Kernels() {
  if (module_ != nullptr) driver_.ModuleUnload(module_);
}

CUresult Kernels::Launch(CUfunction function, std::uint64_t threads, CUstream stream, void** parameters) const {
  constexpr std::uint64_t kBlock = 256;
  constexpr std::uint64_t kMaxGrid = 2048;  // enough to fill any device; the stride does the rest
  const std::uint64_t wanted = threads / kBlock + (threads % kBlock != 0 ? 1 : 0);
  const auto grid = static_cast<unsigned int>(std::clamp<std::uint64_t>(wanted, 1, kMaxGrid));
  return driver_.LaunchKernel(function, grid, 1, 1, kBlock, 1, 1, 0, stream, parameters, nullptr);
}

CUresult Kernels::Fill(CUstream stream, CUdeviceptr address, std::uint64_t count, std::uint32_t value) const {
  void* parameters[] = {&address, &count, &value};
  return Launch(fill_, count, stream, parameters);
}

CUresult Kernels::Checksum(CUstream stream, CUdeviceptr address, std::uint64_t bytes, CUdeviceptr out) const {
  void* parameters[] = {&address, &bytes, &out};
  return Launch(checksum_, bytes / 8, stream, parameters);
}

CUresult Kernels::Store(CUstream stream, CUdeviceptr address, std::uint32_t value) const {
  void* parameters[] = {&address, &value};
  return driver_.LaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace gpumem::cuda
