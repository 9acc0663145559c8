#include "client/status.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

namespace gpumem::client {
namespace {

enum : std::int32_t { NO = 0, LATER = 1, NEW = 2 };

struct Row {
  std::int32_t number;
  ReasonInfo info;
};

constexpr Row kRows[] = {
    {0, {"OK", Code::OK, NO}},
#define GPUMEM_REASON(name, number, code, retry, text) {number, {#name, Code::code, retry}},
#include "proto/gpumem/v1/reasons.def"
#undef GPUMEM_REASON
};

}  // namespace

ReasonInfo InfoOf(std::int32_t reason) {
  for (const Row& row : kRows) {
    if (row.number == reason) return row.info;
  }
  return {"UNKNOWN", Code::UNKNOWN, NO};
}

Reason ReasonByName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.number != 0 && name == row.info.name) return static_cast<Reason>(row.number);
  }
  return Reason::INTERNAL;
}

Reason ReasonByCode(std::int32_t code) {
  switch (static_cast<Code>(code)) {
    case Code::OK:
      return Reason::OK;
    case Code::CANCELLED:
      return Reason::CANCELLED;
    case Code::INVALID_ARGUMENT:
      return Reason::INVALID_ARGUMENT;
    case Code::DEADLINE_EXCEEDED:
      return Reason::DEADLINE;
    case Code::RESOURCE_EXHAUSTED:
      return Reason::LIMIT;
    case Code::UNIMPLEMENTED:
      return Reason::VERSION_MISMATCH;
    case Code::UNAVAILABLE:
      return Reason::DISCONNECTED;
    case Code::UNAUTHENTICATED:
      return Reason::UNKNOWN_SESSION;
    default:
      return Reason::INTERNAL;
  }
}

std::string ErrnoText(int error) {
  char buffer[128];
  // The GNU variant: it returns the text, which may lie elsewhere.
  return std::string(strerror_r(error, buffer, sizeof(buffer))) + " (errno " + std::to_string(error) + ")";
}

int PollTimeout(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  if (left <= std::chrono::nanoseconds::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

short WaitFor(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, PollTimeout(deadline));
    if (ready > 0) return entry.revents;
    if (ready == 0) {
      if (std::chrono::steady_clock::now() >= deadline) return 0;
      continue;
    }
    if (errno != EINTR) return POLLERR;
    // A storm of signals must not turn the wait into one without an end.
    if (std::chrono::steady_clock::now() >= deadline) return 0;
  }
}

}  // namespace gpumem::client
