// tests/conformance/checks_share.cc: exporting and importing, what an exported descriptor is, and how long memory lives
// across processes.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/conformance/agent.h"
#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

using gpumem::UniqueFd;

constexpr auto kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr auto kFdType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kReadWrite = static_cast<std::uint64_t>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

std::uint64_t Device(const Check& t) { return static_cast<std::uint64_t>(t.device()); }

// ---- Export. ----

CONFORMANCE_CHECK(ExportArguments, "share.export.arguments", "no output, flags and other handle types are refused",
                  "cuda.h [D] flags, hip-tests [R]") {
  Init(t);
  const CUmemGenericAllocationHandle handle = Create(t, Unit(t));
  int fd = -1;
  REFUSED("no output", cu.MemExport(nullptr, handle, kFdType, 0), kInvalid);
  REFUSED("flags 1", cu.MemExport(&fd, handle, kFdType, 1), kInvalid);
  REFUSED("as WIN32", cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_WIN32, 0), kInvalid);
  REFUSED("as nothing", cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_NONE, 0), kInvalid);
  t.True("a refusal leaves the output as it was", fd == -1);
}

CONFORMANCE_CHECK(ExportNeedsType, "share.export.type-at-create",
                  "memory created without the descriptor type can never be exported as one",
                  "cuda.h [D], UCX#11548 [R]; the code is R") {
  Init(t);
  const CUmemGenericAllocationHandle handle = Create(t, Unit(t), /*exportable=*/false);
  int fd = -1;
  REFUSED("created without", cu.MemExport(&fd, handle, kFdType, 0), kInvalid);
}

CONFORMANCE_CHECK(ExportTwice, "share.export.new-each-time", "each export is a new descriptor of the same memory",
                  "okm [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x77);
  UniqueFd one = Export(t, memory.handle);
  const UniqueFd two = Export(t, memory.handle);
  TRUE(one.get() != two.get());
  one.reset();
  const Memory imported = MapHandle(t, Import(t, two.get()), unit);
  t.Equal("a word", Word(t, imported.address), 0x77);
}

CONFORMANCE_CHECK(ExportImported, "share.export.imported", "an imported handle can be exported again", "okm [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x78);
  const UniqueFd first = Export(t, memory.handle);
  const UniqueFd second = Export(t, Import(t, first.get()));
  const Memory imported = MapHandle(t, Import(t, second.get()), unit);
  t.Equal("a word", Word(t, imported.address), 0x78);
}

CONFORMANCE_CHECK(ExportWithoutFds, "share.export.no-descriptors",
                  "without a free descriptor an export fails, and the process goes on", "kernel [S]; the code is U") {
  Init(t);
  const CUmemGenericAllocationHandle handle = Create(t, Unit(t));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{0, limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  int fd = -1;
  const CUresult got = cu.MemExport(&fd, handle, kFdType, 0);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  REFUSED("RLIMIT_NOFILE reached", got, CUDA_ERROR_OPERATING_SYSTEM);
  const UniqueFd after = Export(t, handle);
}

CONFORMANCE_CHECK(ExportCloexec, "share.fd.cloexec", "whether an exported descriptor is close-on-exec",
                  "U: inheritable assumed, so that everyone sets it") {
  Init(t);
  int fd = -1;
  const CUmemGenericAllocationHandle handle = Create(t, Unit(t));
  MUST(cu.MemExport(&fd, handle, kFdType, 0));
  const UniqueFd owned(fd);
  t.Reading("FD_CLOEXEC", (::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0 ? "set" : "not set", "not set");
}

CONFORMANCE_CHECK(FdOpaque, "share.fd.opaque", "the descriptor cannot be mapped or read, and tells no size",
                  "okm: an open file of /dev/nvidiactl [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x41414141);
  const UniqueFd fd = Export(t, memory.handle);
  TRUE(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0) == MAP_FAILED);
  TRUE(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd.get(), 0) == MAP_FAILED);
  TRUE(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0) == MAP_FAILED);
  char byte = 0;
  TRUE(::read(fd.get(), &byte, 1) <= 0);
  TRUE(::pread(fd.get(), &byte, 1, 0) <= 0);
  struct stat status {};
  TRUE(::fstat(fd.get(), &status) == 0);
  t.Equal("st_size", static_cast<std::uint64_t>(status.st_size), 0);
}

CONFORMANCE_CHECK(FdNature, "share.fd.nature", "what fstat, poll and epoll say of the descriptor",
                  "okm [S]; poll is U") {
  Init(t);
  const UniqueFd fd = Export(t, Create(t, Unit(t)));
  struct stat status {};
  TRUE(::fstat(fd.get(), &status) == 0);
  char text[64];
  std::snprintf(text, sizeof text, "mode %o, device %u:%u", status.st_mode, ::major(status.st_rdev),
                ::minor(status.st_rdev));
  t.Reading("fstat", text);
  pollfd wait{fd.get(), POLLIN | POLLOUT | POLLPRI, 0};
  const int ready = ::poll(&wait, 1, 0);
  std::snprintf(text, sizeof text, "%d, revents 0x%x", ready, static_cast<unsigned>(wait.revents));
  t.Reading("poll", text);
  t.Reading("poll tells an error or a hangup", (wait.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0 ? "yes" : "no",
            "no");
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  const int added = ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd.get(), &event);
  t.Reading("epoll_ctl", added == 0 ? "added" : std::strerror(errno));
}

// ---- Import. ----

CONFORMANCE_CHECK(ImportAgain, "share.import.not-consumed",
                  "an import neither consumes nor closes the descriptor; it may be repeated, also by the exporter",
                  "okm [S], VMM_DESIGN [D'], cuda-samples [D]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  const UniqueFd fd = Export(t, memory.handle);
  Memory imports[3];
  for (Memory& import : imports) {
    import = MapHandle(t, Import(t, fd.get()), unit);
    TRUE(::fcntl(fd.get(), F_GETFD) >= 0);
  }
  Fill(t, memory.address, unit, 0x99);
  for (const Memory& import : imports) t.Equal("a word through an import", Word(t, import.address), 0x99);
  for (const Memory& import : imports) MUST(cu.MemRelease(import.handle));  // each has a reference of its own
  UnmapAndFree(t, imports[0]);
  t.Equal("a word through another", Word(t, imports[1].address), 0x99);
  t.Reading("two imports have one handle value", imports[0].handle == imports[1].handle ? "yes" : "no");
}

CONFORMANCE_CHECK(ImportThenClose, "share.import.fd-may-close", "an import outlives the descriptor that it came from",
                  "cuda-samples, NCCL [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x9a);
  UniqueFd fd = Export(t, memory.handle);
  const CUmemGenericAllocationHandle imported = Import(t, fd.get());
  fd.reset();
  MUST(cu.MemRelease(memory.handle));
  UnmapAndFree(t, memory);
  const Memory mapped = MapHandle(t, imported, unit);
  t.Equal("a word", Word(t, mapped.address), 0x9a);
}

CONFORMANCE_CHECK(ImportForeign, "share.import.foreign", "a descriptor that the driver did not export is refused",
                  "okm [S]; the code is U") {
  Init(t);
  CUmemGenericAllocationHandle handle = 0;
  const auto import = [&](int fd) { return cu.MemImport(&handle, AsShareable(fd), kFdType); };
  char name[] = "/tmp/conformance-XXXXXX";
  const UniqueFd file(::mkostemp(name, O_CLOEXEC));
  ::unlink(name);
  TRUE(::ftruncate(file.get(), 4 << 20) == 0);
  const UniqueFd memory(::memfd_create("foreign", MFD_CLOEXEC));
  TRUE(::ftruncate(memory.get(), 4 << 20) == 0);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int pipe[2] = {-1, -1};
  int sockets[2] = {-1, -1};
  TRUE(::pipe2(pipe, O_CLOEXEC) == 0 && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  REFUSED("a file", import(file.get()), kInvalid);
  REFUSED("a memfd", import(memory.get()), kInvalid);
  REFUSED("/dev/null", import(null.get()), kInvalid);
  REFUSED("a pipe", import(pipe[0]), kInvalid);
  REFUSED("a socket", import(sockets[0]), kInvalid);
}

CONFORMANCE_CHECK(ImportNothing, "share.import.no-descriptor", "a closed descriptor and descriptor 0 are refused",
                  "hip-tests [R] for 0; the code is U") {
  Init(t);
  CUmemGenericAllocationHandle handle = 0;
  const UniqueFd fd = Export(t, Create(t, Unit(t)));
  REFUSED("descriptor 0", cu.MemImport(&handle, nullptr, kFdType), kInvalid);
  const int closed = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 200);
  ::close(closed);
  REFUSED("a closed one", cu.MemImport(&handle, AsShareable(closed), kFdType), kInvalid);
  REFUSED("-1", cu.MemImport(&handle, AsShareable(-1), kFdType), kInvalid);
  REFUSED("no output", cu.MemImport(nullptr, AsShareable(fd.get()), kFdType), kInvalid);
}

CONFORMANCE_CHECK(ImportNvidiactl, "share.import.bare-device", "an open device file that exports nothing is refused",
                  "okm [S]; the code is U") {
  Init(t);
  const UniqueFd device(::open("/dev/nvidiactl", O_RDWR | O_CLOEXEC));
  if (!device.valid()) t.Skip("there is no /dev/nvidiactl");
  CUmemGenericAllocationHandle handle = 0;
  REFUSED("/dev/nvidiactl", cu.MemImport(&handle, AsShareable(device.get()), kFdType), kInvalid);
}

CONFORMANCE_CHECK(ImportElsewhere, "share.import.another-process", "another process sees the same memory, both ways",
                  "cuda-samples memMapIPCDrv [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x10);
  const UniqueFd fd = Export(t, memory.handle);
  Agent other(t);
  other.Must(Order::kInit);
  other.Must(Order::kContext, Device(t));
  other.Must(Order::kImport, 0, 0, fd.get());
  other.Must(Order::kMap, unit, kReadWrite);
  t.Equal("written here, read there", other.Must(Order::kWord, unit - 4), 0x10);
  other.Must(Order::kFill, 0x20);
  t.Equal("written there, read here", Word(t, memory.address + 4096), 0x20);
  CODE(other.Do(Order::kStore, 0, 0x30).code, CUDA_SUCCESS);
  t.Equal("stored by a kernel there, read here", Word(t, memory.address), 0x30);
  t.Equal("the location in the importer", other.Must(Order::kLocation), Device(t));
}

CONFORMANCE_CHECK(ImportOtherUser, "share.import.another-user", "whether another user may import", "U") {
  Init(t);
  if (::geteuid() != 0) t.Skip("needs root");
  const UniqueFd fd = Export(t, Create(t, Unit(t)));
  Agent other(t);
  other.Must(Order::kSetUid, 65534);
  const CUresult init = other.Do(Order::kInit).code;
  t.Reading("cuInit", CodeText(init));
  if (init == CUDA_SUCCESS) t.Reading("import", CodeText(other.Do(Order::kImport, 0, 0, fd.get()).code));
}

CONFORMANCE_CHECK(ImportHidden, "share.import.hidden-device", "memory of a device that the importer does not see",
                  "U: 101 or 801, NCCL#1647 [R]") {
  Init(t);
  NeedTwoDevices(t);
  if (::getenv("CUDA_VISIBLE_DEVICES") != nullptr) t.Skip("CUDA_VISIBLE_DEVICES is set already");
  const UniqueFd fd = Export(t, Create(t, Unit(t)));
  Agent other(t, {"CUDA_VISIBLE_DEVICES=" + std::to_string(OtherDevice(t))});
  other.Must(Order::kInit);
  REFUSED("import", other.Do(Order::kImport, 0, 0, fd.get()).code, CUDA_ERROR_INVALID_DEVICE);
}

CONFORMANCE_CHECK(ImportRenumbered, "share.import.location-local", "an import's location is the importer's own ordinal",
                  "U") {
  Init(t);
  NeedTwoDevices(t);
  if (::getenv("CUDA_VISIBLE_DEVICES") != nullptr) t.Skip("CUDA_VISIBLE_DEVICES is set already");
  const UniqueFd fd = Export(t, Create(t, Unit(t)));
  const int other_device = OtherDevice(t);
  Agent other(t, {"CUDA_VISIBLE_DEVICES=" + std::to_string(other_device) + "," + std::to_string(t.device())});
  other.Must(Order::kInit);
  other.Must(Order::kImport, 0, 0, fd.get());
  t.Reading("the location", std::to_string(other.Must(Order::kLocation)), "1");
}

CONFORMANCE_CHECK(LegacyIpc, "share.legacy-ipc", "cuIpcGetMemHandle refuses memory of cuMemCreate",
                  "CUDA guide [D]; the code is U") {
  NEED(IpcGetMemHandle);
  InitWithContext(t);
  const Memory memory = CreateMapped(t, Unit(t));
  char handle[64] = {};
  REFUSED("cuIpcGetMemHandle", cu.IpcGetMemHandle(handle, memory.address), kInvalid);
}

// ---- Who keeps memory alive. ----

// Memory of another process with a pattern in it, large enough to be seen in cuMemGetInfo.
struct Shared {
  explicit Shared(Check& t) : bytes(std::max(Unit(t), 64 * kMiB)), free_before(FreeBytes(t)), owner(t) {
    owner.Must(Order::kInit);
    owner.Must(Order::kContext, Device(t));
    owner.Must(Order::kCreate, bytes, Device(t));
    owner.Must(Order::kMap, bytes, kReadWrite);
    owner.Must(Order::kFill, kPattern);
    owner.Must(Order::kExport);
    fd = owner.TakeFd();
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
  }
  void ExpectContents(Check& t, int from) const {
    const CUmemGenericAllocationHandle handle = Import(t, from);
    const Memory mapped = MapHandle(t, handle, bytes);
    t.Equal("the first word", Word(t, mapped.address), kPattern);
    t.Equal("a word in the middle", Word(t, mapped.address + bytes / 2), kPattern);
    t.Equal("the last word", Word(t, mapped.address + bytes - 4), kPattern);
    UnmapAndFree(t, mapped);
    MUST(cu.MemRelease(handle));
  }
  void ExpectReturned(Check& t) const {
    const double start = Now();
    const std::uint64_t free = WaitForFree(t, free_before - bytes / 2);
    TRUE(free + bytes / 2 >= free_before);
    t.Reading("until the memory is back", Milliseconds(Now() - start));
  }
  void ExpectHeld(Check& t) const {
    Sleep(0.05);
    TRUE(FreeBytes(t) + bytes / 2 < free_before);
  }

  static constexpr std::uint32_t kPattern = 0xabcd1234;
  std::uint64_t bytes;
  std::uint64_t free_before;
  Agent owner;
  UniqueFd fd;
};

CONFORMANCE_CHECK(LifeKilled, "life.nothing-left", "SIGKILL of the only holder returns the memory",
                  "okm: teardown in exit [S]") {
  InitWithContext(t);
  Shared shared(t);
  shared.fd.reset();
  shared.ExpectHeld(t);
  shared.owner.Kill();
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeExit, "life.exit", "the end of a process that released nothing returns the memory",
                  "okm: teardown in exit [S]") {
  InitWithContext(t);
  Shared shared(t);
  shared.fd.reset();
  shared.owner.Exit();
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeFdHere, "life.fd-after-sigkill",
                  "a descriptor alone keeps memory and contents through SIGKILL of its exporter",
                  "okm [S], cuda.h [D], smolvm#650 [R]") {
  InitWithContext(t);
  Shared shared(t);
  shared.owner.Kill();
  shared.ExpectHeld(t);
  shared.ExpectContents(t, shared.fd.get());
  shared.ExpectContents(t, shared.fd.get());
  shared.fd.reset();
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeFdWithoutCuda, "life.fd-without-cuda",
                  "a descriptor in a process that never loads CUDA keeps memory and contents",
                  "file semantics [S]; end to end U") {
  InitWithContext(t);
  Shared shared(t);
  Agent keeper(t);
  keeper.Must(Order::kKeep, 0, 0, shared.fd.get());
  shared.fd.reset();
  shared.owner.Kill();
  shared.ExpectHeld(t);
  keeper.Must(Order::kSendKept);
  UniqueFd back = keeper.TakeFd();
  shared.ExpectContents(t, back.get());
  back.reset();
  shared.ExpectHeld(t);
  keeper.Must(Order::kDropKept);
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeNoCudaAtAll, "life.fd-no-cuda-process",
                  "it does so while no process at all has CUDA initialised, where the device stays open",
                  "okm nv.c [S]; end to end U") {
  const std::uint64_t unit = 32 * kMiB;  // this process must not initialise CUDA to ask
  UniqueFd fd;
  {
    Agent owner(t);
    owner.Must(Order::kInit);
    owner.Must(Order::kContext, Device(t));
    owner.Must(Order::kCreate, unit, Device(t));
    owner.Must(Order::kMap, unit, kReadWrite);
    owner.Must(Order::kFill, 0x1dea);
    owner.Must(Order::kExport);
    fd = owner.TakeFd();
    owner.Kill();
  }
  Sleep(0.2);
  Agent importer(t);
  importer.Must(Order::kInit);
  importer.Must(Order::kContext, Device(t));
  importer.Must(Order::kImport, 0, 0, fd.get());
  importer.Must(Order::kMap, unit, kReadWrite);
  t.Equal("a word", importer.Must(Order::kWord, unit - 4), 0x1dea);
}

CONFORMANCE_CHECK(LifeInFlight, "life.fd-in-flight", "a descriptor in a unix socket's queue keeps memory and contents",
                  "file semantics [S]") {
  InitWithContext(t);
  Shared shared(t);
  int sockets[2] = {-1, -1};
  TRUE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
  UniqueFd near(sockets[0]);
  UniqueFd far(sockets[1]);
  TRUE(SendFd(far.get(), shared.fd.get()));
  shared.fd.reset();
  shared.owner.Kill();
  shared.ExpectHeld(t);
  {
    const UniqueFd received = ReceiveFd(near.get());
    shared.ExpectContents(t, received.get());
    TRUE(SendFd(far.get(), received.get()));
  }
  far.reset();
  near.reset();  // never received: the kernel drops it with the queue
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeHandle, "life.import-handle-only",
                  "an importer's handle alone keeps memory and contents: the descriptor closed, the exporter dead",
                  "okm [S], cuda.h [D]") {
  InitWithContext(t);
  Shared shared(t);
  const CUmemGenericAllocationHandle handle = Import(t, shared.fd.get());
  shared.fd.reset();
  shared.owner.Kill();
  shared.ExpectHeld(t);
  const Memory mapped = MapHandle(t, handle, shared.bytes);
  t.Equal("the last word", Word(t, mapped.address + shared.bytes - 4), Shared::kPattern);
  UnmapAndFree(t, mapped);
  MUST(cu.MemRelease(handle));
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeMapping, "life.import-mapping-only", "an importer's mapping alone keeps memory and contents",
                  "okm uvm_map_external.c [S], cuda.h [D]") {
  InitWithContext(t);
  Shared shared(t);
  const Memory mapped = MapHandle(t, Import(t, shared.fd.get()), shared.bytes);
  MUST(cu.MemRelease(mapped.handle));
  shared.fd.reset();
  shared.owner.Kill();
  shared.ExpectHeld(t);
  t.Equal("the last word", Word(t, mapped.address + shared.bytes - 4), Shared::kPattern);
  UnmapAndFree(t, mapped);
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeImporterKilled, "life.importer-sigkill", "SIGKILL of an importer leaves the exporter's memory",
                  "okm [S]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x31);
  const UniqueFd fd = Export(t, memory.handle);
  {
    Agent other(t);
    other.Must(Order::kInit);
    other.Must(Order::kContext, Device(t));
    other.Must(Order::kImport, 0, 0, fd.get());
    other.Must(Order::kMap, unit, kReadWrite);
    other.Kill();
  }
  t.Equal("a word", Word(t, memory.address), 0x31);
  Fill(t, memory.address, unit, 0x32);
  t.Equal("a new word", Word(t, memory.address), 0x32);
}

CONFORMANCE_CHECK(LifeForkedChild, "life.forked-child", "a forked child of a killed process and the memory",
                  "mxnet#4242 [R]: the child holds it") {
  InitWithContext(t);
  Shared shared(t);
  shared.fd.reset();
  const auto child = static_cast<pid_t>(shared.owner.Must(Order::kForkHolder));
  shared.owner.Kill();
  Sleep(0.3);
  const bool held = FreeBytes(t) + shared.bytes / 2 < shared.free_before;
  t.Reading("held by the child", held ? "yes" : "no", "yes");
  ::kill(child, SIGKILL);
  shared.ExpectReturned(t);
}

CONFORMANCE_CHECK(LifeLastWrite, "life.kill-to-last-write", "how long after its end a killed process's kernels write",
                  "U: NVIDIA gives no guarantee") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  const UniqueFd fd = Export(t, memory.handle);
  Agent writer(t);
  writer.Must(Order::kInit);
  writer.Must(Order::kContext, Device(t));
  writer.Must(Order::kImport, 0, 0, fd.get());
  writer.Must(Order::kMap, unit, kReadWrite);
  writer.Must(Order::kKeepWriting);
  const double give_up = Now() + 5;
  while (Word(t, memory.address) == 0 && Now() < give_up) {
  }
  writer.Kill();
  const double end = Now();
  // Watches the first and the last word that it writes.
  const CUdeviceptr last = memory.address + std::min(unit, kMiB / 2) - 4;
  std::uint64_t seen = Word(t, memory.address) + (std::uint64_t{Word(t, last)} << 32);
  double changed = 0;
  while (Now() < end + 0.3 + changed) {
    const std::uint64_t now = Word(t, memory.address) + (std::uint64_t{Word(t, last)} << 32);
    if (now != seen) changed = Now() - end;
    seen = now;
  }
  t.Reading("last write after the process's end", changed == 0 ? "none seen" : Milliseconds(changed));
  t.Reading("the fill that was reached, of 500", std::to_string(seen & 0xffffffff));
}

}  // namespace
}  // namespace conformance
