// daemon/manager/deliveries.h: handles on their way to workers: the window of pushed frames, fetches, acknowledgements.
//
// An fd that was sent cannot be taken back, so what a session may have is asked of the books at the moment of sending,
// and every fd that the front holds meanwhile is counted by a limit. Strand only.
#ifndef GPUMEM_DAEMON_MANAGER_DELIVERIES_H_
#define GPUMEM_DAEMON_MANAGER_DELIVERIES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "daemon/manager/context.h"
#include "daemon/manager/errands.h"
#include "daemon/manager/session_record.h"

namespace gpumem::manager {

class Deliveries {
 public:
  // Fetches of one session that may be under way at once.
  static constexpr std::uint32_t kMaxFetches = 8;
  // Frames, pushed or fetched, that a session may leave unacknowledged before it is refused more.
  static constexpr std::size_t kMaxUnacknowledged = 64;

  Deliveries(Context* context, Errands* errands) : context_(*context), errands_(*errands) {}
  Deliveries(const Deliveries&) = delete;
  Deliveries& operator=(const Deliveries&) = delete;

  // Takes up to `wanted` frames out of the session's window, for a later Push. The caller gives them back with
  // ReturnFrames before it pushes, or when it does not push at all.
  std::uint32_t ReserveFrames(SessionRecord& session, std::size_t wanted);
  void ReturnFrames(SessionRecord& session, std::uint32_t frames) { session.reserved_frames -= frames; }

  // Sends the first fds.size() of `chunks` in as many frames as they need. Returns how many chunks were sent; the fds
  // of the rest are dropped.
  std::uint32_t Push(SessionRecord& session, std::uint64_t request_id, const std::vector<core::ChunkView>& chunks,
                     std::vector<HandleFd> fds);

  void Fetch(const SessionPtr& session, std::uint64_t request_id, LeaseId lease, std::uint32_t first,
             std::uint32_t count);
  void Acknowledge(SessionRecord& session, std::uint64_t sequence, const std::vector<bool>& imported,
                   core::Access access);

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;

  absl::Status CheckFetchLimits(const SessionRecord& session, std::uint32_t count) const;
  void FetchFromArena(const JobPtr& job);
  void FetchFromKeeper(const JobPtr& job);
  void Deliver(const JobPtr& job);
  void Refuse(const JobPtr& job, const absl::Status& why);
  absl::Status Send(SessionRecord& session, std::uint64_t request_id, const std::vector<core::ChunkView>& chunks,
                    std::vector<HandleFd> fds);

  Context& context_;
  Errands& errands_;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_DELIVERIES_H_
