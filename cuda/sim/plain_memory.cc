// cuda/sim/plain_memory.cc: see the header.
#include "cuda/sim/plain_memory.h"

#include <iterator>

namespace simcuda {

using gpumem::MutexLock;

PlainMemory& PlainMemory::All() {
  static auto* const memory = new PlainMemory;
  return *memory;
}

bool PlainMemory::Add(PlainRange range) {
  const MutexLock lock(&mu_);
  const auto next = ranges_.lower_bound(range.begin);
  if (next != ranges_.end() && next->first - range.begin < range.bytes) return false;
  if (next != ranges_.begin()) {
    const PlainRange& before = std::prev(next)->second;
    if (range.begin - before.begin < before.bytes) return false;
  }
  range.id = ++last_id_;
  ranges_[range.begin] = range;
  return true;
}

std::optional<PlainRange> PlainMemory::Find(std::uint64_t address) {
  const MutexLock lock(&mu_);
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return std::nullopt;
  const PlainRange& range = std::prev(next)->second;
  return address - range.begin < range.bytes ? std::optional(range) : std::nullopt;
}

std::optional<PlainRange> PlainMemory::Remove(std::uint64_t begin, PlainRange::Kind kind) {
  const MutexLock lock(&mu_);
  const auto found = ranges_.find(begin);
  if (found == ranges_.end() || found->second.kind != kind) return std::nullopt;
  const PlainRange range = found->second;
  ranges_.erase(found);
  return range;
}

std::vector<PlainRange> PlainMemory::RemoveAll(CUcontext context) {
  const MutexLock lock(&mu_);
  std::vector<PlainRange> removed;
  for (auto at = ranges_.begin(); at != ranges_.end();) {
    if (at->second.context != context) {
      ++at;
      continue;
    }
    removed.push_back(at->second);
    at = ranges_.erase(at);
  }
  return removed;
}

}  // namespace simcuda
