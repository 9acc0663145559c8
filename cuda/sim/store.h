// cuda/sim/store.h: the physical memory of one simulated device, whose truth the kernel keeps.
//
// One allocation is one directory in the device's directory:
//   <id>/memory      a sparse file of the allocation's size: the bytes
//   <id>/fd-<id>     an empty file for each export: what an exported descriptor is open on
//   process-<pid>-<id>  an empty page for each context: who has work on the device
//   gone-<pid>-<id>  the same of a process that is gone, while NVML still lists it
//   node             a FIFO that stands for /dev/nvidiaN: who has it open for reading is known to whoever opens it for
//                    writing (fifo(7)), without any help of theirs
//   lock             every change is made under flock(LOCK_EX) of it
//   bound            16 bytes, shared by mmap: an upper bound of the bytes in use, and the last id given
//
// Who holds memory is answered by flock(2). Every open file description (OFD) that refers to an allocation holds
// LOCK_SH on its file, and the kernel drops that lock when the last descriptor *and the last mapping* of the OFD are
// gone, in any process, after any kind of death. A process's handle is a mapping of the memory file with its own OFD
// (so it costs no descriptor, is inherited by fork and dropped by exec, as the driver's are); an exported descriptor
// is an OFD on an fd file, wherever it travels. An allocation is dead when LOCK_EX|LOCK_NB succeeds on its memory file
// and on all of its fd files. Dead ones are unlinked by whoever looks next.
//
// The bound is only ever too high: a process that dies leaves it so, and whoever finds it full counts anew. So no
// killed process can leave a wrong number behind, and creating memory does not count all of it each time.
//
// An exported descriptor is write-only and empty: mmap, read and the size of it fail or say nothing, as on hardware.
#ifndef GPUMEM_CUDA_SIM_STORE_H_
#define GPUMEM_CUDA_SIM_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cuda/sim/config.h"

namespace simcuda {

class DeviceStore;

// This process's reference to one allocation. The last shared_ptr to it drops the reference; when that was the last
// one anywhere, the memory is freed. Its bytes are reachable at data(), an address that only the simulation knows: it
// is no device address. Immutable; thread-safe.
class Object {
 public:
  ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  unsigned char* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t id() const { return id_; }
  DeviceStore& store() const { return store_; }

  // Opens the memory file anew, for pread(2) and the map of holes. Invalid when there is no descriptor left.
  gpumem::UniqueFd OpenFile() const;

 private:
  friend class DeviceStore;
  Object(DeviceStore& store, std::uint64_t id, unsigned char* data, std::uint64_t bytes)
      : store_(store), id_(id), data_(data), bytes_(bytes) {}
  DeviceStore& store_;
  const std::uint64_t id_;
  unsigned char* const data_;
  const std::uint64_t bytes_;
};

// This process's entry in the device's list of processes, while it lives (and in each forked child that inherits it).
class Presence {
 public:
  ~Presence();
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

 private:
  friend class DeviceStore;
  Presence(DeviceStore& store, std::string name, void* page) : store_(store), name_(std::move(name)), page_(page) {}
  DeviceStore& store_;
  const std::string name_;
  void* const page_;
};

struct ObjectTruth {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  bool handle_held = false;        // some process has a handle or a mapping
  std::uint32_t exported_fds = 0;  // exports (open file descriptions, not copies of descriptors) that are still open
};

struct DeviceTruth {
  DeviceConfig config;
  std::uint64_t physical_bytes = 0;  // the sum of the objects' bytes
  std::vector<ObjectTruth> objects;  // by id
};

// Thread-safe; one process may open a device any number of times. Must outlive its Objects and Presences. Holds two
// descriptors.
class DeviceStore {
 public:
  enum class Outcome {
    kOk,
    kOutOfMemory,  // over the capacity
    kNotOurs,      // the descriptor is no export of this device
    kNoFd,         // the process or the system is out of descriptors
    kSystem,       // any other refusal of the kernel
  };

  static std::unique_ptr<DeviceStore> Open(const std::string& dir, const DeviceConfig& config, std::string* error);
  ~DeviceStore();
  DeviceStore(const DeviceStore&) = delete;
  DeviceStore& operator=(const DeviceStore&) = delete;

  const DeviceConfig& config() const { return config_; }

  // `bytes` of zeroes, a multiple of the granularity.
  Outcome Create(std::uint64_t bytes, std::shared_ptr<Object>* out);
  // A new descriptor, which the caller owns. It is inheritable: the real driver's flag is not documented.
  Outcome Export(const Object& object, int* fd);
  // Whether `fd` is an export of this device, now: one of an earlier life is not.
  bool Owns(int fd) const;
  // Neither consumes nor closes `fd`.
  Outcome Import(int fd, std::shared_ptr<Object>* out);

  // Counts anew, dropping what is dead.
  Outcome UsedBytes(std::uint64_t* used);
  Outcome Truth(DeviceTruth* out);

  Outcome Enter(std::unique_ptr<Presence>* out);
  // Who has a context; a process that ended without destroying it is listed for `lag` more, from when that was noticed.
  Outcome Processes(std::chrono::microseconds lag, std::vector<std::uint32_t>* pids);

  // Opens the device node. Without `persistence`, the first opener finds the memory empty: the adapter was shut down.
  Outcome OpenNode(bool persistence, gpumem::UniqueFd* out);
  // Without persistence, when nobody has the node open: the memory is gone, whoever holds descriptors of it.
  Outcome ShutDownIfUnopened();
  // A new life: no memory, no processes. What old references still reach belongs to no device.
  Outcome Clear();

 private:
  friend class Object;
  friend class Presence;
  class Locked;
  struct Forks;
  struct Bound;
  enum class Life { kAlive, kDead, kUnknown };

  explicit DeviceStore(DeviceConfig config) : config_(std::move(config)) {}
  Life Probe(const std::string& path) const;
  Life ProbeExports(const std::string& directory, std::uint32_t* alive, bool count_all) const;
  Life CollectIfDead(const std::string& directory, ObjectTruth* truth);
  Outcome Scan(std::vector<ObjectTruth>* objects, std::uint64_t* used, bool count_exports);
  Outcome Adopt(std::uint64_t id, std::uint64_t bytes_if_new, std::shared_ptr<Object>* out);
  std::vector<std::string> List(const std::string& path, const char* prefix) const;
  void Collect(std::uint64_t id, std::uint64_t bytes);
  void ClearLocked();
  bool NodeIsOpen() const;
  std::uint64_t NextId();
  bool OpenLock();

  const DeviceConfig config_;
  gpumem::UniqueFd directory_;
  gpumem::UniqueFd lock_;
  Bound* bound_ = nullptr;
};

// Everything that is physically there in the machine of `dir`. False with one line in `*error`.
bool ReadTruth(const std::string& dir, std::vector<DeviceTruth>* devices, std::string* error);

}  // namespace simcuda

#endif  // GPUMEM_CUDA_SIM_STORE_H_
