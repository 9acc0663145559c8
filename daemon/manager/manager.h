// daemon/manager/manager.h: the ProcessMemoryManager role: plan → reserve → execute → commit, and settlement's errands.
//
// Joins the books (daemon/core) with the arenas, the keeper, the journal and the sessions' handle channels. One strand:
// every method and every port completion runs on it; nothing here blocks, locks or knows a thread. Each reply is called
// exactly once, from a port's completion (a grant's from the journal's) or, when nothing had to be asked, from a
// posted call; never from inside the method that took it.
#ifndef GPUMEM_DAEMON_MANAGER_MANAGER_H_
#define GPUMEM_DAEMON_MANAGER_MANAGER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/core/books.h"
#include "daemon/manager/ports.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::manager {

struct Options {
  core::Limits limits;
  std::optional<Bytes> tenant_limit;  // on each device
  std::uint64_t first_id = 1;
  std::array<std::uint8_t, 16> instance{};  // also the ledger's nonce in the keeper's names
  std::uint32_t unacknowledged_frames = 4;
  // Answers remembered for retries, per session; the oldest completed one goes first.
  std::uint32_t remembered_requests = 1024;
  absl::Duration memory_poll = absl::Seconds(2);
};

struct DeviceConfig {
  DeviceUuid device;
  std::string name;
  Bytes capacity;
  Bytes headroom;
  Bytes granularity;
};

struct Grant {
  LeaseId lease;
  Bytes asked;
  Bytes charged;
  std::vector<core::ChunkView> chunks;
  std::uint32_t pushed = 0;
};
struct ReleaseResult {
  Bytes released;
  Bytes quarantined;
};
struct AttachResult {
  AttachmentId attachment;
  core::SegmentRow segment;
  std::vector<core::ChunkView> chunks;
  core::Manifest manifest;
};
struct FaultReport {
  std::int32_t cuda_error = 0;
  std::string cuda_error_name;
  std::string detail;
  std::string device_uuid;
};

template <typename T>
using Reply = std::function<void(absl::StatusOr<T>)>;

class Manager {
 public:
  Manager(const Options& options, const Ports& ports);
  ~Manager();
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // --- devices, arenas, keeper ---------------------------------------------------------------------------------
  absl::Status AddDevice(const DeviceConfig& device);  // state starting, until OnArenaReady
  void OnArenaReady(const DeviceUuid& device);
  void OnArenaEnded(const DeviceUuid& device, std::string_view how);
  void OnKeeperReady(const std::vector<KeptEntry>& held);
  void OnKeeperLost(std::string_view how);

  // --- the session room reports -------------------------------------------------------------------------------
  absl::StatusOr<SessionId> OpenSession(const core::SessionIdentity& identity);
  void OnSocketClosed(SessionId session);
  void OnPidfdReadable(SessionId session);
  void OnWitnessClosed(SessionId session);
  void OnFetch(SessionId session, std::uint64_t request_id, LeaseId lease, std::uint32_t first, std::uint32_t count);
  void OnAcknowledge(SessionId session, std::uint64_t handles_sequence, const std::vector<bool>& imported,
                     core::Access access);
  void OnMapping(SessionId session, LeaseId lease, std::uint32_t first, std::uint32_t count, core::Access access);

  // --- worker calls -----------------------------------------------------------------------------------------------
  void RegisterHolder(SessionId session, std::uint64_t request_id, std::string name, core::Role role,
                      Reply<HolderId> reply);
  void Allocate(SessionId session, std::uint64_t request_id, HolderId holder, std::vector<core::ChunkSpec> specs,
                Reply<Grant> reply);
  void BuildSegment(SessionId session, std::uint64_t request_id, HolderId holder, std::string name,
                    std::vector<core::ChunkSpec> specs, Reply<Grant> reply);
  void Release(SessionId session, std::uint64_t request_id, LeaseId lease, std::vector<core::Outcome> outcomes,
               Reply<ReleaseResult> reply);
  void SealSegment(SessionId session, std::uint64_t request_id, LeaseId lease, std::vector<core::Outcome> outcomes,
                   core::Manifest manifest, Reply<std::string> reply);
  void AttachSegment(SessionId session, std::uint64_t request_id, HolderId holder, std::string name,
                     Reply<AttachResult> reply);
  void DetachSegment(SessionId session, std::uint64_t request_id, AttachmentId attachment,
                     std::vector<core::Outcome> outcomes, Reply<std::monostate> reply);
  // The reply has the bytes that the fence quarantined. A second report of a fenced session changes nothing.
  void ReportFault(SessionId session, std::uint64_t request_id, FaultReport fault, Reply<Bytes> reply);

  // --- operator calls ---------------------------------------------------------------------------------------------
  void RemoveSegment(std::string name, Reply<Bytes> reply);

  // Refuses new sessions and new grants from now on with DRAINING, and tells every watcher.
  void BeginDrain(absl::Duration grace);
  bool draining() const;

  bool keeper_connected() const;
  std::uint64_t kept_handles() const;

  // Read-only view for snapshots, on the strand.
  const core::Books& books() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_MANAGER_H_
