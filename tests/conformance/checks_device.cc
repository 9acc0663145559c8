// tests/conformance/checks_device.cc: which devices a process sees and what they are called, forked children, finding
// entry points, and NVML.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/device_uuid.h"
#include "cuda/nvml_decls.h"
#include "tests/conformance/agent.h"
#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

constexpr auto kInvalid = CUDA_ERROR_INVALID_VALUE;
constexpr auto kReadWrite = static_cast<std::uint64_t>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

using gpumem::DeviceUuid;

std::string UuidText(Check& t, int device) {
  CUuuid uuid{};
  MUST(cu.DeviceGetUuid(&uuid, device));
  DeviceUuid::Raw raw{};
  std::memcpy(raw.data(), uuid.bytes, raw.size());
  return DeviceUuid(DeviceUuid::Kind::kGpu, raw).ToString();
}

// The UUIDs that a process with this CUDA_VISIBLE_DEVICES sees, by ordinal.
std::vector<std::string> VisibleUuids(Check& t, const std::string& variable) {
  Agent agent(t, {"CUDA_VISIBLE_DEVICES=" + variable});
  std::vector<std::string> uuids;
  const CUresult init = agent.Do(Order::kInit).code;
  if (init == CUDA_ERROR_NO_DEVICE) return uuids;
  t.Must("cuInit in another process", init);
  const std::uint64_t count = agent.Must(Order::kCount);
  for (std::uint64_t i = 0; i < count; ++i) {
    const Answer answer = agent.Do(Order::kUuid, i);
    t.Must("cuDeviceGetUuid in another process", answer.code);
    DeviceUuid::Raw raw{};
    std::memcpy(raw.data(), &answer.value, 8);
    std::memcpy(raw.data() + 8, &answer.second, 8);
    uuids.push_back(DeviceUuid(DeviceUuid::Kind::kGpu, raw).ToString());
  }
  return uuids;
}

void NeedUnsetVisible(Check& t) {
  if (std::getenv("CUDA_VISIBLE_DEVICES") != nullptr) t.Skip("CUDA_VISIBLE_DEVICES is set already");
}

void ExpectUuids(Check& t, const std::string& variable, const std::vector<std::string>& want) {
  const std::vector<std::string> got = VisibleUuids(t, variable);
  if (got == want) return;
  std::string text = "CUDA_VISIBLE_DEVICES=" + variable + ": expected";
  for (const std::string& uuid : want) text += " " + uuid;
  text += ", got";
  for (const std::string& uuid : got) text += " " + uuid;
  t.Fail(text);
}

CONFORMANCE_CHECK(DeviceQueries, "device.queries", "name, UUID, PCI address and memory of a device; none of another",
                  "cuda.h [D]") {
  Init(t);
  int count = 0;
  MUST(cu.DeviceGetCount(&count));
  char name[256] = {};
  MUST(cu.DeviceGetName(name, sizeof name, t.device()));
  TRUE(std::strlen(name) > 0);
  t.Reading("name", name);
  size_t total = 0;
  MUST(cu.DeviceTotalMem(&total, t.device()));
  TRUE(total > 0);
  t.Reading("total memory", std::to_string(total));
  // Those that decide what the project may do.
  constexpr struct {
    int number;
    const char* name;
  } kAttributes[] = {{20, "compute mode"},    {115, "memory pools"},         {124, "DMA buffers"},
                     {128, "fabric handles"}, {134, "the host's NUMA node"}, {145, "host memory"}};
  for (const auto& attribute : kAttributes) {
    int value = 0;
    const CUresult code = cu.DeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute.number), t.device());
    t.Reading(std::string("attribute ") + std::to_string(attribute.number) + ", " + attribute.name,
              code == CUDA_SUCCESS ? std::to_string(value) : CodeText(code));
  }
  char bus[32] = {};
  MUST(cu.DeviceGetPCIBusId(bus, sizeof bus, t.device()));
  CUdevice found = -1;
  MUST(cu.DeviceGetByPCIBusId(&found, bus));
  t.Equal("the device at its own PCI address", static_cast<std::uint64_t>(found),
          static_cast<std::uint64_t>(t.device()));
  TRUE(UuidText(t, t.device()) == UuidText(t, t.device()));
  CUdevice device = -1;
  CODE(cu.DeviceGet(&device, count), CUDA_ERROR_INVALID_DEVICE);
  REFUSED("a UUID of no device", cu.DeviceGetUuid(nullptr, t.device()), kInvalid);
}

CONFORMANCE_CHECK(VisibleIndex, "device.visible.index", "CUDA_VISIBLE_DEVICES selects by index, and renumbers",
                  "CUDA programming guide [D]") {
  NeedUnsetVisible(t);
  Init(t);
  NeedTwoDevices(t);
  const std::string first = UuidText(t, 0);
  const std::string second = UuidText(t, 1);
  TRUE(first != second);
  ExpectUuids(t, "0", {first});
  ExpectUuids(t, "1", {second});
}

CONFORMANCE_CHECK(VisibleOrder, "device.visible.order", "its order is the order of the ordinals; the UUIDs stay",
                  "CUDA programming guide [D]") {
  NeedUnsetVisible(t);
  Init(t);
  NeedTwoDevices(t);
  const std::string first = UuidText(t, 0);
  const std::string second = UuidText(t, 1);
  ExpectUuids(t, "1,0", {second, first});
  ExpectUuids(t, second + "," + first, {second, first});
}

CONFORMANCE_CHECK(VisibleUuid, "device.visible.uuid", "CUDA_VISIBLE_DEVICES takes UUIDs",
                  "CUDA programming guide [D]") {
  NeedUnsetVisible(t);
  Init(t);
  const std::string uuid = UuidText(t, t.device());
  ExpectUuids(t, uuid, {uuid});
}

CONFORMANCE_CHECK(VisibleNone, "device.visible.none", "an entry that selects nothing ends the list; none is NO_DEVICE",
                  "CUDA programming guide [D]") {
  NeedUnsetVisible(t);
  Init(t);
  const std::string uuid = UuidText(t, 0);
  ExpectUuids(t, "", {});
  ExpectUuids(t, "-1", {});
  ExpectUuids(t, "GPU-00000000-0000-0000-0000-000000000000", {});
  ExpectUuids(t, "0,-1," + uuid, {uuid});
}

CONFORMANCE_CHECK(VisibleLater, "device.visible.before-init", "CUDA_VISIBLE_DEVICES counts only before cuInit",
                  "CUDA programming guide [D]") {
  Init(t);
  int before = 0;
  MUST(cu.DeviceGetCount(&before));
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
  int after = 0;
  MUST(cu.Init(0));
  MUST(cu.DeviceGetCount(&after));
  t.Equal("devices", static_cast<std::uint64_t>(after), static_cast<std::uint64_t>(before));
}

// ---- Forked children. ----

CONFORMANCE_CHECK(ForkedChild, "process.forked-child", "in a child that is forked after cuInit nothing works",
                  "NOT_INITIALIZED [R]") {
  InitWithContext(t);
  const std::uint64_t unit = Unit(t);
  const Memory memory = CreateMapped(t, unit);
  Fill(t, memory.address, unit, 0x4f);
  const pid_t child = ::fork();
  if (child == 0) {
    const CUmemAllocationProp prop = Prop(t);
    CUmemGenericAllocationHandle handle = 0;
    int count = 0;
    CUdeviceptr address = 0;
    REFUSED("cuInit", cu.Init(0), CUDA_ERROR_NOT_INITIALIZED);
    REFUSED("cuMemCreate", cu.MemCreate(&handle, unit, &prop, 0), CUDA_ERROR_NOT_INITIALIZED);
    REFUSED("cuMemAddressReserve", cu.MemAddressReserve(&address, unit, 0, 0, 0), CUDA_ERROR_NOT_INITIALIZED);
    EITHER("cuDeviceGetCount", cu.DeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    ::_exit(0);
  }
  int status = -1;
  TRUE(child > 0 && ::waitpid(child, &status, 0) == child);
  t.Equal("the child's status", static_cast<std::uint64_t>(status), 0);
  t.Equal("a word in the parent", Word(t, memory.address), 0x4f);
}

CONFORMANCE_CHECK(ForkBeforeInit, "process.forked-before-init", "a child forked before cuInit may call it",
                  "cuda.h [D]") {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      Init(t);
    } catch (const Stop&) {
    }
    ::_exit(0);
  }
  int status = -1;
  TRUE(child > 0 && ::waitpid(child, &status, 0) == child);
  t.Equal("the child's status", static_cast<std::uint64_t>(status), 0);
  Init(t);
}

// ---- Entry points. ----

CONFORMANCE_CHECK(ProcAddress, "proc-address.found", "cuGetProcAddress finds an entry, before cuInit too",
                  "cuda.h [D]") {
  NEED(GetProcAddress);
  void* function = nullptr;
  auto status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  MUST(cu.GetProcAddress("cuDriverGetVersion", &function, 2020, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  TRUE(function != nullptr && status == CU_GET_PROC_ADDRESS_SUCCESS);
  if (function == nullptr) t.End();
  int by_address = 0;
  int by_symbol = 1;
  MUST(reinterpret_cast<CUresult (*)(int*)>(function)(&by_address));
  MUST(cu.DriverGetVersion(&by_symbol));
  t.Equal("the version, by address and by symbol", static_cast<std::uint64_t>(by_address),
          static_cast<std::uint64_t>(by_symbol));
  MUST(cu.GetProcAddress("cuMemCreate", &function, 10020, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  TRUE(function != nullptr);
}

CONFORMANCE_CHECK(ProcAddressUnknown, "proc-address.not-found", "an unknown name is a success that finds nothing",
                  "cuda.h [D]") {
  NEED(GetProcAddress);
  void* function = &function;
  auto status = CU_GET_PROC_ADDRESS_SUCCESS;
  CODE(cu.GetProcAddress("cuNoSuchCall", &function, 10020, CU_GET_PROC_ADDRESS_DEFAULT, &status), CUDA_SUCCESS);
  TRUE(function == nullptr);
  t.Equal("status", status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

CONFORMANCE_CHECK(ProcAddressVersion, "proc-address.version",
                  "a version older than the entry, or newer than the driver", "cuda.h [D]") {
  NEED(GetProcAddress);
  void* function = &function;
  auto status = CU_GET_PROC_ADDRESS_SUCCESS;
  CODE(cu.GetProcAddress("cuMemCreate", &function, 10010, CU_GET_PROC_ADDRESS_DEFAULT, &status), CUDA_SUCCESS);
  TRUE(function == nullptr);
  t.Equal("status", status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  int version = 0;
  MUST(cu.DriverGetVersion(&version));
  CODE(cu.GetProcAddress("cuMemCreate", &function, version + 1000, CU_GET_PROC_ADDRESS_DEFAULT, &status), kInvalid);
}

CONFORMANCE_CHECK(ProcAddressPerThread, "proc-address.per-thread",
                  "the per-thread default stream has entries of its own", "cuda.h [D]") {
  NEED(GetProcAddress);
  void* legacy = nullptr;
  void* per_thread = nullptr;
  MUST(cu.GetProcAddress("cuStreamSynchronize", &legacy, 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr));
  const CUresult got = cu.GetProcAddress("cuStreamSynchronize", &per_thread, 7000,
                                         CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr);
  if (got == CUDA_ERROR_NOT_SUPPORTED && cu.simulated) t.Skip("the simulation has no per-thread default streams");
  CODE(got, CUDA_SUCCESS);
  TRUE(per_thread != nullptr && per_thread != legacy);
}

CONFORMANCE_CHECK(ErrorNames, "errors.names", "codes have names and words, before cuInit too; others have none",
                  "cuda.h [D]") {
  const char* text = nullptr;
  MUST(cu.GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  TRUE(text != nullptr && std::strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
  MUST(cu.GetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  TRUE(text != nullptr && std::strlen(text) > 0);
  CODE(cu.GetErrorName(static_cast<CUresult>(123456), &text), kInvalid);
  TRUE(text == nullptr);
}

// ---- NVML. ----

struct Nvml {
  nvmlReturn_t (*init)() = nullptr;
  nvmlReturn_t (*by_uuid)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*get_uuid)(nvmlDevice_t, char*, unsigned int) = nullptr;
  nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
  nvmlReturn_t (*persistence)(nvmlDevice_t, nvmlEnableState_t*) = nullptr;
  nvmlReturn_t (*processes)(nvmlDevice_t, unsigned int*, nvmlProcessInfo_t*) = nullptr;
  nvmlDevice_t device = nullptr;

  // Skips the check where there is no NVML. `t.device()` is initialised already.
  explicit Nvml(Check& t) {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) t.Skip("there is no libnvidia-ml.so.1");
    const auto find = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(library, name));
      if (*function == nullptr) t.Skip(std::string("NVML has no ") + name);
    };
    find(&init, "nvmlInit_v2");
    find(&by_uuid, "nvmlDeviceGetHandleByUUID");
    find(&get_uuid, "nvmlDeviceGetUUID");
    find(&memory, "nvmlDeviceGetMemoryInfo");
    find(&persistence, "nvmlDeviceGetPersistenceMode");
    find(&processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (init() != NVML_SUCCESS) t.Skip("nvmlInit_v2 failed");
    const std::string uuid = UuidText(t, t.device());
    const nvmlReturn_t found = by_uuid(uuid.c_str(), &device);
    t.Equal("nvmlDeviceGetHandleByUUID of the driver's UUID", found, NVML_SUCCESS);
    if (found != NVML_SUCCESS) t.End();
  }
  unsigned long long Used() const {
    nvmlMemory_t info{};
    return memory(device, &info) == NVML_SUCCESS ? info.used : 0;
  }
  bool Lists(pid_t pid) const {
    nvmlProcessInfo_t infos[256];
    unsigned int count = 256;
    if (processes(device, &count, infos) != NVML_SUCCESS) return false;
    return std::any_of(infos, infos + count,
                       [pid](const nvmlProcessInfo_t& info) { return info.pid == static_cast<unsigned int>(pid); });
  }
};

CONFORMANCE_CHECK(NvmlUuid, "nvml.uuid", "NVML and the driver call a device by one UUID", "cuda.h, nvml.h [D]") {
  Init(t);
  const Nvml nvml(t);
  char text[96] = {};
  t.Equal("nvmlDeviceGetUUID", nvml.get_uuid(nvml.device, text, sizeof text), NVML_SUCCESS);
  if (UuidText(t, t.device()) != text) t.Fail("the driver says " + UuidText(t, t.device()) + ", NVML says " + text);
}

CONFORMANCE_CHECK(NvmlMemory, "nvml.memory", "NVML's used memory moves with what is created and released",
                  "nvml.h [D]; how soon it falls is U") {
  Init(t);
  const Nvml nvml(t);
  const std::uint64_t bytes = std::max(Unit(t), 256 * kMiB);
  const std::uint64_t before = nvml.Used();
  const CUmemGenericAllocationHandle handle = Create(t, bytes);
  TRUE(nvml.Used() >= before + bytes / 2);
  MUST(cu.MemRelease(handle));
  const double start = Now();
  while (nvml.Used() > before + bytes / 2 && Now() < start + 6) Sleep(0.005);
  TRUE(nvml.Used() <= before + bytes / 2);
  t.Reading("from the release until it is seen", Milliseconds(Now() - start));
}

CONFORMANCE_CHECK(NvmlProcesses, "nvml.processes", "NVML lists a process with a context, and none without",
                  "okm gpuGetProcWithObject [S]; in containers U") {
  Init(t);
  const Nvml nvml(t);
  const auto device = static_cast<std::uint64_t>(t.device());
  Agent owner(t);
  owner.Must(Order::kInit);
  owner.Must(Order::kContext, device);
  t.Reading("a process with a context", nvml.Lists(owner.pid()) ? "listed" : "not listed", "listed");
  const std::uint64_t before = nvml.Used();
  Agent plain(t);
  plain.Must(Order::kInit);
  plain.Must(Order::kCreate, 32 * kMiB, device);
  t.Reading("a context-free process with memory", nvml.Lists(plain.pid()) ? "listed" : "not listed", "not listed");
  t.Reading("its hidden memory, bytes",
            std::to_string(static_cast<std::int64_t>(nvml.Used()) - static_cast<std::int64_t>(before + 32 * kMiB)));
  plain.Must(Order::kContext, device);
  plain.Must(Order::kMap, 32 * kMiB, kReadWrite);
  t.Reading("and what its context adds, bytes",
            std::to_string(static_cast<std::int64_t>(nvml.Used()) - static_cast<std::int64_t>(before + 32 * kMiB)));
  const pid_t pid = owner.pid();
  owner.Kill();
  const double start = Now();
  while (nvml.Lists(pid) && Now() < start + 6) Sleep(0.002);
  TRUE(!nvml.Lists(pid));
  t.Reading("from a process's end until it is not listed", Milliseconds(Now() - start));
}

CONFORMANCE_CHECK(NvmlPersistence, "nvml.persistence", "whether the device stays initialised without a process",
                  "okm nv.c [S]: memory that only a descriptor holds needs it") {
  Init(t);
  const Nvml nvml(t);
  nvmlEnableState_t mode = NVML_FEATURE_DISABLED;
  t.Equal("nvmlDeviceGetPersistenceMode", nvml.persistence(nvml.device, &mode), NVML_SUCCESS);
  t.Reading("persistence mode", mode == NVML_FEATURE_ENABLED ? "enabled" : "disabled", "enabled");
}

}  // namespace
}  // namespace conformance
