// cuda/sim/control.h: how the settings of a running machine change, and how its processes see that.
//
//   <dir>/settings       the text (cuda/sim/settings.h), replaced as a whole, under flock(2) of settings.lock
//   <dir>/control        one page-aligned block, shared by mmap: a number that rises with each change (a futex, so that
//                        a blocked call wakes), the calls that each rule has counted, and the last Xid events
#ifndef GPUMEM_CUDA_SIM_CONTROL_H_
#define GPUMEM_CUDA_SIM_CONTROL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/sim/settings.h"

namespace simcuda {

inline constexpr std::size_t kMostRules = 256;

struct RuleCounts {
  std::uint64_t calls = 0;  // that matched
  std::uint64_t acted = 0;
  std::uint32_t blocked_now = 0;  // a killed process's call stays in it
  bool released = false;
};

struct XidEvent {
  std::uint64_t sequence = 0;  // from 1, rising over all devices
  gpumem::DeviceUuid device;
  std::uint32_t code = 0;
};

// Thread-safe; shared with all processes of the machine. Holds no descriptor.
class Control {
 public:
  // Null with one line in `*error` when the directory is not writable.
  static std::unique_ptr<Control> Open(const std::string& dir, std::string* error);
  // Of the machine that SIMCUDA_DIR names, never destroyed; null when it names none or cannot be opened.
  static Control* OfProcess();
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Rises with every change.
  std::uint32_t generation() const;
  // Returns at once when the generation is not `seen` any more, and now and then without a reason.
  void WaitForChange(std::uint32_t seen, std::chrono::milliseconds longest) const;

  bool Read(Settings* settings, std::string* error) const;
  // Reads, lets `change` edit (false: nothing is written), writes, and wakes everyone. Errors as in ParseSettings.
  // `repair`: a text that cannot be read is taken for an empty one, for a change that replaces all of it.
  bool Update(const std::function<bool(Settings* settings, std::string* error)>& change, std::string* error,
              bool repair = false);

  // For Update's `change`: a rule id that was never given out.
  std::uint64_t NewRuleId(const Settings& settings);
  // Counts one more call and says which one it is.
  std::uint64_t CountCall(const Rule& rule);
  void CountAction(const Rule& rule);
  void CountBlocked(const Rule& rule, bool entered);
  RuleCounts Counts(const Rule& rule) const;
  void Release(const Rule& rule);

  void PostXid(const gpumem::DeviceUuid& device, std::uint32_t code);
  // The events after `sequence` that are still known (the last 64), oldest first.
  std::vector<XidEvent> XidsAfter(std::uint64_t sequence) const;
  std::uint64_t LastXid() const;

 private:
  struct Page;
  struct Slot;
  explicit Control(std::string dir) : dir_(std::move(dir)) {}
  Slot& SlotOf(const Rule& rule) const;
  void Wake();

  const std::string dir_;
  Page* page_ = nullptr;
};

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_CONTROL_H_
