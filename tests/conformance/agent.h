// tests/conformance/agent.h: another process that a check commands: an exporter, an importer, or one that only keeps a
// descriptor and never loads CUDA.
#ifndef GPUMEM_TESTS_CONFORMANCE_AGENT_H_
#define GPUMEM_TESTS_CONFORMANCE_AGENT_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/conformance/suite.h"

namespace conformance {

// What an agent can be told. It has at most one allocation, mapped at most once, and keeps at most one descriptor.
enum class Order : std::uint32_t {
  kInit,         // loads the driver, cuInit
  kContext,      // makes the primary context of device `a` current
  kCount,        // value: cuDeviceGetCount
  kUuid,         // value, second: the two halves of the UUID of device `a`
  kCreate,       // cuMemCreate of `a` bytes on device `b`
  kExport,       // answers with the new descriptor and keeps none
  kKeep,         // keeps the descriptor that comes with the order; needs no driver
  kSendKept,     // answers with a copy of the kept descriptor
  kDropKept,     // closes it
  kImport,       // cuMemImportFromShareableHandle of the descriptor that comes with the order, which it closes then
  kImportKept,   // of the kept one
  kLocation,     // value: the location id of the handle's properties
  kMap,          // reserves `a` bytes, maps the handle, gives access `b`
  kUnmap,        // and frees the reservation
  kRelease,      // cuMemRelease
  kFill,         // cuMemsetD32 of the mapping's begin, middle and end to `a`, and a synchronisation
  kWord,         // value: the u32 at offset `a`, by cuMemcpyDtoH
  kStore,        // a kernel stores `b` at the absolute address `a`, or at the mapping when `a` is 0; synchronises
  kKeepWriting,  // queues slow fills of the mapping with the values 1, 2, 3, … in a stream, and answers
  kForkHolder,   // forks a child, without exec, that lives until it is killed; value: its pid
  kSetUid,       // setresuid(a)
};

struct Answer {
  CUresult code = CUDA_SUCCESS;
  std::uint64_t value = 0;
  std::uint64_t second = 0;
};

class Agent {
 public:
  // `environment`: "NAME=value" overrides. A failure to start, or an answer that does not come, ends the check.
  explicit Agent(Check& t, std::vector<std::string> environment = {});
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  Answer Do(Order order, std::uint64_t a = 0, std::uint64_t b = 0, int fd = -1);
  // The descriptor of the last answer.
  gpumem::UniqueFd TakeFd() { return std::move(received_); }
  // Do, and the check ends when the code is not CUDA_SUCCESS.
  std::uint64_t Must(Order order, std::uint64_t a = 0, std::uint64_t b = 0, int fd = -1);

  pid_t pid() const { return pid_; }
  void Kill();  // SIGKILL, and waits for the end
  void Exit();  // _exit with everything still held, and waits for the end

 private:
  Check& t_;
  pid_t pid_ = -1;
  gpumem::UniqueFd socket_;
  gpumem::UniqueFd received_;
};

// The agent's side: runs until the socket ends.
[[noreturn]] void RunAgent(int socket);

// One byte with a descriptor, over any unix socket. False when it did not work.
bool SendFd(int socket, int fd);
gpumem::UniqueFd ReceiveFd(int socket);

}  // namespace conformance

#endif  // GPUMEM_TESTS_CONFORMANCE_AGENT_H_
