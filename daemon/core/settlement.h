// daemon/core/settlement.h: the one place where charges and every other total change. Private to daemon/core.
//
// A call on the books plans what its chunks become (Set, MapReader) and then commits. Commit first checks that no total
// would fall below zero or pass 64 bits, and only then changes anything; so a defect stops the call with the books as
// they were. A planned chunk that is ending and has no reference left becomes released, here and nowhere else.
#ifndef GPUMEM_DAEMON_CORE_SETTLEMENT_H_
#define GPUMEM_DAEMON_CORE_SETTLEMENT_H_

#include <string_view>

#include "absl/container/inlined_vector.h"
#include "daemon/core/state.h"

namespace gpumem::core::internal {

class Settlement {
 public:
  explicit Settlement(State* state) : state_(state) {}
  ~Settlement();
  Settlement(const Settlement&) = delete;
  Settlement& operator=(const Settlement&) = delete;

  // For the quarantine records that this settlement opens. `detail` must outlive the commit.
  void ForRecords(absl::Time now, std::string_view detail) {
    now_ = now;
    detail_ = detail;
  }

  // The chunk becomes `next`, because of `evidence` (0: by request alone). At most once for each chunk.
  void Set(Lease* lease, std::uint32_t index, Chunk next, Evidence evidence);
  // Whether this reader says that it has the chunk mapped. At most once for each chunk of an attachment.
  void MapReader(Attachment* attachment, std::uint32_t index, bool mapped);

  // After every chunk of the lease was Set: from the commit on, its session and holder have no part in it.
  void GiveUpOwner(Lease* lease);

  // All or nothing. Appends to `*moves` and `*work` (each may be null). Leases whose last chunk was released are gone
  // afterwards, and so may their session be.
  absl::Status Commit(Transitions* moves, ReleaseWork* work);

 private:
  struct Change {
    Lease* lease;
    std::uint32_t index;
    Evidence evidence;
    Chunk next;
  };
  struct ReaderChange {
    Attachment* attachment;
    std::uint32_t index;
    bool mapped;
  };

  Sums<Wide>& Planned(Account* account);
  void Count(const Lease& lease, const Chunk& chunk, int sign);
  absl::Status CheckTotals() const;
  void Disown();
  void Apply(const Change& change, Transitions* moves, ReleaseWork* work);
  void UpdateReferences(const Change& change, const Chunk& old);
  void UpdateRecords(const Change& change, const Chunk& old);
  void JoinRecord(const Change& change);
  void LeaveRecord(const Lease& lease, const Chunk& old);

  State* const state_;
  absl::Time now_;
  std::string_view detail_;
  absl::InlinedVector<Change, 1> changes_;
  absl::InlinedVector<ReaderChange, 1> reader_changes_;
  absl::InlinedVector<Account*, 4> accounts_;
  Lease* disowned_ = nullptr;
};

// One reader of a segment less: it has nothing mapped any more, and when it was the last, the chunks lose their
// readers' reference. The caller erases the attachment after the commit.
void PlanDetach(Attachment* attachment, Evidence evidence, Settlement* settlement);

}  // namespace gpumem::core::internal

#endif  // GPUMEM_DAEMON_CORE_SETTLEMENT_H_
