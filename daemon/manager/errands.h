// daemon/manager/errands.h: what must be done outside before charges can end: closing chunks' fds at the arenas and
// deleting them at the keeper. Each answer comes back into the books as a dropped reference, with its evidence. Strand
// only.
#ifndef GPUMEM_DAEMON_MANAGER_ERRANDS_H_
#define GPUMEM_DAEMON_MANAGER_ERRANDS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "daemon/manager/context.h"

namespace gpumem::manager {

class Errands {
 public:
  using Done = std::function<void(const Tally&)>;

  explicit Errands(Context* context) : context_(*context) {}
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // Has the work done. `done` is called once, later, when every answer is in the books and in the journal, with `tally`
  // grown by what the answers moved. A chunk that could not be let go is quarantined for `if_failed`; without it, only
  // logged (its fd is then asked for again when the lease ends). Two errands for the same fd become one.
  void Run(const core::ReleaseWork& work, std::optional<core::QuarantineReason> if_failed, Tally tally, Done done);
  // For work that nobody waits for.
  void RunOnly(const core::ReleaseWork& work, std::optional<core::QuarantineReason> if_failed);

  // The arena of `device` has ended: drops its references, and answers the errands that waited for that.
  void OnArenaEnded(const DeviceUuid& device);

  // A delete was asked for and its answer never came (or was an error): it is asked for again when the keeper is back.
  bool IsDeleteOwed(ChunkId chunk) const { return owed_deletes_.contains(chunk); }
  void ForgetOwedDelete(ChunkId chunk) { owed_deletes_.erase(chunk); }

  // The keeper's name of a chunk: the ledger's nonce and its id, or the name it was found under (AdoptUnknownKept).
  KeptName NameOf(ChunkId chunk) const;
  void SetFoundName(ChunkId chunk, const KeptName& name) { found_names_[chunk] = name; }
  void ForgetFoundName(ChunkId chunk) { found_names_.erase(chunk); }

 private:
  struct Group {
    std::size_t open = 0;  // answers that are missing
    std::optional<core::QuarantineReason> if_failed;
    Tally tally;
    Done done;
  };
  using GroupPtr = std::shared_ptr<Group>;
  using Groups = std::vector<GroupPtr>;
  using InFlight = absl::flat_hash_map<ChunkId, Groups>;
  // What one answer moved, and who waits for it.
  struct Answered {
    core::Transitions moves;
    Groups groups;
  };

  void StartCloses(const std::vector<ChunkId>& chunks, const GroupPtr& group);
  void StartDeletes(const std::vector<ChunkId>& chunks, const GroupPtr& group);
  void OnCloses(const DeviceUuid& device, const std::vector<ChunkId>& chunks,
                const absl::StatusOr<std::vector<absl::Status>>& answer);
  void OnDelete(ChunkId chunk, const DeviceUuid& device, const absl::Status& answer);
  Answered SettleClose(ChunkId chunk, const absl::Status& answer);
  Answered SettleDelete(ChunkId chunk, const absl::Status& answer);
  void Quarantine(ChunkId chunk, const absl::Status& why, Answered* answered);
  void Report(std::vector<Answered> answered);
  static void Leave(const GroupPtr& group, const core::Transitions& moves);

  Context& context_;
  InFlight closes_;
  InFlight deletes_;
  absl::flat_hash_map<DeviceUuid, std::vector<ChunkId>> awaiting_end_;
  absl::flat_hash_set<ChunkId> owed_deletes_;
  absl::flat_hash_map<ChunkId, KeptName> found_names_;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_ERRANDS_H_
