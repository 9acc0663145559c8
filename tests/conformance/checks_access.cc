// tests/conformance/checks_access.cc: who may read and write a mapping, and what happens to who may not.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/agent.h"
#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

constexpr auto kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr auto kNone = CU_MEM_ACCESS_FLAGS_PROT_NONE;
constexpr auto kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr auto kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

unsigned long long AccessOf(Check& t, CUdeviceptr address, int device) {
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
  unsigned long long flags = ~0ull;
  MUST(cu.MemGetAccess(&flags, &location, address));
  return flags;
}

CONFORMANCE_CHECK(AccessArguments, "access.arguments", "cuMemSetAccess refuses no description, and what it cannot give",
                  "VMM_DESIGN [D'] for count 0, cuda.h [D], hip-tests [R]") {
  Init(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit, kNone);
  int count = 0;
  MUST(cu.DeviceGetCount(&count));
  CUmemAccessDesc desc = DeviceAccess(t.device(), kReadWrite);
  REFUSED("count 0", cu.MemSetAccess(memory.address, unit, &desc, 0), kInvalid);
  REFUSED("no description", cu.MemSetAccess(memory.address, unit, nullptr, 1), kInvalid);
  desc.flags = static_cast<CUmemAccess_flags>(2);
  REFUSED("flags 2", cu.MemSetAccess(memory.address, unit, &desc, 1), kInvalid);
  desc = DeviceAccess(count, kReadWrite);
  REFUSED("device = count", cu.MemSetAccess(memory.address, unit, &desc, 1), CUDA_ERROR_INVALID_DEVICE);
  desc = DeviceAccess(t.device(), kReadWrite);
  desc.location.type = CU_MEM_LOCATION_TYPE_HOST;
  REFUSED("the host, on device memory", cu.MemSetAccess(memory.address, unit, &desc, 1), kInvalid);
}

CONFORMANCE_CHECK(AccessRange, "access.range", "access is given to whole mappings without holes between them",
                  "cuda.h [D], hip-tests [R], cuda-samples, XLA [S]") {
  Init(t);
  const std::uint64_t unit = Unit(t);
  const CUdeviceptr at = Reserve(t, 8 * unit);
  for (const std::uint64_t i : {0, 2, 5}) MUST(cu.MemMap(at + i * unit, 2 * unit, 0, Create(t, 2 * unit), 0));
  const CUmemAccessDesc desc = DeviceAccess(t.device(), kReadWrite);
  REFUSED("half of a mapping", cu.MemSetAccess(at, unit, &desc, 1), kInvalid);
  REFUSED("with a hole", cu.MemSetAccess(at, 7 * unit, &desc, 1), kInvalid);
  REFUSED("and the range behind", cu.MemSetAccess(at + 5 * unit, 3 * unit, &desc, 1), kInvalid);
  MUST(cu.MemSetAccess(at, 4 * unit, &desc, 1));
  t.Equal("access of the first", AccessOf(t, at, t.device()), kReadWrite);
  t.Equal("access of the second", AccessOf(t, at + 3 * unit, t.device()), kReadWrite);
  t.Equal("access of the third", AccessOf(t, at + 5 * unit, t.device()), kNone);
}

CONFORMANCE_CHECK(AccessTold, "access.get", "cuMemGetAccess tells what was given, and nothing for a new mapping",
                  "hip-tests [R], cuda.h [D]") {
  Init(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit, kNone);
  t.Equal("a new mapping's", AccessOf(t, memory.address, t.device()), kNone);
  for (const auto flags : {kRead, kReadWrite, kRead, kNone}) {
    Allow(t, memory.address, unit, flags);
    t.Equal("what was set", AccessOf(t, memory.address, t.device()), flags);
  }
  unsigned long long flags = 0;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, t.device()};
  REFUSED("no output", cu.MemGetAccess(nullptr, &location, memory.address), kInvalid);
  REFUSED("no location", cu.MemGetAccess(&flags, nullptr, memory.address), kInvalid);
  UnmapAndFree(t, memory);
  REFUSED("nothing is there", cu.MemGetAccess(&flags, &location, memory.address), kInvalid);
}

CONFORMANCE_CHECK(CopyWithoutAccess, "access.none.copy", "a copy to or from a mapping without access is INVALID_VALUE",
                  "hip-tests [R]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit, kNone);
  std::uint32_t word = 1;
  REFUSED("cuMemcpyHtoD", cu.MemcpyHtoD(memory.address, &word, sizeof word), kInvalid);
  REFUSED("cuMemcpyDtoH", cu.MemcpyDtoH(&word, memory.address, sizeof word), kInvalid);
  MUST(cu.CtxSynchronize());
  Allow(t, memory.address, unit);
  MUST(cu.MemcpyHtoD(memory.address, &word, sizeof word));
}

CONFORMANCE_CHECK(CopyToReadOnly, "access.read-only.copy",
                  "a copy or a fill of a read-only mapping is INVALID_VALUE at once, and ends nothing",
                  "hip-tests HT_NVIDIA [R]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x600d);
  Allow(t, memory.address, unit, kRead);
  const Memory source = CreateMapped(t, unit);
  std::uint32_t word = 0xbad;
  REFUSED("cuMemcpyHtoD", cu.MemcpyHtoD(memory.address, &word, sizeof word), kInvalid);
  REFUSED("cuMemsetD32", cu.MemsetD32(memory.address, 0xbad, 1), kInvalid);
  REFUSED("cuMemcpyDtoD", cu.MemcpyDtoD(memory.address, source.address, 64), kInvalid);
  REFUSED("cuMemsetD32Async", cu.MemsetD32Async(memory.address, 0xbad, 1, NewStream(t)), kInvalid);
  MUST(cu.CtxSynchronize());
  t.Equal("a word, read", Word(t, memory.address), 0x600d);
  MUST(cu.MemcpyDtoD(source.address, memory.address, 64));
  t.Equal("a word, copied", Word(t, source.address), 0x600d);
  Allow(t, memory.address, unit, kReadWrite);
  MUST(cu.MemcpyHtoD(memory.address, &word, sizeof word));
  t.Equal("a word, after access was given back", Word(t, memory.address), 0xbad);
}

CONFORMANCE_CHECK(StoreToReadOnly, "access.read-only.store", "a kernel's store to a read-only mapping ends the process",
                  "dynamo GMS: Xid 31 FAULT_RO_VIOLATION [R]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit, kRead);
  CODE(StoreAndWait(t, memory.address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CONFORMANCE_CHECK(StoreWithoutAccess, "access.none.store", "a kernel's store to a mapping without access faults",
                  "hip-tests [R]") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t), kNone);
  CODE(StoreAndWait(t, memory.address, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CONFORMANCE_CHECK(StoreToReserved, "access.unmapped.store", "a kernel's store to a range with nothing in it faults",
                  "cuda.h [D] ILLEGAL_ADDRESS") {
  InitWithContext(t);
  CODE(StoreAndWait(t, Reserve(t, Unit(t)), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CONFORMANCE_CHECK(StoreAfterDowngrade, "access.downgrade", "read-write taken back to read-only holds for later kernels",
                  "hip-tests [R] for the change") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  CODE(StoreAndWait(t, memory.address, 1), CUDA_SUCCESS);
  Allow(t, memory.address, unit, kRead);
  t.Equal("a word", Word(t, memory.address), 1);
  CODE(StoreAndWait(t, memory.address, 2), CUDA_ERROR_ILLEGAL_ADDRESS);
}

CONFORMANCE_CHECK(DowngradeInUse, "access.downgrade-in-use", "read-write taken back under a running kernel", "U") {
  InitWithContext(t);
  SlowWork work(t);
  const CUstream stream = NewStream(t);
  work.Start(stream);
  Allow(t, work.memory().address, work.memory().bytes, kRead);
  const bool running = cu.StreamQuery(stream) == CUDA_ERROR_NOT_READY;
  const CUresult waited = cu.StreamSynchronize(stream);
  t.Reading("the call waited for it", running || waited != CUDA_SUCCESS ? "no" : "yes, or the work was over");
  t.Reading("the stream's end", CodeText(waited), CodeText(CUDA_ERROR_ILLEGAL_ADDRESS));
}

CONFORMANCE_CHECK(AliasAccess, "access.per-mapping", "each mapping of a handle has its own access", "VMM_DESIGN [D']") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory writer = CreateMapped(t, unit);
  const Memory reader = MapHandle(t, writer.handle, unit, kRead);
  std::uint32_t word = 4;
  MUST(cu.MemcpyHtoD(writer.address, &word, sizeof word));
  t.Equal("read through the reader's", Word(t, reader.address), 4);
  REFUSED("a copy through the reader's", cu.MemcpyHtoD(reader.address, &word, sizeof word), kInvalid);
}

CONFORMANCE_CHECK(AccessDoesNotTravel, "access.does-not-travel",
                  "an importer starts without access and may take more than the exporter has", "VMM_DESIGN [D']") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit, kRead);
  const gpumem::UniqueFd fd = Export(t, memory.handle);
  const Memory imported = MapHandle(t, Import(t, fd.get()), unit, kNone);
  t.Equal("the import's access", AccessOf(t, imported.address, t.device()), kNone);
  Allow(t, imported.address, unit, kReadWrite);
  Fill(t, imported.address, unit, 8);
  t.Equal("read by the exporter", Word(t, memory.address), 8);
}

CONFORMANCE_CHECK(AccessPerDevice, "access.per-device",
                  "access is per device: another device has none until it is given", "programming guide [D]") {
  Init(t);
  NeedTwoDevices(t);
  const int other = OtherDevice(t);
  int peer = 0;
  MUST(cu.DeviceCanAccessPeer(&peer, other, t.device()));
  if (peer == 0) t.Skip("the two devices cannot access each other");
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  t.Equal("the other device's access", AccessOf(t, memory.address, other), kNone);
  CUcontext context = nullptr;
  MUST(cu.PrimaryCtxRetain(&context, other));
  MUST(cu.CtxSetCurrent(context));
  const CUmemAccessDesc desc = DeviceAccess(other, kReadWrite);
  MUST(cu.MemSetAccess(memory.address, unit, &desc, 1));
  t.Equal("its own device's access", AccessOf(t, memory.address, t.device()), kReadWrite);
  CODE(StoreAndWait(t, memory.address, 6), CUDA_SUCCESS);
  t.Equal("a word", Word(t, memory.address), 6);
  const CUmemAccessDesc read = DeviceAccess(other, kRead);
  EITHER("read-only for a peer", cu.MemSetAccess(memory.address, unit, &read, 1), CUDA_SUCCESS);
  const CUmemAccessDesc none = DeviceAccess(other, kNone);
  MUST(cu.MemSetAccess(memory.address, unit, &none, 1));
  CODE(StoreAndWait(t, memory.address, 7), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// What ended a forked child that runs `touch`: a signal, or 0.
template <typename Touch>
int SignalOf(Check& t, const Touch& touch) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::signal(SIGBUS, SIG_DFL);
    touch();
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    t.Fail("fork or waitpid failed");
    t.End();
  }
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

CONFORMANCE_CHECK(CpuTouch, "access.cpu", "a device address is no address of the CPU: it faults in the process",
                  "programming guide [D]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 1);
  auto* const pointer = static_cast<volatile char*>(AsPointer(memory.address));
  const int read = SignalOf(t, [pointer] { (void)*pointer; });
  const int write = SignalOf(t, [pointer] { *pointer = 1; });
  TRUE(read == SIGSEGV || read == SIGBUS);
  TRUE(write == SIGSEGV || write == SIGBUS);
  t.Reading("signal of a read", std::to_string(read));
}

// ---- What a fault does. ----

CONFORMANCE_CHECK(Sticky, "fault.sticky", "after a fault every later call of the process returns the same code",
                  "cuda.h [D], pg-strom#560 [R]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  const CUstream stream = NewStream(t);
  CUevent event = nullptr;
  MUST(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CODE(StoreAndWait(t, Reserve(t, unit), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  constexpr auto kSticky = CUDA_ERROR_ILLEGAL_ADDRESS;
  std::uint32_t word = 0;
  CUdeviceptr address = 0;
  for (int i = 0; i < 2; ++i) {
    CODE(cu.CtxSynchronize(), kSticky);
    CODE(cu.StreamSynchronize(stream), kSticky);
    CODE(cu.MemcpyDtoH(&word, memory.address, sizeof word), kSticky);
    CODE(cu.MemcpyHtoD(memory.address, &word, sizeof word), kSticky);
    CODE(cu.MemsetD32(memory.address, 1, 1), kSticky);
    CODE(cu.MemAlloc(&address, unit), kSticky);
  }
  CODE(cu.EventRecord(event, stream), kSticky);
}

CONFORMANCE_CHECK(StickyVmm, "fault.vmm", "the VMM calls after a fault", "U: the sticky code assumed") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  gpumem::UniqueFd fd = Export(t, memory.handle);
  CODE(StoreAndWait(t, Reserve(t, unit), 1), CUDA_ERROR_ILLEGAL_ADDRESS);
  const std::string sticky = CodeText(CUDA_ERROR_ILLEGAL_ADDRESS);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  const CUmemAllocationProp prop = Prop(t);
  const CUmemAccessDesc desc = DeviceAccess(t.device(), kRead);
  int exported = -1;
  t.Reading("cuMemCreate", CodeText(cu.MemCreate(&handle, unit, &prop, 0)), sticky);
  t.Reading("cuMemExportToShareableHandle",
            CodeText(cu.MemExport(&exported, memory.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)), sticky);
  t.Reading("cuMemImportFromShareableHandle",
            CodeText(cu.MemImport(&handle, AsShareable(fd.get()), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)), sticky);
  t.Reading("cuMemAddressReserve", CodeText(cu.MemAddressReserve(&address, unit, 0, 0, 0)), sticky);
  t.Reading("cuMemSetAccess", CodeText(cu.MemSetAccess(memory.address, unit, &desc, 1)), sticky);
  t.Reading("cuMemUnmap", CodeText(cu.MemUnmap(memory.address, unit)), sticky);
  t.Reading("cuMemRelease", CodeText(cu.MemRelease(memory.handle)), sticky);
  t.Reading("cuMemAddressFree", CodeText(cu.MemAddressFree(memory.address, unit)), sticky);
}

CONFORMANCE_CHECK(FirstStays, "fault.first-stays", "a second mistake does not change the first code",
                  "cuda.h [D] 'must be terminated and relaunched'") {
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  Kernels kernels;
  MUST(kernels.Load());
  MUST(kernels.Store(nullptr, memory.address + 1, 1));  // not aligned
  const CUresult first = cu.CtxSynchronize();
  CODE(first, CUDA_ERROR_MISALIGNED_ADDRESS);
  CODE(kernels.Store(nullptr, 4096, 1), first);
  CODE(cu.CtxSynchronize(), first);
}

CONFORMANCE_CHECK(FaultElsewhere, "fault.contained", "a fault in one process leaves others and the shared memory alone",
                  "MPS documentation, guide [D] (without MPS)") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0xfade);
  Agent other(t);
  other.Must(Order::kInit);
  other.Must(Order::kContext, static_cast<std::uint64_t>(t.device()));
  const gpumem::UniqueFd fd = Export(t, memory.handle);
  other.Must(Order::kImport, 0, 0, fd.get());
  other.Must(Order::kMap, unit, kRead);
  CODE(other.Do(Order::kStore, 0, 1).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  CODE(other.Do(Order::kWord).code, CUDA_ERROR_ILLEGAL_ADDRESS);
  MUST(cu.CtxSynchronize());
  t.Equal("a word, here", Word(t, memory.address), 0xfade);
  Fill(t, memory.address, unit, 0xcafe);
  t.Equal("a new word, here", Word(t, memory.address), 0xcafe);
  other.Kill();
  t.Equal("a word, after the other's end", Word(t, memory.address), 0xcafe);
}

CONFORMANCE_CHECK(FaultFrees, "fault.memory-returns", "the end of a process that faulted returns its memory",
                  "okm: teardown in exit [S]") {
  InitWithContext(t);
  const std::uint64_t bytes = std::uint64_t{512} * kMiB;
  const std::uint64_t before = FreeBytes(t);
  {
    Agent other(t);
    other.Must(Order::kInit);
    other.Must(Order::kContext, static_cast<std::uint64_t>(t.device()));
    other.Must(Order::kCreate, bytes, static_cast<std::uint64_t>(t.device()));
    other.Must(Order::kMap, bytes, kRead);
    CODE(other.Do(Order::kStore, 0, 1).code, CUDA_ERROR_ILLEGAL_ADDRESS);
    TRUE(FreeBytes(t) + bytes / 2 < before);
    other.Exit();
  }
  TRUE(WaitForFree(t, before - bytes / 2) + bytes / 2 >= before);
}

}  // namespace
}  // namespace conformance
