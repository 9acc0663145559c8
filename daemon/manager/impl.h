// daemon/manager/impl.h: the manager's inside. Private to this room.
//
// manager.cc    the public methods, requests and their table
// devices.cc    devices, arenas and the keeper coming and going
// sessions.cc   sessions: opened, fenced, ended
// segments.cc   leases and segments: released, sealed, attached, detached, removed
#ifndef GPUMEM_DAEMON_MANAGER_IMPL_H_
#define GPUMEM_DAEMON_MANAGER_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "daemon/manager/context.h"
#include "daemon/manager/deliveries.h"
#include "daemon/manager/errands.h"
#include "daemon/manager/grants.h"
#include "daemon/manager/manager.h"
#include "daemon/manager/session_record.h"

namespace gpumem::manager {

// Numbers that tell the kinds of requests apart in a fingerprint.
enum class RequestKind : std::uint32_t {
  kRegisterHolder = 1,
  kAllocate,
  kBuildSegment,
  kRelease,
  kSealSegment,
  kAttachSegment,
  kDetachSegment,
  kReportFault,
};

class Manager::Impl {
 public:
  Impl(const Options& options, const Ports& ports)
      : context(options, ports),
        errands(&context),
        deliveries(&context, &errands),
        grants(&context, &errands, &deliveries) {}

  // devices.cc
  absl::Status AddDevice(const DeviceConfig& device);
  void OnArenaReady(const DeviceUuid& device);
  void OnArenaEnded(const DeviceUuid& device, std::string_view how);
  void OnKeeperReady(const std::vector<KeptEntry>& held);
  void OnKeeperLost(std::string_view how);

  // sessions.cc
  absl::StatusOr<SessionId> OpenSession(const core::SessionIdentity& identity);
  void Observe(SessionId session, core::Evidence fact);
  void ReportFault(const SessionPtr& session, std::uint64_t request_id, const FaultReport& fault);

  // segments.cc
  void Release(const SessionPtr& session, std::uint64_t request_id, LeaseId lease,
               const std::vector<core::Outcome>& outcomes);
  void Seal(const SessionPtr& session, std::uint64_t request_id, LeaseId lease,
            const std::vector<core::Outcome>& outcomes, core::Manifest manifest);
  void Attach(const SessionPtr& session, std::uint64_t request_id, HolderId holder, const std::string& name);
  void Detach(const SessionPtr& session, std::uint64_t request_id, AttachmentId attachment,
              const std::vector<core::Outcome>& outcomes);
  void RemoveSegment(const std::string& asked_name, Reply<Bytes> reply);

  SessionPtr Find(SessionId session) const;

  // The session's record when the caller is to run the request now; null when it was (or will be) answered otherwise.
  template <typename T>
  SessionPtr Admit(SessionId session, std::uint64_t request_id, const Fingerprint& fingerprint, Reply<T> reply) {
    SessionPtr record = Find(session);
    if (record == nullptr) {
      context.Post([reply = std::move(reply), why = UnknownSession(session)] { reply(why); });
      return nullptr;
    }
    RequestTable::Admission admission = record->requests.Begin<T>(request_id, fingerprint.value(), std::move(reply));
    if (admission.answer) context.Post(std::move(admission.answer));
    return admission.run ? record : nullptr;
  }
  // Answers a request for which nothing has to be asked.
  template <typename T>
  void AnswerSoon(const SessionPtr& session, std::uint64_t request_id, absl::StatusOr<T> answer) {
    context.Post(
        [session, request_id, answer = std::move(answer)] { session->requests.Finish<T>(request_id, answer); });
  }
  static absl::Status UnknownSession(SessionId session);

  Context context;
  Errands errands;
  Deliveries deliveries;
  Grants grants;

 private:
  // One arena's life: what was asked in an earlier one does not count in this one.
  struct Arena {
    std::uint64_t life = 0;
    bool running = false;
  };

  void PublishDevice(const DeviceUuid& device);
  void PollMemory(const DeviceUuid& device, std::uint64_t life);
  void OnMemory(const DeviceUuid& device, std::uint64_t life, std::optional<std::uint64_t> mark,
                const absl::StatusOr<ArenaMemory>& answer);
  void DropLostKept(const std::vector<KeptEntry>& held);
  void CheckOwnKept(const KeptEntry& entry);
  // True when it was new and is now in the books.
  bool AdoptKept(const KeptEntry& entry, core::Transitions* moves);

  void PublishFenced(SessionId session, core::QuarantineReason reason, const core::Transitions& moves,
                     const std::string& detail);
  void End(SessionId session, core::ReleaseWork work, Tally tally);
  std::shared_ptr<const core::Manifest> SharedManifest(LeaseId lease, const core::Manifest& manifest);

  using FoundName = std::pair<std::array<std::uint8_t, 16>, std::uint64_t>;

  absl::flat_hash_map<SessionId, SessionPtr> sessions_;
  absl::flat_hash_map<DeviceUuid, Arena> arenas_;
  // What the keeper holds for other ledgers, as adopted into these books.
  absl::flat_hash_map<FoundName, ChunkId> adopted_;
  // One copy of a manifest for all the attachments whose answers are remembered.
  absl::flat_hash_map<LeaseId, std::weak_ptr<const core::Manifest>> manifests_;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_IMPL_H_
