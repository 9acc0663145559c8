// daemon/manager/errands.cc: closes at the arenas and deletes at the keeper, and what their answers prove.
#include "daemon/manager/errands.h"
#include "daemon/text.h"

#include <map>
#include <utility>

namespace gpumem::manager {

using core::Error;
using core::Evidence;
using core::Reason;
using core::ReasonOf;

KeptName Errands::NameOf(ChunkId chunk) const {
  const auto it = found_names_.find(chunk);
  return it != found_names_.end() ? it->second : KeptName{context_.options.instance, chunk.value()};
}

void Errands::Run(const core::ReleaseWork& work, std::optional<core::QuarantineReason> if_failed, Tally tally,
                  Done done) {
  auto group = std::make_shared<Group>();
  group->if_failed = if_failed;
  group->tally = std::move(tally);
  group->done = std::move(done);
  group->open = 1;  // this call itself, so that no answer is the last one before everything was asked
  StartCloses(work.close_at_arena, group);
  StartDeletes(work.delete_at_keeper, group);
  context_.Post([group] { Leave(group, {}); });
}

void Errands::RunOnly(const core::ReleaseWork& work, std::optional<core::QuarantineReason> if_failed) {
  if (work.close_at_arena.empty() && work.delete_at_keeper.empty()) return;
  Run(work, if_failed, Tally(), [](const Tally&) {});
}

void Errands::StartCloses(const std::vector<ChunkId>& chunks, const GroupPtr& group) {
  std::map<DeviceUuid, std::vector<ChunkId>> by_device;
  for (const ChunkId chunk : chunks) {
    const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunk);
    if (!view.ok() || !view->at_arena) continue;  // proven gone since the work was listed
    Groups& groups = closes_[chunk];
    if (groups.empty()) by_device[view->device].push_back(chunk);
    groups.push_back(group);
    ++group->open;
  }
  for (auto& [device, ids] : by_device) {
    context_.BeginWork(device);
    context_.ports.arenas->Close(device, ids,
                                 [this, device = device, ids = ids](absl::StatusOr<std::vector<absl::Status>> answer) {
                                   OnCloses(device, ids, answer);
                                 });
  }
}

void Errands::StartDeletes(const std::vector<ChunkId>& chunks, const GroupPtr& group) {
  for (const ChunkId chunk : chunks) {
    const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunk);
    if (!view.ok() || !view->at_keeper) continue;
    Groups& groups = deletes_[chunk];
    const bool asked = !groups.empty();
    groups.push_back(group);
    ++group->open;
    if (asked) continue;
    context_.BeginWork(view->device);
    auto done = [this, chunk, device = view->device](const absl::Status& answer) { OnDelete(chunk, device, answer); };
    if (context_.keeper_connected) {
      context_.ports.keeper->Del(NameOf(chunk), std::move(done));
    } else {
      context_.Post([done] { done(Error(Reason::KEEPER_UNAVAILABLE, "the keeper is not connected")); });
    }
  }
}

void Errands::OnCloses(const DeviceUuid& device, const std::vector<ChunkId>& chunks,
                       const absl::StatusOr<std::vector<absl::Status>>& answer) {
  context_.EndWork(device);
  std::vector<Answered> answered;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    absl::Status status = answer.status();
    if (answer.ok()) {
      status = i < answer->size() ? (*answer)[i]
                                  : Error(Reason::INTERNAL, Cat("the arena of ", device.ToString(), " answered ",
                                                                answer->size(), " of ", chunks.size(), " closes"));
    }
    const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunks[i]);
    if (ReasonOf(status) == Reason::DEVICE_UNAVAILABLE && view.ok() && view->at_arena) {
      awaiting_end_[device].push_back(chunks[i]);  // the arena's end is the evidence, and is reported next
    } else {
      answered.push_back(SettleClose(chunks[i], status));
    }
  }
  Report(std::move(answered));
}

Errands::Answered Errands::SettleClose(ChunkId chunk, const absl::Status& answer) {
  Answered answered;
  const auto it = closes_.find(chunk);
  if (it == closes_.end()) return answered;
  answered.groups = std::move(it->second);
  closes_.erase(it);
  const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunk);
  if (!view.ok() || !view->at_arena) return answered;
  if (answer.ok()) {
    context_.Expect(context_.books.DropArenaReference(chunk, Evidence::kArenaClosed, context_.Now(), &answered.moves),
                    Cat("chunk ", chunk.value(), " closed at its arena"));
  } else {
    Quarantine(chunk, answer, &answered);
  }
  return answered;
}

void Errands::OnDelete(ChunkId chunk, const DeviceUuid& device, const absl::Status& answer) {
  context_.EndWork(device);
  std::vector<Answered> answered;
  answered.push_back(SettleDelete(chunk, answer));
  Report(std::move(answered));
}

Errands::Answered Errands::SettleDelete(ChunkId chunk, const absl::Status& answer) {
  Answered answered;
  const auto it = deletes_.find(chunk);
  if (it == deletes_.end()) return answered;
  answered.groups = std::move(it->second);
  deletes_.erase(it);
  const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunk);
  if (!view.ok() || !view->at_keeper) {
    owed_deletes_.erase(chunk);
    return answered;
  }
  // HANDLE_LOST is the keeper's own word that it does not hold the fd: an earlier Del's close has ended meanwhile.
  if (answer.ok() || ReasonOf(answer) == Reason::HANDLE_LOST) {
    owed_deletes_.erase(chunk);
    found_names_.erase(chunk);
    context_.Expect(
        context_.books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, context_.Now(), &answered.moves),
        Cat("chunk ", chunk.value(), " deleted at the keeper"));
  } else {
    owed_deletes_.insert(chunk);
    Quarantine(chunk, answer, &answered);
  }
  return answered;
}

void Errands::Quarantine(ChunkId chunk, const absl::Status& why, Answered* answered) {
  context_.Warn(Cat("chunk ", chunk.value(), " could not be let go: ", why.message()));
  for (const GroupPtr& group : answered->groups) {
    if (!group->if_failed) continue;
    context_.Expect(context_.books.ReleaseFailed(chunk, *group->if_failed, std::string(why.message()), context_.Now(),
                                                 &answered->moves),
                    Cat("chunk ", chunk.value(), " into quarantine"));
    return;
  }
}

void Errands::Report(std::vector<Answered> answered) {
  core::Transitions all;
  for (const Answered& one : answered) all.insert(all.end(), one.moves.begin(), one.moves.end());
  context_.Record(std::move(all), [this, answered = std::move(answered)](const absl::Status& status) {
    context_.Expect(status, "recording releases in the journal");
    for (const Answered& one : answered) {
      for (const GroupPtr& group : one.groups) Leave(group, one.moves);
    }
  });
}

void Errands::Leave(const GroupPtr& group, const core::Transitions& moves) {
  group->tally.Add(moves);
  if (--group->open == 0) group->done(group->tally);
}

void Errands::OnArenaEnded(const DeviceUuid& device) {
  std::vector<Answered> answered;
  for (const ChunkId chunk : context_.books.ReferencedByArena(device)) {
    Answered one;
    context_.Expect(context_.books.DropArenaReference(chunk, Evidence::kArenaEnded, context_.Now(), &one.moves),
                    Cat("chunk ", chunk.value(), " at its arena's end"));
    if (const auto it = closes_.find(chunk); it != closes_.end()) {
      one.groups = std::move(it->second);
      closes_.erase(it);
    }
    answered.push_back(std::move(one));
  }
  for (const ChunkId chunk : std::exchange(awaiting_end_[device], {})) {
    answered.push_back(SettleClose(chunk, absl::OkStatus()));  // nothing is left of it at the arena
  }
  if (!answered.empty()) Report(std::move(answered));
}

}  // namespace gpumem::manager
