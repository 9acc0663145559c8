// tests/conformance/agent.cc: see the header.
#include "tests/conformance/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/conformance/gpu.h"

namespace conformance {
namespace {

using gpumem::UniqueFd;

struct Request {
  Order order{};
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

constexpr int kAgentSocket = 3;

// A datagram with at most one descriptor. False at the end of the stream, at a timeout, or on an error.
bool SendDatagram(int socket, const void* data, std::size_t size, int fd) {
  iovec part{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool ReceiveDatagram(int socket, void* data, std::size_t size, UniqueFd* fd) {
  iovec part{data, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  int received = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof received)] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (count >= 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
  }
  if (fd != nullptr) {
    fd->reset(received);
  } else if (received >= 0) {
    ::close(received);
  }
  return count == static_cast<ssize_t>(size);
}

// The agent's own state. Codes are the driver's; what the system refuses is CUDA_ERROR_OPERATING_SYSTEM.
class Worker {
 public:
  Answer Run(const Request& request, UniqueFd fd, UniqueFd* reply) {
    Answer answer;
    answer.code = Obey(request, std::move(fd), reply, &answer);
    return answer;
  }

 private:
  CUresult Obey(const Request& request, UniqueFd fd, UniqueFd* reply, Answer* answer) {
    switch (request.order) {
      case Order::kInit: {
        std::string ignored;
        return LoadDriver(&ignored) ? cu.Init(0) : CUDA_ERROR_OPERATING_SYSTEM;
      }
      case Order::kContext: {
        device_ = static_cast<int>(request.a);
        CUcontext context = nullptr;
        const CUresult result = cu.PrimaryCtxRetain(&context, device_);
        return result == CUDA_SUCCESS ? cu.CtxSetCurrent(context) : result;
      }
      case Order::kCount: {
        int count = 0;
        const CUresult result = cu.DeviceGetCount(&count);
        answer->value = static_cast<std::uint64_t>(count);
        return result;
      }
      case Order::kUuid: {
        CUuuid uuid{};
        const CUresult result = cu.DeviceGetUuid(&uuid, static_cast<CUdevice>(request.a));
        std::memcpy(&answer->value, uuid.bytes, 8);
        std::memcpy(&answer->second, uuid.bytes + 8, 8);
        return result;
      }
      case Order::kCreate: {
        CUmemAllocationProp prop{};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(request.b)};
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        return cu.MemCreate(&handle_, request.a, &prop, 0);
      }
      case Order::kExport: {
        int exported = -1;
        const CUresult result = cu.MemExport(&exported, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        reply->reset(exported);
        return result;
      }
      case Order::kKeep:
        kept_ = std::move(fd);
        return CUDA_SUCCESS;
      case Order::kSendKept:
        reply->reset(::fcntl(kept_.get(), F_DUPFD_CLOEXEC, 0));
        return reply->valid() ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
      case Order::kDropKept:
        kept_.reset();
        return CUDA_SUCCESS;
      case Order::kImport:
        return cu.MemImport(&handle_, AsShareable(fd.get()), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      case Order::kImportKept:
        return cu.MemImport(&handle_, AsShareable(kept_.get()), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      case Order::kLocation: {
        CUmemAllocationProp prop{};
        const CUresult result = cu.MemGetProperties(&prop, handle_);
        answer->value = static_cast<std::uint64_t>(prop.location.id);
        return result;
      }
      case Order::kMap:
        return Map(request.a, static_cast<CUmemAccess_flags>(request.b));
      case Order::kUnmap: {
        const CUresult result = cu.MemUnmap(address_, bytes_);
        return result == CUDA_SUCCESS ? cu.MemAddressFree(address_, bytes_) : result;
      }
      case Order::kRelease:
        return cu.MemRelease(handle_);
      case Order::kFill: {
        const std::uint64_t piece = std::min(bytes_ / 4, kMiB);
        for (const std::uint64_t at : {std::uint64_t{0}, bytes_ / 2, bytes_ - piece}) {
          const CUresult result = cu.MemsetD32(address_ + at, static_cast<std::uint32_t>(request.a), piece / 4);
          if (result != CUDA_SUCCESS) return result;
        }
        return cu.CtxSynchronize();
      }
      case Order::kWord: {
        std::uint32_t word = 0;
        const CUresult result = cu.MemcpyDtoH(&word, address_ + request.a, sizeof word);
        answer->value = word;
        return result;
      }
      case Order::kStore: {
        Kernels kernels;
        CUresult result = kernels.Load();
        const CUdeviceptr at = request.a != 0 ? request.a : address_;
        if (result == CUDA_SUCCESS) result = kernels.Store(nullptr, at, static_cast<std::uint32_t>(request.b));
        return result == CUDA_SUCCESS ? cu.CtxSynchronize() : result;
      }
      case Order::kKeepWriting:
        return KeepWriting();
      case Order::kForkHolder: {
        const pid_t child = ::fork();
        if (child == 0) {
          while (true) ::pause();
        }
        answer->value = static_cast<std::uint64_t>(child);
        return child > 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
      }
      case Order::kSetUid: {
        const auto uid = static_cast<uid_t>(request.a);
        return ::setresuid(uid, uid, uid) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
      }
    }
    return CUDA_ERROR_UNKNOWN;
  }

  CUresult Map(std::uint64_t bytes, CUmemAccess_flags flags) {
    bytes_ = bytes;
    CUresult result = cu.MemAddressReserve(&address_, bytes, 0, 0, 0);
    if (result == CUDA_SUCCESS) result = cu.MemMap(address_, bytes, 0, handle_, 0);
    const CUmemAccessDesc desc = DeviceAccess(device_, flags);
    return result == CUDA_SUCCESS ? cu.MemSetAccess(address_, bytes, &desc, 1) : result;
  }

  CUresult KeepWriting() {
    constexpr std::uint64_t kMostWords = std::uint64_t{128} << 10;  // a fill takes milliseconds by one thread
    constexpr std::uint32_t kFills = 500;
    Kernels kernels;
    CUstream stream = nullptr;
    CUresult result = kernels.Load();
    if (result == CUDA_SUCCESS) result = cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (std::uint32_t i = 1; result == CUDA_SUCCESS && i <= kFills; ++i) {
      result = kernels.SlowFill(stream, address_, std::min(bytes_ / 4, kMostWords), i);
    }
    return result;
  }

  int device_ = 0;
  UniqueFd kept_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace

bool SendFd(int socket, int fd) {
  const char byte = 1;
  return SendDatagram(socket, &byte, 1, fd);
}

UniqueFd ReceiveFd(int socket) {
  char byte = 0;
  UniqueFd fd;
  ReceiveDatagram(socket, &byte, 1, &fd);
  return fd;
}

Agent::Agent(Check& t, std::vector<std::string> environment) : t_(t) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    t.Fail(std::string("socketpair: ") + std::strerror(errno));
    t.End();
  }
  socket_.reset(sockets[0]);
  UniqueFd theirs(sockets[1]);
  const timeval patience{60, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(theirs.get(), kAgentSocket);  // clears close-on-exec, also when it is the same number
    if (theirs.get() == kAgentSocket) ::fcntl(kAgentSocket, F_SETFD, 0);
    // What the driver opened in this process must not keep its memory alive in the agent.
    ::syscall(SYS_close_range, kAgentSocket + 1, ~0u, 0);
    for (std::string& variable : environment) ::putenv(variable.data());
    ::execl("/proc/self/exe", "conformance", "--agent", static_cast<char*>(nullptr));
    ::_exit(127);
  }
  if (pid_ < 0) {
    t.Fail(std::string("fork: ") + std::strerror(errno));
    t.End();
  }
}

Agent::~Agent() {
  if (pid_ > 0) Kill();
}

Answer Agent::Do(Order order, std::uint64_t a, std::uint64_t b, int fd) {
  const Request request{order, a, b};
  Answer answer;
  if (!SendDatagram(socket_.get(), &request, sizeof request, fd) ||
      !ReceiveDatagram(socket_.get(), &answer, sizeof answer, &received_)) {
    t_.Fail("the agent process did not answer order " + std::to_string(static_cast<unsigned>(order)));
    t_.End();
  }
  return answer;
}

std::uint64_t Agent::Must(Order order, std::uint64_t a, std::uint64_t b, int fd) {
  const Answer answer = Do(order, a, b, fd);
  const std::string call = "order " + std::to_string(static_cast<unsigned>(order)) + " in another process";
  t_.Must(call.c_str(), answer.code);
  return answer.value;
}

void Agent::Kill() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void Agent::Exit() {
  socket_.reset();
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RunAgent(int socket) {
  auto* const worker = new Worker;  // gives nothing back: what it holds ends with the process
  Request request;
  UniqueFd fd;
  while (ReceiveDatagram(socket, &request, sizeof request, &fd)) {
    UniqueFd reply;
    const Answer answer = worker->Run(request, std::move(fd), &reply);
    if (!SendDatagram(socket, &answer, sizeof answer, reply.get())) break;
  }
  ::_exit(0);
}

}  // namespace conformance
