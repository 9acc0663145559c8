// cuda/kernels_ptx.h: the text of the project's own small kernels. No other header needed, so that a program that must
// build with a compiler alone (tests/conformance) has them too. cuda/kernels.h loads and launches them.
#ifndef GPUMEM_CUDA_KERNELS_PTX_H_
#define GPUMEM_CUDA_KERNELS_PTX_H_

namespace gpumem::cuda {

// The module's text, null-terminated.
//   gpumem_fill(u64 address, u64 count, u32 value)     stores `value` into `count` u32 words
//   gpumem_checksum(u64 address, u64 bytes, u64 out)   adds the checksum of cuda/checksum.h to the u64 at `out`
//   gpumem_store(u64 address, u32 value)               stores one u32
// Addresses are device addresses, aligned to 4 (fill, store) or 8 (checksum) bytes. Any grid and block size is right.
//
// Written by hand for the oldest target that the project supports (Volta); newer devices run it as well. Each kernel
// but the last walks its words with a grid-wide stride: thread t of T takes words t, t + T, t + 2T, …
inline constexpr char kKernelsPtx[] = R"ptx(
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

}  // namespace gpumem::cuda

#endif  // GPUMEM_CUDA_KERNELS_PTX_H_
