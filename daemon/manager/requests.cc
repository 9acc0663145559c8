// daemon/manager/requests.cc: limits and refusals of the table of requests.
#include "daemon/manager/requests.h"

#include "daemon/core/reasons.h"
#include "daemon/text.h"

namespace gpumem::manager {

using core::Error;
using core::Reason;

absl::Status RequestTable::CheckId(std::uint64_t id) {
  if (id != 0) return absl::OkStatus();
  return Error(Reason::INVALID_ARGUMENT, "request_id is 0; choose a number that is not 0 and not used in this session");
}

absl::Status RequestTable::Reused(std::uint64_t id) {
  return Error(
      Reason::REQUEST_ID_REUSED,
      Cat("request id ", id, " was used in this session for a request with other content; choose a new request id"));
}

absl::Status RequestTable::TooManyWaiters(std::uint64_t id) {
  return Error(Reason::LIMIT, Cat("request ", id, " is still running and ", kMaxWaiters,
                                  " calls wait for it, which is the limit; wait for one of them"));
}

absl::Status RequestTable::MakeRoom() {
  if (entries_.size() < most_) return absl::OkStatus();
  if (completed_.empty()) {
    return Error(Reason::LIMIT, Cat(entries_.size(), " requests of this session are still running; the limit is ",
                                    most_, "; wait for an answer, then send the same request again"));
  }
  entries_.erase(completed_.front());
  completed_.pop_front();
  return absl::OkStatus();
}

}  // namespace gpumem::manager
