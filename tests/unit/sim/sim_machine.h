// tests/unit/sim/sim_machine.h: a simulated machine for one test, and processes that use it.
//
// The driver can be initialised once in a process and not in a child of one that did, so the test process itself never
// calls it: everything that uses the driver runs in a child (InChild, Child), and the test looks at the machine's
// truth from outside.
#ifndef GPUMEM_TESTS_UNIT_SIM_SIM_MACHINE_H_
#define GPUMEM_TESTS_UNIT_SIM_SIM_MACHINE_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "cuda/driver.h"
#include "cuda/resources.h"
#include "cuda/sim/config.h"
#include "cuda/sim/store.h"

namespace simtest {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// The build's simulation, or the one in SIMTEST_LIBRARY_DIR: its twin whose rules can be broken (run_breaks.sh).
inline std::string LibraryPath(const char* name) {
  const char* const chosen = std::getenv("SIMTEST_LIBRARY_DIR");
  return std::string(chosen != nullptr ? chosen : TEST_LIB_DIR "/gpumem-sim") + "/" + name;
}
inline std::string CudaLibrary() { return LibraryPath("libcuda.so.1"); }
inline std::string NvmlLibrary() { return LibraryPath("libnvidia-ml.so.1"); }

// The simulated driver in this process, initialised, with the first device's context current.
struct Gpu {
  std::unique_ptr<gpumem::cuda::Driver> driver;
  CUcontext context = nullptr;

  explicit Gpu(bool with_context = true) {
    std::string error;
    driver = gpumem::cuda::Driver::Load(CudaLibrary().c_str(), &error);
    if (driver == nullptr) Die(error.c_str());
    if (driver->Init(0) != CUDA_SUCCESS) Die("cuInit failed");
    if (!with_context) return;
    if (driver->DevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) Die("no context");
    if (driver->CtxSetCurrent(context) != CUDA_SUCCESS) Die("context not current");
  }
  gpumem::cuda::Driver* operator->() const { return driver.get(); }
  const gpumem::cuda::Driver& operator*() const { return *driver; }

 private:
  [[noreturn]] static void Die(const char* why) {
    std::fprintf(stderr, "%s\n", why);
    std::abort();
  }
};

// An entry point that cuda/driver.h has no member for, by its exported name: Entry<CUstream, CUgraph*>(gpu, "cu...").
template <typename... Parameters>
auto Entry(const Gpu& gpu, const char* name) -> CUresult (*)(Parameters...) {
  void* const found = gpu->FindSymbol(name);
  if (found == nullptr) {
    std::fprintf(stderr, "no entry point %s\n", name);
    std::abort();
  }
  return reinterpret_cast<CUresult (*)(Parameters...)>(found);
}

// Memory that is created, mapped and accessible, as one value.
struct Mapped {
  gpumem::cuda::PhysicalHandle handle;
  gpumem::cuda::AddressRange range;
  gpumem::cuda::Mapping mapping;
  CUdeviceptr address() const { return range.address(); }
};

inline Mapped MapHandle(const Gpu& gpu, gpumem::cuda::PhysicalHandle handle,
                        CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  Mapped mapped;
  mapped.handle = std::move(handle);
  EXPECT_EQ(gpumem::cuda::AddressRange::Reserve(*gpu, mapped.handle.bytes(), 0, 0, &mapped.range), CUDA_SUCCESS);
  EXPECT_EQ(gpumem::cuda::Mapping::Map(*gpu, mapped.range.address(), mapped.handle, &mapped.mapping), CUDA_SUCCESS);
  EXPECT_EQ(mapped.mapping.SetAccess(0, access), CUDA_SUCCESS);
  return mapped;
}

inline gpumem::cuda::PhysicalHandle CreateHandle(const Gpu& gpu, std::uint64_t bytes, bool exportable = true) {
  gpumem::cuda::PhysicalHandle handle;
  EXPECT_EQ(gpumem::cuda::PhysicalHandle::Create(*gpu, 0, bytes, exportable, &handle), CUDA_SUCCESS);
  return handle;
}

inline Mapped CreateMapped(const Gpu& gpu, std::uint64_t bytes,
                           CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  return MapHandle(gpu, CreateHandle(gpu, bytes), access);
}

// A child process that shares a socket with the test: for fds, and for "go on". It is killed when this goes.
class Child {
 public:
  explicit Child(const std::function<void(int socket)>& body) {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) std::abort();
    socket_.reset(sockets[0]);
    gpumem::UniqueFd theirs(sockets[1]);
    pid_ = ::fork();
    if (pid_ != 0) return;
    socket_.reset();
    body(theirs.get());
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() {
    if (pid_ > 0) Kill();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }
  // 0: it ended well.
  int Wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  void Kill() {
    ::kill(pid_, SIGKILL);
    Wait();
  }

 private:
  pid_t pid_ = -1;
  gpumem::UniqueFd socket_;
};

inline void InChild(const std::function<void()>& body) {
  Child child([&body](int) { body(); });
  EXPECT_EQ(child.Wait(), 0) << "the child process failed; its messages are above";
}

// One byte, with or without a descriptor.
inline void Send(int socket, int fd = -1) {
  const std::byte byte{1};
  const std::span<const int> fds = fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>();
  EXPECT_EQ(gpumem::SendFrame(socket, {&byte, 1}, fds, true), 0);
}
// Waits for it; the descriptor, if any came.
inline gpumem::UniqueFd Receive(int socket) {
  std::byte byte{};
  gpumem::ReceivedFrame frame;
  EXPECT_EQ(gpumem::ReceiveFrame(socket, {&byte, 1}, true, &frame), 0);
  return frame.fds.empty() ? gpumem::UniqueFd() : std::move(frame.fds[0]);
}
[[noreturn]] inline void Hang() {
  while (true) ::pause();
}

// Two devices of 80 GiB in a directory of their own; SIMCUDA_DIR names it.
class MachineTest : public testing::Test {
 protected:
  MachineTest() {
    // A prefix of its own tells run_breaks.sh what a test that it had to kill left behind.
    const char* const prefix = std::getenv("SIMTEST_MACHINE_PREFIX");
    std::string name = std::string(prefix != nullptr ? prefix : "/dev/shm/simcuda-test-") + "XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    dir_ = name;
    config_ = simcuda::MakeConfig(2, 80 * kGiB);
    std::string error;
    if (!simcuda::InitStateDir(dir_, config_, &error)) std::abort();
    ::setenv("SIMCUDA_DIR", name.c_str(), 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ~MachineTest() override {
    ::unsetenv("SIMCUDA_DIR");
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  simcuda::DeviceTruth Truth(std::size_t device = 0) const {
    std::vector<simcuda::DeviceTruth> all;
    std::string error;
    EXPECT_TRUE(simcuda::ReadTruth(dir_, &all, &error)) << error;
    return all.size() > device ? all[device] : simcuda::DeviceTruth{};
  }
  std::uint64_t PhysicalBytes(std::size_t device = 0) const { return Truth(device).physical_bytes; }

  std::string dir_;
  simcuda::Config config_;
};

}  // namespace simtest

#endif  // GPUMEM_TESTS_UNIT_SIM_SIM_MACHINE_H_
