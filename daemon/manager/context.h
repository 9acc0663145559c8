// daemon/manager/context.h: what every part of the manager shares: the books, the ports, and the few ways in which they
// are used together. Strand only.
#ifndef GPUMEM_DAEMON_MANAGER_CONTEXT_H_
#define GPUMEM_DAEMON_MANAGER_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "daemon/core/books.h"
#include "daemon/core/format.h"
#include "daemon/core/reasons.h"
#include "daemon/manager/manager.h"
#include "daemon/manager/ports.h"

namespace gpumem::manager {

// a + b of bytes that the books have added up before. Aborts when they do not fit: then the books are broken.
Bytes Sum(Bytes a, Bytes b);

// What one operation ended or put into quarantine, chunk by chunk. A chunk that was quarantined and then released by
// the same operation counts as released.
class Tally {
 public:
  void Add(const core::Transitions& moves);
  Bytes released() const { return released_; }
  Bytes quarantined() const { return quarantined_; }

 private:
  Bytes released_;
  Bytes quarantined_;
  absl::flat_hash_map<ChunkId, Bytes> in_quarantine_;
};

class Context {
 public:
  Context(const Options& options_in, const Ports& ports_in);

  const Options options;
  const Ports ports;
  core::Books books;
  bool draining = false;
  bool keeper_connected = false;

  absl::Time Now() { return ports.clock->Now(); }
  // Runs `fn` on the strand, after the call that is running now.
  void Post(std::function<void()> fn) { ports.timers->After(absl::ZeroDuration(), std::move(fn)); }

  // Every move of the books goes through one of these two. `done` is the moment at which a reply may go.
  void Record(core::Transitions moves, std::function<void(absl::Status)> done);
  void RecordOnly(core::Transitions moves);

  template <typename Kind>
  void Publish(Kind kind) {
    ports.events->Publish(Event{next_event_++, Now(), std::move(kind)});
  }

  void Debug(std::string_view line) { ports.log->Write(Log::Level::kDebug, line); }
  void Info(std::string_view line) { ports.log->Write(Log::Level::kInfo, line); }
  void Warn(std::string_view line) { ports.log->Write(Log::Level::kWarning, line); }
  // Logs an error of a call that cannot fail unless the manager or the books have a defect.
  void Expect(const absl::Status& status, std::string_view what);

  // Work that changes how much memory the driver has in use. A reading of the driver counts only if nothing was in
  // flight on the device, and no move happened, from the question to the answer.
  void BeginWork(const DeviceUuid& device) { ++activity_[device].in_flight; }
  void EndWork(const DeviceUuid& device) { --activity_[device].in_flight; }
  std::optional<std::uint64_t> QuietMark(const DeviceUuid& device) const;

 private:
  struct Activity {
    std::uint64_t in_flight = 0;
    std::uint64_t serial = 0;
  };
  void NoteMoves(const core::Transitions& moves);

  std::uint64_t next_event_ = 1;
  absl::flat_hash_map<DeviceUuid, Activity> activity_;
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_CONTEXT_H_
