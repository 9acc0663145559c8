// daemon/manager/devices.cc: arenas and the keeper coming and going, and what that proves about their fds.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "daemon/manager/impl.h"
#include "daemon/text.h"

namespace gpumem::manager {

using core::DeviceState;
using core::Evidence;

absl::Status Manager::Impl::AddDevice(const DeviceConfig& device) {
  return context.books.AddAuthority({device.device, device.name, device.capacity, device.headroom, device.granularity});
}

void Manager::Impl::PublishDevice(const DeviceUuid& device) {
  const std::optional<core::DeviceRow> row = context.books.Device(device);
  if (!row) return;
  context.Info(Cat("device ", device.ToString(), " is ", core::ToString(row->state), row->detail.empty() ? "" : ": ",
                   row->detail));
  context.Publish(DeviceChangedEvent{device, row->state, row->generation, row->detail});
}

void Manager::Impl::OnArenaReady(const DeviceUuid& device) {
  const absl::Status set = context.books.SetDeviceState(device, DeviceState::kHealthy, "");
  context.Expect(set, Cat("the arena of ", device.ToString(), " is ready"));
  if (!set.ok()) return;
  Arena& arena = arenas_[device];
  arena.running = true;
  ++arena.life;
  PublishDevice(device);
  PollMemory(device, arena.life);
}

void Manager::Impl::OnArenaEnded(const DeviceUuid& device, std::string_view how) {
  // The state first: nothing more is granted there.
  const absl::Status set = context.books.SetDeviceState(device, DeviceState::kStarting, how);
  context.Expect(set, Cat("the arena of ", device.ToString(), " ended"));
  if (!set.ok()) return;
  arenas_[device].running = false;
  errands.OnArenaEnded(device);
  PublishDevice(device);
}

void Manager::Impl::PollMemory(const DeviceUuid& device, std::uint64_t life) {
  const Arena& arena = arenas_[device];
  if (!arena.running || arena.life != life) return;
  context.ports.arenas->Memory(
      device, [this, device, life, mark = context.QuietMark(device)](const absl::StatusOr<ArenaMemory>& answer) {
        OnMemory(device, life, mark, answer);
      });
}

void Manager::Impl::OnMemory(const DeviceUuid& device, std::uint64_t life, std::optional<std::uint64_t> mark,
                             const absl::StatusOr<ArenaMemory>& answer) {
  if (!answer.ok()) {
    context.Debug(Cat("the memory of ", device.ToString(), " was not read: ", answer.status().message()));
  } else if (mark && context.QuietMark(device) == mark) {
    context.Expect(context.books.SetDriverUsed(device, answer->used),
                   Cat("what the driver of ", device.ToString(), " has in use"));
  }
  context.ports.timers->After(context.options.memory_poll, [this, device, life] { PollMemory(device, life); });
}

void Manager::Impl::OnKeeperReady(const std::vector<KeptEntry>& held) {
  context.keeper_connected = true;
  DropLostKept(held);
  core::Transitions moves;
  Bytes adopted_bytes;
  std::size_t adopted = 0;
  for (const KeptEntry& entry : held) {
    if (entry.name.ledger == context.options.instance) {
      CheckOwnKept(entry);
    } else if (AdoptKept(entry, &moves)) {
      adopted_bytes = Sum(adopted_bytes, entry.bytes);
      ++adopted;
    }
  }
  context.RecordOnly(std::move(moves));
  context.Info(Cat("the keeper is connected and holds ", held.size(), " handles"));
  if (adopted > 0) {
    context.Warn(Cat("the keeper holds ", adopted, " handles (", core::FormatBytes(adopted_bytes),
                     ") of another daemon life, which these books do not know; they are charged as quarantined "
                     "(kept-fd-unknown, see memctl quarantine); restarting the keeper lets them go, and with "
                     "them every segment"));
  }
}

// References that the books have and the keeper does not.
void Manager::Impl::DropLostKept(const std::vector<KeptEntry>& held) {
  absl::flat_hash_set<FoundName> names;
  for (const KeptEntry& entry : held) names.emplace(entry.name.ledger, entry.name.id);
  core::Transitions moves;
  std::size_t lost = 0;
  std::vector<core::SegmentRow> before = context.books.Segments("");
  for (const ChunkId chunk : context.books.ReferencedByKeeper()) {
    const KeptName name = errands.NameOf(chunk);
    if (names.contains(FoundName(name.ledger, name.id))) continue;
    context.Expect(context.books.DropKeeperReference(chunk, Evidence::kKeeperEnded, context.Now(), &moves),
                   Cat("chunk ", chunk.value(), " is not at the keeper any more"));
    if (!errands.IsDeleteOwed(chunk)) ++lost;
    errands.ForgetOwedDelete(chunk);
    errands.ForgetFoundName(chunk);
    adopted_.erase(FoundName(name.ledger, name.id));
  }
  context.RecordOnly(std::move(moves));
  if (lost > 0) context.Warn(Cat("the keeper no longer holds ", lost, " handles that it held before"));
  for (const core::SegmentRow& was : before) {
    if (was.state == core::SegmentState::kLost) continue;
    for (const core::SegmentRow& row : context.books.Segments(was.name)) {
      if (row.lease != was.lease || row.state != core::SegmentState::kLost) continue;
      context.Warn(Cat("segment '", row.name, "' (", core::FormatBytes(row.bytes),
                       ") is lost: its handles are gone from the keeper; rebuild it"));
      context.Publish(SegmentChangedEvent{row.name, row.state, false});
    }
  }
}

// An entry of this ledger: known, still to be deleted, or a leftover.
void Manager::Impl::CheckOwnKept(const KeptEntry& entry) {
  const ChunkId chunk(entry.name.id);
  const absl::StatusOr<core::ChunkView> view = context.books.Chunk(chunk);
  if (view.ok() && view->at_keeper) {
    if (errands.IsDeleteOwed(chunk)) {
      core::ReleaseWork again;
      again.delete_at_keeper.push_back(chunk);
      errands.RunOnly(again, std::nullopt);
    }
    return;
  }
  context.Warn(Cat("the keeper holds chunk ", entry.name.id, " (", core::FormatBytes(entry.bytes), " on ",
                   entry.device.ToString(), "), which these books have released; it is deleted there"));
  context.BeginWork(entry.device);
  context.ports.keeper->Del(entry.name, [this, device = entry.device](const absl::Status& answer) {
    context.EndWork(device);
    if (!answer.ok()) context.Warn(Cat("a leftover stays at the keeper: ", answer.message()));
  });
}

bool Manager::Impl::AdoptKept(const KeptEntry& entry, core::Transitions* moves) {
  const FoundName name(entry.name.ledger, entry.name.id);
  if (adopted_.contains(name)) return false;
  if (!context.books.Device(entry.device)) {
    context.Warn(Cat("the keeper holds ", core::FormatBytes(entry.bytes), " of ", entry.device.ToString(),
                     ", a device that is not managed here; it is in no book"));
    return false;
  }
  const absl::StatusOr<ChunkId> chunk = context.books.AdoptUnknownKept(
      entry.device, entry.bytes, "held by the keeper for another daemon life", context.Now(), moves);
  context.Expect(chunk.status(), Cat("adopting ", core::FormatBytes(entry.bytes), " of ", entry.device.ToString()));
  if (!chunk.ok()) return false;
  adopted_.emplace(name, *chunk);
  errands.SetFoundName(*chunk, entry.name);
  return true;
}

// The keeper may come back with everything, so nothing is concluded from its absence.
void Manager::Impl::OnKeeperLost(std::string_view how) {
  context.keeper_connected = false;
  context.Warn(Cat("the keeper is not connected: ", how, "; segments cannot be built or fetched until it is"));
}

}  // namespace gpumem::manager
