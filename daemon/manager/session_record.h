// daemon/manager/session_record.h: what the manager itself remembers of a session; the rest is in the books.
#ifndef GPUMEM_DAEMON_MANAGER_SESSION_RECORD_H_
#define GPUMEM_DAEMON_MANAGER_SESSION_RECORD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/manager/ports.h"
#include "daemon/manager/requests.h"

namespace gpumem::manager {

struct SessionRecord {
  SessionRecord(SessionId id_in, std::uint32_t remembered_requests) : id(id_in), requests(remembered_requests) {}

  const SessionId id;
  RequestTable requests;
  // Frames of handles that the worker has not acknowledged, by sequence number: the chunks, in the frame's order.
  std::map<std::uint64_t, std::vector<ChunkId>> unacknowledged;
  std::uint32_t reserved_frames = 0;  // of the window, for grants that are under way
  std::uint32_t fetches = 0;          // under way
};

// Shared with the operations of the session that are under way: they outlive the session's end.
using SessionPtr = std::shared_ptr<SessionRecord>;

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_SESSION_RECORD_H_
