// Physical memory lives exactly as long as the last handle, mapping or exported fd of it, in any process, after any
// kind of death.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "tests/unit/sim/sim_machine.h"

namespace simtest {
namespace {

using gpumem::UniqueFd;
using gpumem::cuda::PhysicalHandle;

class LifetimeTest : public MachineTest {};

TEST_F(LifetimeTest, ReleaseFreesAtOnce) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 64 * kMiB);
    EXPECT_EQ(PhysicalBytes(), 64 * kMiB);
    EXPECT_EQ(handle.Release(), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 0u);
    EXPECT_EQ(Truth().objects.size(), 0u);
  });
}

TEST_F(LifetimeTest, AHandleCostsNoDescriptor) {
  InChild([&] {
    Gpu gpu(false);
    const auto count = [] {
      const auto all = std::filesystem::directory_iterator("/proc/self/fd");
      return std::distance(begin(all), end(all));
    };
    const auto before = count();
    std::vector<PhysicalHandle> handles;
    for (int i = 0; i < 100; ++i) handles.push_back(CreateHandle(gpu, 2 * kMiB));
    EXPECT_EQ(count(), before);
  });
}

TEST_F(LifetimeTest, ExitAndSigkillFree) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 4 * kMiB);
    EXPECT_EQ(gpu->MemsetD8(mapped.address(), 7, 4 * kMiB), CUDA_SUCCESS);
    ::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);  // gives nothing back itself
  });
  EXPECT_EQ(PhysicalBytes(), 0u);

  Child child([&](int socket) {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 4 * kMiB);
    Send(socket);
    Hang();
  });
  Receive(child.socket());
  EXPECT_EQ(PhysicalBytes(), 4 * kMiB);
  child.Kill();
  EXPECT_EQ(PhysicalBytes(), 0u);
}

TEST_F(LifetimeTest, AnFdInAProcessWithoutCudaOutlivesItsKilledCreator) {
  UniqueFd kept;
  {
    Child creator([&](int socket) {
      Gpu gpu;
      Mapped mapped = CreateMapped(gpu, 2 * kMiB);
      EXPECT_EQ(gpu->MemsetD32(mapped.address(), 0xabcd1234, kMiB / 2), CUDA_SUCCESS);
      UniqueFd fd;
      EXPECT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
      Send(socket, fd.get());
      Hang();
    });
    kept = Receive(creator.socket());
    creator.Kill();
  }
  ASSERT_TRUE(kept.valid());
  simcuda::DeviceTruth truth = Truth();
  ASSERT_EQ(truth.objects.size(), 1u);
  EXPECT_FALSE(truth.objects[0].handle_held);
  EXPECT_EQ(truth.objects[0].exported_fds, 1u);

  InChild([&] {
    Gpu gpu;
    PhysicalHandle handle;
    ASSERT_EQ(PhysicalHandle::Import(*gpu, kept.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    Mapped mapped = MapHandle(gpu, std::move(handle));
    std::uint32_t word = 0;
    EXPECT_EQ(gpu->MemcpyDtoH(&word, mapped.address() + kMiB, 4), CUDA_SUCCESS);
    EXPECT_EQ(word, 0xabcd1234u);
  });
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  kept.reset();
  EXPECT_EQ(PhysicalBytes(), 0u);
}

TEST_F(LifetimeTest, AnFdInFlightInASocketKeepsTheMemory) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  UniqueFd near(sockets[0]);
  UniqueFd far(sockets[1]);
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    UniqueFd fd;
    EXPECT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    Send(far.get(), fd.get());
  });
  far.reset();
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);  // nobody holds it but the socket's queue
  near.reset();
  EXPECT_EQ(PhysicalBytes(), 0u);
}

TEST_F(LifetimeTest, OnlyAMappingKeepsTheMemory) {
  Child child([&](int socket) {
    Gpu gpu(false);
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(mapped.handle.Release(), CUDA_SUCCESS);
    Send(socket);
    Receive(socket);
    EXPECT_EQ(mapped.mapping.Unmap(), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
  Receive(child.socket());
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  Send(child.socket());
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(LifetimeTest, AnImportKeepsTheMemoryOfAKilledCreatorWhoseFdIsClosed) {
  Child creator([&](int socket) {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    UniqueFd fd;
    EXPECT_EQ(handle.Export(&fd), CUDA_SUCCESS);
    Send(socket, fd.get());
    Hang();
  });
  UniqueFd fd = Receive(creator.socket());
  Child importer([&](int socket) {
    Gpu gpu(false);
    UniqueFd received = Receive(socket);
    PhysicalHandle handle;
    EXPECT_EQ(PhysicalHandle::Import(*gpu, received.get(), 2 * kMiB, &handle), CUDA_SUCCESS);
    received.reset();
    Send(socket);
    Hang();
  });
  Send(importer.socket(), fd.get());
  Receive(importer.socket());
  fd.reset();
  creator.Kill();
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  importer.Kill();
  EXPECT_EQ(PhysicalBytes(), 0u);
}

// As with the real driver, whose descriptors a child inherits: the creator's death alone frees nothing.
TEST_F(LifetimeTest, AForkedChildHoldsItsParentsMemory) {
  Child creator([&](int socket) {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      Receive(socket);
      ::_exit(0);
    }
    Send(socket);
    Hang();
  });
  Receive(creator.socket());
  creator.Kill();
  EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
  Send(creator.socket());
  // The grandchild closes the socket with its end: end of stream.
  std::byte byte{};
  gpumem::ReceivedFrame frame;
  gpumem::ReceiveFrame(creator.socket(), {&byte, 1}, true, &frame);
  while (PhysicalBytes() != 0) ::usleep(1000);
}

TEST_F(LifetimeTest, ImportNeitherConsumesNorClosesTheFd) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle created = CreateHandle(gpu, 2 * kMiB);
    UniqueFd fd;
    ASSERT_EQ(created.Export(&fd), CUDA_SUCCESS);
    PhysicalHandle first;
    PhysicalHandle second;
    EXPECT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &first), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &second), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 2 * kMiB);  // one physical allocation, however many handles
    created.Release();
    first.Release();
    second.Release();
    EXPECT_EQ(PhysicalBytes(), 2 * kMiB);
    fd.reset();
    EXPECT_EQ(PhysicalBytes(), 0u);
  });
}

TEST_F(LifetimeTest, TheTruthCountsExportsNotCopiesOfOne) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
    UniqueFd one;
    UniqueFd two;
    ASSERT_EQ(handle.Export(&one), CUDA_SUCCESS);
    ASSERT_EQ(handle.Export(&two), CUDA_SUCCESS);
    UniqueFd copy(::dup(one.get()));
    EXPECT_EQ(Truth().objects[0].exported_fds, 2u);
    one.reset();
    EXPECT_EQ(Truth().objects[0].exported_fds, 2u);
    copy.reset();
    EXPECT_EQ(Truth().objects[0].exported_fds, 1u);
    EXPECT_TRUE(Truth().objects[0].handle_held);
  });
}

TEST_F(LifetimeTest, AnExportedFdIsNoWindowIntoTheMemory) {
  InChild([&] {
    Gpu gpu;
    Mapped mapped = CreateMapped(gpu, 2 * kMiB);
    EXPECT_EQ(gpu->MemsetD8(mapped.address(), 1, 2 * kMiB), CUDA_SUCCESS);
    UniqueFd fd;
    ASSERT_EQ(mapped.handle.Export(&fd), CUDA_SUCCESS);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0), MAP_FAILED);
    char byte = 0;
    EXPECT_EQ(::read(fd.get(), &byte, 1), -1);
    struct stat status {};
    EXPECT_EQ(::fstat(fd.get(), &status), 0);
    EXPECT_EQ(status.st_size, 0);
  });
}

TEST_F(LifetimeTest, ForeignFdsAreRefused) {
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle;
    const auto import = [&](int fd) { return PhysicalHandle::Import(*gpu, fd, 2 * kMiB, &handle); };
    UniqueFd memfd(::memfd_create("foreign", MFD_CLOEXEC));
    EXPECT_EQ(import(memfd.get()), CUDA_ERROR_INVALID_VALUE);
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    EXPECT_EQ(import(null.get()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(import(0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(import(9999), CUDA_ERROR_INVALID_VALUE);
    // A file of the right name elsewhere is not the exported one.
    PhysicalHandle created = CreateHandle(gpu, 2 * kMiB);
    UniqueFd fd;
    ASSERT_EQ(created.Export(&fd), CUDA_SUCCESS);
    char link[4096] = {};
    const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
    ASSERT_GT(::readlink(self.c_str(), link, sizeof link - 1), 0);
    const std::filesystem::path real(link);
    const std::filesystem::path fake = std::filesystem::path(dir_) / real.parent_path().filename() / real.filename();
    std::filesystem::create_directories(fake.parent_path());
    UniqueFd forged(::open(fake.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    ASSERT_TRUE(forged.valid());
    EXPECT_EQ(import(forged.get()), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(import(fd.get()), CUDA_SUCCESS);
  });
}

TEST_F(LifetimeTest, CapacityIsExactAndComesBack) {
  InChild([&] {
    Gpu gpu(false);
    std::vector<PhysicalHandle> handles;
    for (int i = 0; i < 79; ++i) handles.push_back(CreateHandle(gpu, kGiB));
    handles.push_back(CreateHandle(gpu, kGiB - 2 * kMiB));
    PhysicalHandle more;
    EXPECT_EQ(PhysicalHandle::Create(*gpu, 0, 4 * kMiB, true, &more), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(PhysicalHandle::Create(*gpu, 0, 2 * kMiB, true, &more), CUDA_SUCCESS);
    EXPECT_EQ(PhysicalBytes(), 80 * kGiB);
    handles.clear();
    more.Release();
    EXPECT_EQ(PhysicalBytes(), 0u);
    EXPECT_EQ(PhysicalHandle::Create(*gpu, 0, 80 * kGiB, true, &more), CUDA_SUCCESS);
  });
  EXPECT_EQ(PhysicalBytes(), 0u);
}

// A killed process leaves the upper bound too high; the next one that needs the room must find it.
TEST_F(LifetimeTest, CapacityOfAKilledProcessIsFoundAgainWithoutAnyoneCounting) {
  for (int round = 0; round < 3; ++round) {
    Child child([&](int socket) {
      Gpu gpu(false);
      PhysicalHandle handle = CreateHandle(gpu, 80 * kGiB);
      Send(socket);
      Hang();
    });
    Receive(child.socket());
    child.Kill();
  }
  InChild([&] {
    Gpu gpu(false);
    PhysicalHandle handle;
    EXPECT_EQ(PhysicalHandle::Create(*gpu, 0, 80 * kGiB, true, &handle), CUDA_SUCCESS);
  });
}

TEST_F(LifetimeTest, ProcessesKilledAnywhereLeaveNothing) {
  for (int round = 0; round < 40; ++round) {
    Child child([&](int socket) {
      Gpu gpu(false);
      Send(socket);
      while (true) {
        PhysicalHandle handle = CreateHandle(gpu, 2 * kMiB);
        UniqueFd fd;
        handle.Export(&fd);
        PhysicalHandle again;
        PhysicalHandle::Import(*gpu, fd.get(), 2 * kMiB, &again);
      }
    });
    Receive(child.socket());
    ::usleep(static_cast<useconds_t>(round * 37));
    child.Kill();
    ASSERT_EQ(PhysicalBytes(), 0u) << "round " << round;
  }
  // No file is left either, but the lock, the bound and the node, which the device always has.
  int left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/" + config_.devices[0].uuid.ToString())) {
    (void)entry;
    ++left;
  }
  EXPECT_EQ(left, 3);
}

}  // namespace
}  // namespace simtest
