// cuda/sim/control.cc: see the header.
#include "cuda/sim/control.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cuda/sim/config.h"

namespace simcuda {
namespace {

constexpr std::size_t kSlots = kMostRules;
constexpr std::size_t kXids = 64;

std::string Because(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

struct Control::Slot {
  std::atomic<std::uint64_t> calls;
  std::atomic<std::uint64_t> acted;
  std::atomic<std::uint32_t> blocked;
  std::atomic<std::uint32_t> released;
};

// Zeroes are its initial state, so whoever comes first makes it. A process may be killed between any two writes: each
// field is whole by itself, and an Xid counts once its sequence is written.
struct Control::Page {
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint64_t> last_rule_id;
  std::array<Slot, kSlots> slots;  // a living rule's by id % kSlots; NewRuleId sees that no two meet
  std::atomic<std::uint64_t> last_xid;
  struct Xid {
    std::atomic<std::uint64_t> sequence;
    std::atomic<std::uint32_t> code;
    std::array<std::atomic<std::uint8_t>, 16> device;
    std::atomic<std::uint8_t> is_mig;
  };
  std::array<Xid, kXids> xids;
};

std::unique_ptr<Control> Control::Open(const std::string& dir, std::string* error) {
  const std::string path = dir + "/control";
  const gpumem::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  void* page = MAP_FAILED;
  if (fd.valid() && ::ftruncate(fd.get(), sizeof(Page)) == 0) {
    page = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  }
  if (page == MAP_FAILED) {
    *error = Because("cannot open '" + path + "'");
    return nullptr;
  }
  // Absolute: the process may change its directory.
  char* const absolute = ::realpath(dir.c_str(), nullptr);
  std::unique_ptr<Control> control(new Control(absolute != nullptr ? absolute : dir));
  std::free(absolute);
  control->page_ = static_cast<Page*>(page);
  return control;
}

Control* Control::OfProcess() {
  static std::atomic<Control*> opened{nullptr};
  if (Control* const control = opened.load(std::memory_order_acquire)) return control;
  const char* const dir = std::getenv(kDirVariable);
  if (dir == nullptr || dir[0] == 0) return nullptr;
  static gpumem::Mutex* const mutex = new gpumem::Mutex;
  const gpumem::MutexLock lock(mutex);
  if (opened.load(std::memory_order_acquire) != nullptr) return opened.load(std::memory_order_acquire);
  Config config;
  std::string ignored;  // cuInit says what is wrong
  if (!ReadConfig(dir, &config, &ignored)) return nullptr;
  opened.store(Open(dir, &ignored).release(), std::memory_order_release);
  return opened.load(std::memory_order_acquire);
}

Control::~Control() {
  if (page_ != nullptr) ::munmap(page_, sizeof(Page));
}

std::uint32_t Control::generation() const { return page_->generation.load(std::memory_order_acquire); }

void Control::WaitForChange(std::uint32_t seen, std::chrono::milliseconds longest) const {
  const timespec timeout{static_cast<time_t>(longest.count() / 1000),
                         static_cast<long>(longest.count() % 1000 * 1000000)};
  ::syscall(SYS_futex, &page_->generation, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void Control::Wake() {
  page_->generation.fetch_add(1, std::memory_order_acq_rel);
  ::syscall(SYS_futex, &page_->generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool Control::Read(Settings* settings, std::string* error) const {
  const std::string path = dir_ + "/settings";
  std::string text;
  const gpumem::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  // Absent: nothing was set. A process without a descriptor left must not take it for that.
  bool whole = fd.valid() || errno == ENOENT;
  char piece[4096];
  while (whole && fd.valid()) {
    const ssize_t count = ::read(fd.get(), piece, sizeof piece);
    if (count == 0) break;
    whole = count > 0 || errno == EINTR;
    if (count > 0) text.append(piece, static_cast<std::size_t>(count));
  }
  if (!whole) {
    *error = Because("cannot read '" + path + "'");
    return false;
  }
  if (ParseSettings(text, settings, error)) return true;
  *error = "'" + path + "' " + *error + "; 'simgpu settings load FILE' puts another text in its place";
  return false;
}

bool Control::Update(const std::function<bool(Settings*, std::string*)>& change, std::string* error, bool repair) {
  const std::string path = dir_ + "/settings";
  const gpumem::UniqueFd lock(::open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  int locked = -1;
  while (lock.valid() && (locked = ::flock(lock.get(), LOCK_EX)) != 0 && errno == EINTR) {
  }
  if (locked != 0) {
    *error = Because("cannot lock '" + path + ".lock'");
    return false;
  }
  Settings settings;
  if (!Read(&settings, error) && !repair) return false;
  if (!change(&settings, error)) return false;
  // What was written must be readable, or no later change could be made.
  const std::string text = FormatSettings(settings);
  Settings again;
  if (!ParseSettings(text, &again, error)) return false;
  // Renamed into place: a reader sees the old text or the new one.
  const std::string temporary = path + ".new";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << text;
    file.close();
    if (!file) {
      *error = Because("cannot write '" + temporary + "'");
      return false;
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    *error = Because("cannot replace '" + path + "'");
    return false;
  }
  Wake();
  return true;
}

std::uint64_t Control::NewRuleId(const Settings& settings) {
  if (settings.rules.size() >= kSlots) return 0;
  const auto taken = [&settings](std::uint64_t id) {
    return std::any_of(settings.rules.begin(), settings.rules.end(),
                       [id](const Rule& rule) { return rule.id % kSlots == id % kSlots; });
  };
  std::uint64_t id = page_->last_rule_id.load() + 1;
  while (taken(id)) ++id;
  page_->last_rule_id.store(id);
  Slot& slot = page_->slots[id % kSlots];
  slot.calls = 0;
  slot.acted = 0;
  slot.blocked = 0;
  slot.released = 0;
  return id;
}

Control::Slot& Control::SlotOf(const Rule& rule) const { return page_->slots[rule.id % kSlots]; }
std::uint64_t Control::CountCall(const Rule& rule) { return SlotOf(rule).calls.fetch_add(1) + 1; }
void Control::CountAction(const Rule& rule) { SlotOf(rule).acted.fetch_add(1); }
void Control::CountBlocked(const Rule& rule, bool entered) {
  std::atomic<std::uint32_t>& blocked = SlotOf(rule).blocked;
  if (entered) {
    blocked.fetch_add(1);
    return;
  }
  // A new rule may have begun to count in this slot meanwhile.
  std::uint32_t now = blocked.load();
  while (now > 0 && !blocked.compare_exchange_weak(now, now - 1)) {
  }
}

RuleCounts Control::Counts(const Rule& rule) const {
  const Slot& slot = SlotOf(rule);
  return RuleCounts{slot.calls.load(), slot.acted.load(), slot.blocked.load(), slot.released.load() != 0};
}

void Control::Release(const Rule& rule) {
  SlotOf(rule).released = 1;
  Wake();
}

void Control::PostXid(const gpumem::DeviceUuid& device, std::uint32_t code) {
  const std::uint64_t sequence = page_->last_xid.fetch_add(1) + 1;
  Page::Xid& xid = page_->xids[sequence % kXids];
  xid.sequence.store(0);
  xid.code.store(code);
  for (std::size_t i = 0; i < xid.device.size(); ++i) xid.device[i].store(device.raw()[i]);
  xid.is_mig.store(device.kind() == gpumem::DeviceUuid::Kind::kMig ? 1 : 0);
  xid.sequence.store(sequence);
  Wake();
}

std::vector<XidEvent> Control::XidsAfter(std::uint64_t sequence) const {
  std::vector<XidEvent> events;
  const std::uint64_t last = page_->last_xid.load();
  const std::uint64_t oldest = last > kXids ? last - kXids : 0;
  for (std::uint64_t at = std::max(sequence, oldest) + 1; at <= last; ++at) {
    const Page::Xid& xid = page_->xids[at % kXids];
    if (xid.sequence.load() != at) continue;  // being written, or its writer was killed
    gpumem::DeviceUuid::Raw raw{};
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = xid.device[i].load();
    const auto kind = xid.is_mig.load() != 0 ? gpumem::DeviceUuid::Kind::kMig : gpumem::DeviceUuid::Kind::kGpu;
    events.push_back(XidEvent{at, gpumem::DeviceUuid(kind, raw), xid.code.load()});
  }
  return events;
}

std::uint64_t Control::LastXid() const { return page_->last_xid.load(); }

}  // namespace simcuda
