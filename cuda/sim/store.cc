// cuda/sim/store.cc: see the header for the rules.
#include "cuda/sim/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "cuda/sim/breaks.h"
#include "cuda/sim/control.h"

namespace simcuda {
namespace {

using gpumem::Mutex;
using gpumem::UniqueFd;

constexpr std::size_t kPage = 4096;
constexpr char kProcess[] = "process-";
constexpr char kGone[] = "gone-";
constexpr char kNode[] = "node";

// One lock for all stores of the process, inside which the device's flock is taken: flock(2) does not exclude threads
// that share a descriptor.
Mutex& ProcessLock() {
  static Mutex* const mutex = new Mutex;
  return *mutex;
}

std::string Hex(std::uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

std::optional<std::uint64_t> ParseHex(std::string_view text) {
  std::uint64_t id = 0;
  if (text.size() != 16) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return id;
}

int Flock(int fd, int operation) {
  int result;
  do {
    result = ::flock(fd, operation);
  } while (result != 0 && errno == EINTR);
  return result;
}

DeviceStore::Outcome FromErrno() {
  return errno == EMFILE || errno == ENFILE ? DeviceStore::Outcome::kNoFd : DeviceStore::Outcome::kSystem;
}

// "<16 hex>/fd-<16 hex>": the last two parts of the path that a descriptor is open on; empty when it is no such thing.
std::string ExportNameOf(int fd) {
  char link[64];
  char target[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, target, sizeof target);
  constexpr std::size_t kNameLength = 16 + 1 + 3 + 16;
  if (length < static_cast<ssize_t>(kNameLength)) return "";
  const std::string_view name(target + length - kNameLength, kNameLength);
  if (!ParseHex(name.substr(0, 16)) || name.substr(16, 4) != "/fd-" || !ParseHex(name.substr(20))) return "";
  return std::string(name);
}

}  // namespace

// Shared by all processes; read and written under the device's lock only.
struct DeviceStore::Bound {
  std::uint64_t used_at_most;
  std::uint64_t last_id;
};

class GPUMEM_SCOPED_CAPABILITY DeviceStore::Locked {
 public:
  explicit Locked(const DeviceStore& store) GPUMEM_ACQUIRE(ProcessLock()) : fd_(store.lock_.get()) {
    ProcessLock().Lock();
    Flock(fd_, LOCK_EX);
  }
  ~Locked() GPUMEM_RELEASE() {
    Flock(fd_, LOCK_UN);
    ProcessLock().Unlock();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const int fd_;
};

// A forked child shares its parent's open file descriptions: were the device's lock one of them, a parent that is
// killed while it holds the lock would leave it with the child for ever. So the lock is not held across fork(2), and a
// child opens its own at once.
struct DeviceStore::Forks {
  static std::vector<DeviceStore*>& Stores() GPUMEM_REQUIRES(ProcessLock()) {
    static auto* const stores = new std::vector<DeviceStore*>;
    return *stores;
  }
  static void Before() GPUMEM_NO_THREAD_SAFETY_ANALYSIS { ProcessLock().Lock(); }
  static void InParent() GPUMEM_NO_THREAD_SAFETY_ANALYSIS { ProcessLock().Unlock(); }
  static void InChild() GPUMEM_NO_THREAD_SAFETY_ANALYSIS {
    for (DeviceStore* const store : Stores()) store->OpenLock();
    ProcessLock().Unlock();
  }
  static void Add(DeviceStore* store) {
    static const int once = pthread_atfork(Before, InParent, InChild);
    (void)once;
    const gpumem::MutexLock lock(&ProcessLock());
    Stores().push_back(store);
  }
  static void Remove(DeviceStore* store) {
    const gpumem::MutexLock lock(&ProcessLock());
    Stores().erase(std::remove(Stores().begin(), Stores().end(), store), Stores().end());
  }
};

Object::~Object() {
  ::munmap(data_, bytes_);
  store_.Collect(id_, bytes_);
}

UniqueFd Object::OpenFile() const {
  return UniqueFd(::openat(store_.directory_.get(), (Hex(id_) + "/memory").c_str(), O_RDWR | O_CLOEXEC));
}

Presence::~Presence() {
  ::munmap(page_, kPage);
  ::unlinkat(store_.directory_.get(), name_.c_str(), 0);
}

std::unique_ptr<DeviceStore> DeviceStore::Open(const std::string& dir, const DeviceConfig& config, std::string* error) {
  const std::string path = dir + "/" + config.uuid.ToString();
  const auto failed = [&](const char* what) {
    *error = std::string("cannot open ") + what + " of simulated device '" + path + "': " + std::strerror(errno);
    return nullptr;
  };
  std::unique_ptr<DeviceStore> store(new DeviceStore(config));
  store->directory_.reset(::open(path.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC));
  if (!store->directory_.valid()) return failed("the directory");
  if (!store->OpenLock()) return failed("the lock");
  if (::mkfifoat(store->directory_.get(), kNode, 0666) != 0 && errno != EEXIST) return failed("the node");
  const UniqueFd bound(::openat(store->directory_.get(), "bound", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!bound.valid() || ::ftruncate(bound.get(), kPage) != 0) return failed("the bound");
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, bound.get(), 0);
  if (page == MAP_FAILED) return failed("the bound");
  store->bound_ = static_cast<Bound*>(page);
  Forks::Add(store.get());
  return store;
}

bool DeviceStore::OpenLock() {
  lock_.reset(::openat(directory_.get(), "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  return lock_.valid();
}

DeviceStore::~DeviceStore() {
  Forks::Remove(this);
  if (bound_ != nullptr) ::munmap(bound_, kPage);
}

std::uint64_t DeviceStore::NextId() { return ++bound_->last_id; }

// Whether any open file description holds LOCK_SH on the file. With the device locked nobody takes or gives up EX.
DeviceStore::Life DeviceStore::Probe(const std::string& path) const {
  const UniqueFd fd(::openat(directory_.get(), path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return errno == ENOENT ? Life::kDead : Life::kUnknown;
  if (Flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return SIMCUDA_BREAK("dead-memory-kept") ? Life::kAlive : Life::kDead;
  return errno == EWOULDBLOCK ? Life::kAlive : Life::kUnknown;
}

std::vector<std::string> DeviceStore::List(const std::string& path, const char* prefix) const {
  std::vector<std::string> names;
  UniqueFd fd(::openat(directory_.get(), path.c_str(), O_DIRECTORY | O_RDONLY | O_CLOEXEC));
  DIR* const directory = fd.valid() ? ::fdopendir(fd.get()) : nullptr;
  if (directory == nullptr) return names;
  (void)fd.release();  // closed by closedir
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name.substr(0, std::strlen(prefix)) == prefix && name[0] != '.') names.emplace_back(name);
  }
  ::closedir(directory);
  return names;
}

DeviceStore::Life DeviceStore::ProbeExports(const std::string& directory, std::uint32_t* alive, bool count_all) const {
  *alive = 0;
  for (const std::string& name : List(directory, "fd-")) {
    const std::string path = directory + "/" + name;
    switch (Probe(path)) {
      case Life::kUnknown:
        return Life::kUnknown;
      case Life::kDead:
        ::unlinkat(directory_.get(), path.c_str(), 0);
        break;
      case Life::kAlive:
        ++*alive;
        if (!count_all) return Life::kAlive;
    }
  }
  return *alive > 0 ? Life::kAlive : Life::kDead;
}

// Looks at one allocation and unlinks it when it is dead. `truth` may be null; it is filled for a living one.
DeviceStore::Life DeviceStore::CollectIfDead(const std::string& directory, ObjectTruth* truth) {
  const std::string memory = directory + "/memory";
  const Life held = Probe(memory);
  if (held == Life::kUnknown) return held;
  std::uint32_t exports = 0;
  Life life = held;
  if (held == Life::kDead || truth != nullptr) {
    const Life exported = ProbeExports(directory, &exports, truth != nullptr);
    if (exported == Life::kUnknown) return exported;
    if (exported == Life::kAlive && !SIMCUDA_BREAK("descriptor-does-not-hold")) life = Life::kAlive;
  }
  if (life == Life::kDead) {
    ::unlinkat(directory_.get(), memory.c_str(), 0);
    ::unlinkat(directory_.get(), directory.c_str(), AT_REMOVEDIR);
  } else if (truth != nullptr) {
    truth->handle_held = held == Life::kAlive;
    truth->exported_fds = exports;
  }
  return life;
}

DeviceStore::Outcome DeviceStore::Scan(std::vector<ObjectTruth>* objects, std::uint64_t* used, bool count_exports) {
  std::uint64_t sum = 0;
  for (const std::string& name : List(".", "")) {
    const auto id = ParseHex(name);
    if (!id) continue;
    ObjectTruth truth;
    truth.id = *id;
    const Life life = CollectIfDead(name, count_exports ? &truth : nullptr);
    if (life == Life::kUnknown) return FromErrno();
    if (life == Life::kDead) continue;
    struct stat status {};
    if (::fstatat(directory_.get(), (name + "/memory").c_str(), &status, 0) != 0) return Outcome::kSystem;
    truth.bytes = static_cast<std::uint64_t>(status.st_size);
    sum += truth.bytes;
    if (objects != nullptr) objects->push_back(truth);
  }
  bound_->used_at_most = sum;
  if (used != nullptr) *used = sum;
  return Outcome::kOk;
}

// Takes this process's own reference to the allocation `id`, making its file first when `bytes_if_new` is not 0.
DeviceStore::Outcome DeviceStore::Adopt(std::uint64_t id, std::uint64_t bytes_if_new, std::shared_ptr<Object>* out) {
  const int create = bytes_if_new != 0 ? O_CREAT | O_EXCL : 0;
  const UniqueFd fd(
      ::openat(directory_.get(), (Hex(id) + "/memory").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | create, 0644));
  if (!fd.valid()) return FromErrno();
  if (SIMCUDA_BREAK("handle-costs-descriptor")) (void)::dup(fd.get());
  if (bytes_if_new != 0 && ::ftruncate(fd.get(), static_cast<off_t>(bytes_if_new)) != 0) return Outcome::kSystem;
  struct stat status {};
  if (Flock(fd.get(), LOCK_SH | LOCK_NB) != 0 || ::fstat(fd.get(), &status) != 0) return Outcome::kSystem;
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) return Outcome::kSystem;
  if (bytes_if_new != 0 && SIMCUDA_BREAK("memory-not-zeroed")) std::memset(data, 0xa5, kPage);
  out->reset(new Object(*this, id, static_cast<unsigned char*>(data), bytes));
  return Outcome::kOk;  // the descriptor closes here; the mapping keeps the description, and with it the lock
}

DeviceStore::Outcome DeviceStore::Create(std::uint64_t bytes, std::shared_ptr<Object>* out) {
  const Locked locked(*this);
  const std::uint64_t capacity = config_.capacity_bytes;
  if (bytes > capacity && !SIMCUDA_BREAK("capacity-ignored")) return Outcome::kOutOfMemory;
  if (bound_->used_at_most > capacity - bytes && !SIMCUDA_BREAK("capacity-used-ignored")) {
    std::uint64_t used = 0;
    if (const Outcome outcome = Scan(nullptr, &used, false); outcome != Outcome::kOk) return outcome;
    if (used > capacity - bytes) return Outcome::kOutOfMemory;
  }
  bound_->used_at_most += bytes;  // before the file is there: a death in between leaves it too high, never too low
  const std::uint64_t id = NextId();
  const std::string directory = Hex(id);
  Outcome outcome = ::mkdirat(directory_.get(), directory.c_str(), 0755) == 0 ? Outcome::kOk : Outcome::kSystem;
  if (outcome == Outcome::kOk) outcome = Adopt(id, bytes, out);
  if (outcome != Outcome::kOk) CollectIfDead(directory, nullptr);
  return outcome;
}

DeviceStore::Outcome DeviceStore::Export(const Object& object, int* fd) {
  const Locked locked(*this);
  const std::string name = Hex(object.id()) + "/fd-" + Hex(NextId());
  UniqueFd exported(::openat(directory_.get(), name.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644));
  if (!exported.valid()) return FromErrno();
  if (SIMCUDA_BREAK("descriptor-maps")) {
    exported.reset(::openat(directory_.get(), name.c_str(), O_RDWR));
    if (::ftruncate(exported.get(), kPage) != 0) return Outcome::kSystem;
  }
  if (Flock(exported.get(), LOCK_SH | LOCK_NB) != 0) return Outcome::kSystem;
  *fd = exported.release();
  return Outcome::kOk;
}

bool DeviceStore::Owns(int fd) const {
  const std::string name = ExportNameOf(fd);
  if (name.empty()) return false;
  // A path proves nothing (another directory may have the same names): the file must be the same one.
  struct stat given {};
  struct stat ours {};
  return ::fstat(fd, &given) == 0 && ::fstatat(directory_.get(), name.c_str(), &ours, AT_SYMLINK_NOFOLLOW) == 0 &&
         given.st_dev == ours.st_dev && given.st_ino == ours.st_ino;
}

DeviceStore::Outcome DeviceStore::Import(int fd, std::shared_ptr<Object>* out) {
  const Locked locked(*this);
  if (!Owns(fd)) return Outcome::kNotOurs;
  return Adopt(*ParseHex(std::string_view(ExportNameOf(fd)).substr(0, 16)), 0, out);
}

// After this process dropped a reference: frees the memory if that was the last one anywhere.
void DeviceStore::Collect(std::uint64_t id, std::uint64_t bytes) {
  const Locked locked(*this);
  struct stat status {};
  const std::string directory = Hex(id);
  if (::fstatat(directory_.get(), directory.c_str(), &status, 0) != 0) return;  // another process collected it already
  if (CollectIfDead(directory, nullptr) == Life::kDead) {
    bound_->used_at_most -= std::min(bytes, bound_->used_at_most);
  }
}

DeviceStore::Outcome DeviceStore::UsedBytes(std::uint64_t* used) {
  const Locked locked(*this);
  return Scan(nullptr, used, false);
}

DeviceStore::Outcome DeviceStore::Truth(DeviceTruth* out) {
  const Locked locked(*this);
  DeviceTruth truth;
  truth.config = config_;
  const Outcome outcome = Scan(&truth.objects, &truth.physical_bytes, true);
  if (outcome != Outcome::kOk) return outcome;
  std::sort(truth.objects.begin(), truth.objects.end(),
            [](const ObjectTruth& a, const ObjectTruth& b) { return a.id < b.id; });
  *out = std::move(truth);
  return Outcome::kOk;
}

DeviceStore::Outcome DeviceStore::Enter(std::unique_ptr<Presence>* out) {
  const Locked locked(*this);
  const std::string name = kProcess + std::to_string(::getpid()) + "-" + Hex(NextId());
  const UniqueFd fd(::openat(directory_.get(), name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0644));
  if (!fd.valid()) return FromErrno();
  void* page = MAP_FAILED;
  if (::ftruncate(fd.get(), kPage) == 0 && Flock(fd.get(), LOCK_SH | LOCK_NB) == 0) {
    page = ::mmap(nullptr, kPage, PROT_NONE, MAP_SHARED, fd.get(), 0);
  }
  if (page == MAP_FAILED) return Outcome::kSystem;
  out->reset(new Presence(*this, name, page));
  return Outcome::kOk;
}

DeviceStore::Outcome DeviceStore::Processes(std::chrono::microseconds lag, std::vector<std::uint32_t>* pids) {
  const Locked locked(*this);
  std::vector<std::uint32_t> found;
  const auto add = [&found](std::string_view name) {
    std::uint32_t pid = 0;
    name.remove_prefix(name.find('-') + 1);
    std::from_chars(name.data(), name.data() + name.size(), pid);
    if (std::find(found.begin(), found.end(), pid) == found.end()) found.push_back(pid);
  };
  for (const std::string& name : List(".", kProcess)) {
    const Life life = Probe(name);
    if (life == Life::kUnknown) return FromErrno();
    if (life == Life::kAlive) {
      add(name);
    } else if (lag.count() == 0 || SIMCUDA_BREAK("lists-never-lag")) {
      ::unlinkat(directory_.get(), name.c_str(), 0);
    } else {  // renaming sets its ctime, which is when it was noticed
      const std::string gone = kGone + name.substr(std::strlen(kProcess));
      ::renameat(directory_.get(), name.c_str(), directory_.get(), gone.c_str());
    }
  }
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  for (const std::string& name : List(".", kGone)) {
    struct stat status {};
    if (::fstatat(directory_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) continue;
    const auto age = std::chrono::seconds(now.tv_sec - status.st_ctim.tv_sec) +
                     std::chrono::nanoseconds(now.tv_nsec - status.st_ctim.tv_nsec);
    age < lag ? add(name) : (void)::unlinkat(directory_.get(), name.c_str(), 0);
  }
  std::sort(found.begin(), found.end());
  *pids = std::move(found);
  return Outcome::kOk;
}

bool DeviceStore::NodeIsOpen() const {
  const UniqueFd writer(::openat(directory_.get(), kNode, O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  return (writer.valid() || errno != ENXIO) && !SIMCUDA_BREAK("node-opens-nothing");
}

DeviceStore::Outcome DeviceStore::OpenNode(bool persistence, UniqueFd* out) {
  const Locked locked(*this);
  if (!persistence && !NodeIsOpen() && !SIMCUDA_BREAK("always-persistent")) ClearLocked();
  out->reset(::openat(directory_.get(), kNode, O_RDWR | O_CLOEXEC));
  return out->valid() ? Outcome::kOk : FromErrno();
}

DeviceStore::Outcome DeviceStore::ShutDownIfUnopened() {
  const Locked locked(*this);
  if (!NodeIsOpen()) ClearLocked();
  return Outcome::kOk;
}

DeviceStore::Outcome DeviceStore::Clear() {
  const Locked locked(*this);
  ClearLocked();
  return Outcome::kOk;
}

// The files lose their names: descriptors and mappings of them stay, and lead nowhere that counts.
void DeviceStore::ClearLocked() {
  for (const std::string& name : List(".", "")) {
    if (name.rfind(kProcess, 0) == 0 || name.rfind(kGone, 0) == 0) ::unlinkat(directory_.get(), name.c_str(), 0);
    if (!ParseHex(name)) continue;
    for (const std::string& file : List(name, "")) {
      ::unlinkat(directory_.get(), (name + "/" + file).c_str(), 0);
    }
    ::unlinkat(directory_.get(), name.c_str(), AT_REMOVEDIR);
  }
  bound_->used_at_most = 0;
}

bool ReadTruth(const std::string& dir, std::vector<DeviceTruth>* devices, std::string* error) {
  Config config;
  if (!ReadConfig(dir, &config, error)) return false;
  Settings settings;
  const auto control = Control::Open(dir, error);
  if (control == nullptr || !control->Read(&settings, error)) return false;
  std::vector<DeviceTruth> all;
  for (const DeviceConfig& device : config.devices) {
    const auto store = DeviceStore::Open(dir, device, error);
    if (store == nullptr) return false;
    if (!settings.DeviceOf(device.uuid).persistence) store->ShutDownIfUnopened();
    DeviceTruth truth;
    if (store->Truth(&truth) != DeviceStore::Outcome::kOk) {
      *error = "cannot read simulated device " + device.uuid.ToString() + " in '" + dir + "': " + std::strerror(errno);
      return false;
    }
    all.push_back(std::move(truth));
  }
  *devices = std::move(all);
  return true;
}

}  // namespace simcuda
