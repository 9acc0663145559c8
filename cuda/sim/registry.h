// cuda/sim/registry.h: opaque driver handles (contexts, streams, events, modules, functions) that are checked.
#ifndef GPUMEM_CUDA_SIM_REGISTRY_H_
#define GPUMEM_CUDA_SIM_REGISTRY_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace simcuda {

// Gives out handles that are numbers in a pointer's clothes: never addresses, never reused, so a stale or foreign one
// is refused instead of followed. Thread-safe.
template <typename Handle, typename T>
class Registry {
 public:
  // `first` keeps the kinds of handles apart.
  explicit Registry(std::uintptr_t first) : next_(first) {}

  Handle Add(std::shared_ptr<T> object) {
    const gpumem::MutexLock lock(&mu_);
    const std::uintptr_t number = next_;
    next_ += 16;
    objects_[number] = std::move(object);
    return reinterpret_cast<Handle>(number);
  }
  std::shared_ptr<T> Find(Handle handle) {
    const gpumem::MutexLock lock(&mu_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    return found != objects_.end() ? found->second : nullptr;
  }
  std::shared_ptr<T> Remove(Handle handle) {
    const gpumem::MutexLock lock(&mu_);
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  gpumem::Mutex mu_;
  std::uintptr_t next_ GPUMEM_GUARDED_BY(mu_);
  std::unordered_map<std::uintptr_t, std::shared_ptr<T>> objects_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_REGISTRY_H_
