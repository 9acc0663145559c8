// tests/conformance/checks_cost.cc: what things cost, and what else only a machine can tell. Readings: a time is never
// asserted, only that the calls work.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "tests/conformance/agent.h"
#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

using gpumem::UniqueFd;

// The median of a call's times.
class Timer {
 public:
  template <typename Call>
  auto Time(const Call& call) {
    const double start = Now();
    auto result = call();
    seconds_.push_back(Now() - start);
    return result;
  }
  std::string Microseconds() {
    std::sort(seconds_.begin(), seconds_.end());
    return std::to_string(static_cast<long>(seconds_[seconds_.size() / 2] * 1e6)) + " us";
  }

 private:
  std::vector<double> seconds_;
};

// One row of the table: each call's median for handles of one size.
void MeasureSize(Check& t, std::uint64_t bytes, const std::string& size) {
  constexpr int kRounds = 9;
  Timer reserve, create, map, access, exports, send, import, unmap, release, free, close;
  const CUmemAllocationProp prop = Prop(t);
  const CUmemAccessDesc desc = DeviceAccess(t.device(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  int sockets[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) t.Skip("no socket pair");
  const UniqueFd near(sockets[0]);
  const UniqueFd far(sockets[1]);
  for (int round = 0; round < kRounds; ++round) {
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    CUmemGenericAllocationHandle imported = 0;
    int fd = -1;
    MUST(reserve.Time([&] { return cu.MemAddressReserve(&address, bytes, 0, 0, 0); }));
    MUST(create.Time([&] { return cu.MemCreate(&handle, bytes, &prop, 0); }));
    MUST(map.Time([&] { return cu.MemMap(address, bytes, 0, handle, 0); }));
    MUST(access.Time([&] { return cu.MemSetAccess(address, bytes, &desc, 1); }));
    MUST(exports.Time([&] { return cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0); }));
    UniqueFd received = send.Time([&] {
      SendFd(near.get(), fd);
      return ReceiveFd(far.get());
    });
    MUST(import.Time([&] {
      return cu.MemImport(&imported, AsShareable(received.get()), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }));
    MUST(cu.MemRelease(imported));
    received.reset();
    close.Time([&] { return ::close(fd); });
    MUST(unmap.Time([&] { return cu.MemUnmap(address, bytes); }));
    MUST(release.Time([&] { return cu.MemRelease(handle); }));
    MUST(free.Time([&] { return cu.MemAddressFree(address, bytes); }));
  }
  t.Reading(size + " reserve", reserve.Microseconds());
  t.Reading(size + " create", create.Microseconds());
  t.Reading(size + " map", map.Microseconds());
  t.Reading(size + " set access", access.Microseconds());
  t.Reading(size + " export", exports.Microseconds());
  t.Reading(size + " send and receive", send.Microseconds());
  t.Reading(size + " import", import.Microseconds());
  t.Reading(size + " close the last descriptor", close.Microseconds());
  t.Reading(size + " unmap", unmap.Microseconds());
  t.Reading(size + " release the last reference", release.Microseconds());
  t.Reading(size + " free the range", free.Microseconds());
}

CONFORMANCE_CHECK(Latency, "cost.latency", "the median time of each call, by the size of the handle", "reading") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  MeasureSize(t, unit, std::to_string(unit / kMiB) + " MiB");
  if (unit < 64 * kMiB) MeasureSize(t, 64 * kMiB, "64 MiB");
  size_t total = 0;
  MUST(cu.DeviceTotalMem(&total, t.device()));
  if (total > 4 * kGiB) MeasureSize(t, kGiB, "1 GiB");
}

CONFORMANCE_CHECK(ReserveCost, "cost.reserve", "the largest range, and the time to free it",
                  "PyTorch#192269, cuda.core va_reservation.py [R]; reading") {
  Init(t);
  for (int bits = 47; bits >= 38; --bits) {
    CUdeviceptr address = 0;
    const std::uint64_t bytes = std::uint64_t{1} << bits;
    double start = Now();
    const CUresult got = cu.MemAddressReserve(&address, bytes, 0, 0, 0);
    const double reserved = Now() - start;
    if (got != CUDA_SUCCESS) continue;
    start = Now();
    MUST(cu.MemAddressFree(address, bytes));
    t.Reading("largest range granted", "2^" + std::to_string(bits));
    t.Reading("time to reserve it", Milliseconds(reserved));
    t.Reading("time to free it", Milliseconds(Now() - start));
    return;
  }
  t.Fail("not even 2^38 bytes of addresses can be reserved");
}

CONFORMANCE_CHECK(CreateAfterFree, "cost.create-after-free", "creating right after most of the memory was freed",
                  "okm: allocation may wait for the scrubber [S]; reading") {
  InitWithContext(t);
  const CUmemAllocationProp prop = Prop(t);
  std::vector<CUmemGenericAllocationHandle> handles;
  const std::uint64_t target = FreeBytes(t) / 10 * 9;
  CUmemGenericAllocationHandle handle = 0;
  while ((handles.size() + 1) * kGiB <= target && cu.MemCreate(&handle, kGiB, &prop, 0) == CUDA_SUCCESS) {
    handles.push_back(handle);
  }
  t.Reading("created first, GiB", std::to_string(handles.size()));
  double start = Now();
  for (const CUmemGenericAllocationHandle each : handles) MUST(cu.MemRelease(each));
  t.Reading("time to release them", Milliseconds(Now() - start));
  const std::size_t again = std::max<std::size_t>(handles.size() / 2, 1);
  const std::uint64_t size = handles.empty() ? Unit(t) : kGiB;
  double longest = 0;
  start = Now();
  for (std::size_t i = 0; i < again; ++i) {
    const double one = Now();
    MUST(cu.MemCreate(&handle, size, &prop, 0));
    longest = std::max(longest, Now() - one);
  }
  t.Reading("time to create half of them again", Milliseconds(Now() - start));
  t.Reading("the longest of those", Milliseconds(longest));
}

CONFORMANCE_CHECK(ContextCost, "cost.context", "the device memory and the time that a process with a context costs",
                  "llama.cpp#23604, ollama#12102 [R]; reading") {
  InitWithContext(t);
  const auto device = static_cast<std::uint64_t>(t.device());
  const std::uint64_t before = FreeBytes(t);
  Agent plain(t);
  double start = Now();
  plain.Must(Order::kInit);
  t.Reading("time of cuInit", Milliseconds(Now() - start));
  plain.Must(Order::kCreate, 32 * kMiB, device);
  t.Reading("bytes of cuInit and an allocation of 32 MiB", std::to_string(before - FreeBytes(t)));
  start = Now();
  plain.Must(Order::kContext, device);
  t.Reading("time of the context", Milliseconds(Now() - start));
  t.Reading("bytes with the context", std::to_string(before - FreeBytes(t)));
}

CONFORMANCE_CHECK(HostNuma, "cost.host-numa", "memory of the host by the same calls, exportable and CPU-visible",
                  "CUDA EGM chapter [D], NCCL ncclCuMemHostAlloc [S], ompi#12751 [R]; readings") {
  InitWithContext(t);
  int supported = 0;
  MUST(cu.DeviceGetAttribute(&supported, static_cast<CUdevice_attribute>(141), t.device()));
  t.Reading("attribute 141", std::to_string(supported));
  if (supported == 0) t.Skip("the device does not support memory of a host's NUMA node");
  CUmemAllocationProp prop = Prop(t);
  prop.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  size_t granularity = 0;
  MUST(cu.MemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  t.Reading("granularity", std::to_string(granularity));
  const std::uint64_t bytes = std::max<std::uint64_t>(granularity, 2 * kMiB);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = cu.MemCreate(&handle, bytes, &prop, 0);
  t.Reading("create", CodeText(created));
  if (created != CUDA_SUCCESS) t.End();
  int fd = -1;
  t.Reading("export", CodeText(cu.MemExport(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
  const UniqueFd owned(fd);
  const CUdeviceptr address = Reserve(t, bytes);
  MUST(cu.MemMap(address, bytes, 0, handle, 0));
  const CUmemAccessDesc both[] = {{prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                                  DeviceAccess(t.device(), CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
  const CUresult allowed = cu.MemSetAccess(address, bytes, both, 2);
  t.Reading("access for the host and the device", CodeText(allowed));
  if (allowed != CUDA_SUCCESS) t.End();
  Fill(t, address, bytes, 0x55);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(*static_cast<volatile unsigned char*>(AsPointer(address)) == 0x55 ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  t.Reading("a read by a forked child's CPU", status == 0 ? "sees what the device wrote" : "fails");
  t.Equal("a read by this process's CPU", *static_cast<volatile unsigned char*>(AsPointer(address)), 0x55);
}

}  // namespace
}  // namespace conformance
