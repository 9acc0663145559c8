// client/status.h: what a call inside the library came to, and the bound of a wait. Std and the reason table only.
//
// An absl::Status never enters a worker; this is the library's own, and abi.cc copies it into a gpumem_status.
#ifndef GPUMEM_CLIENT_STATUS_H_
#define GPUMEM_CLIENT_STATUS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace gpumem::client {

// The numbers of proto/gpumem/v1/reasons.def.
enum class Reason : std::int32_t {
  OK = 0,
#define GPUMEM_REASON(name, number, code, retry, text) name = number,
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
};

// The canonical codes of gRPC, as the table spells them.
enum class Code : std::int32_t {
  OK = 0,
  CANCELLED = 1,
  UNKNOWN = 2,
  INVALID_ARGUMENT = 3,
  DEADLINE_EXCEEDED = 4,
  NOT_FOUND = 5,
  ALREADY_EXISTS = 6,
  PERMISSION_DENIED = 7,
  RESOURCE_EXHAUSTED = 8,
  FAILED_PRECONDITION = 9,
  ABORTED = 10,
  OUT_OF_RANGE = 11,
  UNIMPLEMENTED = 12,
  INTERNAL = 13,
  UNAVAILABLE = 14,
  DATA_LOSS = 15,
  UNAUTHENTICATED = 16,
};

struct ReasonInfo {
  const char* name;
  Code code;
  std::int32_t retry;  // GPUMEM_RETRY_*
};

// "OK" for 0, "UNKNOWN" for a number that is not in the table.
ReasonInfo InfoOf(std::int32_t reason);
// The reason of that name; INTERNAL for one that this library does not know.
Reason ReasonByName(std::string_view name);
// What a peer that speaks only gRPC's codes most likely meant.
Reason ReasonByCode(std::int32_t code);

// A value. OK, or a reason with one or two sentences and the numbers of a refusal.
struct [[nodiscard]] Status {
  Reason reason = Reason::OK;
  std::int32_t cuda_error = 0;  // CUresult of the driver call that failed, else 0
  std::uint64_t asked_bytes = 0;
  std::uint64_t limit_bytes = 0;
  std::uint64_t available_bytes = 0;
  std::string message;

  bool ok() const { return reason == Reason::OK; }
};

inline Status Error(Reason reason, std::string message) {
  Status status;
  status.reason = reason;
  status.message = std::move(message);
  return status;
}

// "strerror (errno)" for a number.
std::string ErrnoText(int error);

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline DeadlineAfter(std::chrono::milliseconds wait) { return std::chrono::steady_clock::now() + wait; }

// Milliseconds for poll(2), rounded up so that a wait never spins; 0 when the deadline has passed.
int PollTimeout(Deadline deadline);

// Waits until `fd` has one of `events` or the deadline passes, through any number of signals. Returns the events, 0 at
// the deadline. Errors of the descriptor come as POLLERR or POLLHUP.
short WaitFor(int fd, short events, Deadline deadline);

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_STATUS_H_
