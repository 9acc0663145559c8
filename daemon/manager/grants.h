// daemon/manager/grants.h: grants as transactions: plan → reserve → execute → commit.
//
//   private lease  reserve, journal, create at the arenas, journal, push fds, reply
//   segment        reserve, journal, create, each chunk's fd to the keeper and acknowledged, journal, push fds, reply
//
// When anything fails, or the session is no longer live, the grant is rolled back first and the failure is replied
// then: the books are as before, or hold in quarantine exactly what could not be put back. Strand only.
#ifndef GPUMEM_DAEMON_MANAGER_GRANTS_H_
#define GPUMEM_DAEMON_MANAGER_GRANTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "daemon/manager/context.h"
#include "daemon/manager/deliveries.h"
#include "daemon/manager/errands.h"
#include "daemon/manager/session_record.h"

namespace gpumem::manager {

class Grants {
 public:
  Grants(Context* context, Errands* errands, Deliveries* deliveries)
      : context_(*context), errands_(*errands), deliveries_(*deliveries) {}
  Grants(const Grants&) = delete;
  Grants& operator=(const Grants&) = delete;

  struct Request {
    SessionPtr session;
    std::uint64_t request_id = 0;
    HolderId holder;
    core::LeaseKind kind = core::LeaseKind::kPrivate;
    std::string segment;  // of a segment
    std::vector<core::ChunkSpec> specs;
  };
  // Answers through the session's table of requests, once, and never from inside this call.
  void Start(const Request& request);

  // The grant of this lease is not committed: nobody was told of the lease yet.
  bool UnderWay(LeaseId lease) const { return under_way_.contains(lease); }

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;

  absl::StatusOr<core::Reservation> Plan(const Request& request, core::Transitions* moves);
  void Create(const JobPtr& job);
  void OnCreated(const JobPtr& job, const DeviceUuid& device, const std::vector<std::size_t>& indices,
                 std::uint32_t wanted, absl::StatusOr<ArenaCreated> answer);
  void NothingAsked(const JobPtr& job);
  void KeepNext(const JobPtr& job);
  void PutBatch(const JobPtr& job, std::size_t count, std::vector<HandleFd> fds);
  void OnPut(const JobPtr& job, ChunkId chunk, const absl::Status& answer);
  void Commit(const JobPtr& job);
  void Deliver(const JobPtr& job);
  void RollBack(const JobPtr& job);
  void Finish(const JobPtr& job, const absl::StatusOr<Grant>& answer);
  // Is every chunk where the commit needs it?
  absl::Status CheckInPlace(const JobPtr& job) const;

  Context& context_;
  Errands& errands_;
  Deliveries& deliveries_;
  absl::flat_hash_set<LeaseId> under_way_;
};

// A granted lease's answer, made from the books (again, for a retry).
absl::StatusOr<Grant> GrantOf(const core::Books& books, LeaseId lease, Bytes asked, Bytes charged,
                              std::uint32_t pushed);

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_GRANTS_H_
