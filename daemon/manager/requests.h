// daemon/manager/requests.h: the requests of one session that are running or were answered, for retries.
//
// The same request id with the same content joins the request while it runs and gets its answer again afterwards; with
// other content it is refused (REQUEST_ID_REUSED). Only answers that succeeded are remembered: an error changed
// nothing, so the same id may be tried again. Not thread-safe: the manager's strand owns it. Calls nothing but Abseil
// and core.
#ifndef GPUMEM_DAEMON_MANAGER_REQUESTS_H_
#define GPUMEM_DAEMON_MANAGER_REQUESTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/manager/manager.h"

namespace gpumem::manager {

// The content of a request as one number. Made and compared in one process only.
class Fingerprint {
 public:
  explicit Fingerprint(std::uint32_t kind) : hash_(kind) {}
  template <typename T>
  Fingerprint& Add(const T& value) {
    hash_ = absl::HashOf(hash_, value);
    return *this;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_;
};

class RequestTable {
 public:
  // One request may be waited for by so many calls: its own and its retries.
  static constexpr std::size_t kMaxWaiters = 16;

  // What Begin found. `run`: the request is new; run it and call Finish once. `answer`, when set: post it; it answers
  // the call with a remembered answer or a refusal. Neither: the call joined one that runs.
  struct Admission {
    bool run = false;
    std::function<void()> answer;
  };
  // Makes a remembered answer again.
  template <typename T>
  using Replay = std::function<absl::StatusOr<T>()>;

  // At most `most` (> 0) requests, running and remembered together; the oldest remembered one goes first.
  explicit RequestTable(std::uint32_t most) : most_(most) {}

  template <typename T>
  Admission Begin(std::uint64_t id, std::uint64_t fingerprint, Reply<T> reply) {
    absl::Status refused = CheckId(id);
    if (const auto it = entries_.find(id); refused.ok() && it != entries_.end()) {
      auto* entry = dynamic_cast<Typed<T>*>(it->second.get());
      if (entry == nullptr || entry->fingerprint != fingerprint) {
        refused = Reused(id);
      } else if (entry->replay) {
        return {false, [replay = entry->replay, reply] { reply(replay()); }};
      } else if (entry->waiting.size() >= kMaxWaiters) {
        refused = TooManyWaiters(id);
      } else {
        entry->waiting.push_back(std::move(reply));
        return {false, nullptr};
      }
    }
    if (refused.ok()) refused = MakeRoom();
    if (!refused.ok()) return {false, [reply, refused] { reply(refused); }};
    auto entry = std::make_unique<Typed<T>>();
    entry->fingerprint = fingerprint;
    entry->waiting.push_back(std::move(reply));
    entries_.emplace(id, std::move(entry));
    return {true, nullptr};
  }

  // Answers every call that waits for the request. Without `replay` a good answer is kept as it is.
  template <typename T>
  void Finish(std::uint64_t id, const absl::StatusOr<T>& answer, Replay<T> replay = nullptr) {
    const auto it = entries_.find(id);
    auto* entry = it == entries_.end() ? nullptr : dynamic_cast<Typed<T>*>(it->second.get());
    if (entry == nullptr || entry->replay) return;
    const std::vector<Reply<T>> waiting = std::move(entry->waiting);
    if (answer.ok()) {
      entry->waiting.clear();
      entry->replay = replay ? std::move(replay) : Replay<T>([value = *answer] { return absl::StatusOr<T>(value); });
      completed_.push_back(id);
    } else {
      entries_.erase(it);
    }
    for (const Reply<T>& reply : waiting) reply(answer);
  }

  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    virtual ~Entry() = default;
    std::uint64_t fingerprint = 0;
  };
  template <typename T>
  struct Typed : Entry {
    std::vector<Reply<T>> waiting;
    Replay<T> replay;  // set once the request succeeded
  };

  static absl::Status CheckId(std::uint64_t id);
  static absl::Status Reused(std::uint64_t id);
  static absl::Status TooManyWaiters(std::uint64_t id);
  absl::Status MakeRoom();

  const std::uint32_t most_;
  absl::flat_hash_map<std::uint64_t, std::unique_ptr<Entry>> entries_;
  std::deque<std::uint64_t> completed_;  // oldest first
};

}  // namespace gpumem::manager

#endif  // GPUMEM_DAEMON_MANAGER_REQUESTS_H_
