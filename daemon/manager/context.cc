// daemon/manager/context.cc: records, events, log lines and tallies shared by the manager's parts.
#include "daemon/manager/context.h"
#include "daemon/text.h"

#include <cstdio>
#include <cstdlib>

namespace gpumem::manager {

Bytes Sum(Bytes a, Bytes b) {
  const std::optional<Bytes> sum = CheckedAdd(a, b);
  if (!sum) {
    std::fputs("gpumemd: a sum of charged bytes does not fit 64 bits: the books are broken\n", stderr);
    std::abort();
  }
  return *sum;
}

void Tally::Add(const core::Transitions& moves) {
  for (const core::Transition& move : moves) {
    if (move.to == core::ChunkState::kQuarantined && in_quarantine_.emplace(move.chunk, move.bytes).second) {
      quarantined_ = Sum(quarantined_, move.bytes);
    } else if (move.to == core::ChunkState::kReleased) {
      released_ = Sum(released_, move.bytes);
      if (const auto it = in_quarantine_.find(move.chunk); it != in_quarantine_.end()) {
        quarantined_ = Bytes(quarantined_.value() - it->second.value());  // it was added above
        in_quarantine_.erase(it);
      }
    }
  }
}

Context::Context(const Options& options_in, const Ports& ports_in)
    : options(options_in), ports(ports_in), books(options_in.limits, options_in.first_id) {}

void Context::Record(core::Transitions moves, std::function<void(absl::Status)> done) {
  NoteMoves(moves);
  ports.journal->Record(std::move(moves), std::move(done));
}

void Context::RecordOnly(core::Transitions moves) {
  if (moves.empty()) return;
  Record(std::move(moves), [this](const absl::Status& status) { Expect(status, "recording moves in the journal"); });
}

void Context::Expect(const absl::Status& status, std::string_view what) {
  if (status.ok()) return;
  ports.log->Write(Log::Level::kError, Cat(what, ": ", status.message()));
}

void Context::NoteMoves(const core::Transitions& moves) {
  for (const core::Transition& move : moves) ++activity_[move.device].serial;
}

std::optional<std::uint64_t> Context::QuietMark(const DeviceUuid& device) const {
  const auto it = activity_.find(device);
  if (it == activity_.end()) return 0;
  if (it->second.in_flight > 0) return std::nullopt;
  return it->second.serial;
}

}  // namespace gpumem::manager
