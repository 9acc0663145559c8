// gpumem/gpumem.hpp: C++17 classes over gpumem.h. Header-only: it calls the C functions of libgpumem and the standard
// library, nothing else, so it works with any compiler and any other library in the process.
//
//  - Nothing here throws on its own account: a call that can fail returns Status or Result<T>. (The standard containers
//    may throw std::bad_alloc when this process has no memory left.)
//  - Client, Lease and Segment own one C object each and are move-only. Their destructors close, release and detach. A
//    moved-from or default-made object is empty: its calls fail with INVALID_ARGUMENT.
//  - Sizes are bytes; device addresses are gpumem_device_ptr (CUdeviceptr); streams are CUstream.
//  - Threads and fork: as gpumem.h says. Destroying an object must not run beside another call on it.
#ifndef GPUMEM_GPUMEM_HPP_
#define GPUMEM_GPUMEM_HPP_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpumem/gpumem.h"

namespace gpumem {

using DevicePtr = gpumem_device_ptr;
using Stream = gpumem_stream;
using Streams = std::vector<Stream>;

enum class Retry { kNo = GPUMEM_RETRY_NO, kLater = GPUMEM_RETRY_LATER, kNew = GPUMEM_RETRY_NEW };
enum class Access {
  kNone = GPUMEM_ACCESS_NONE,
  kReadOnly = GPUMEM_ACCESS_READ_ONLY,
  kReadWrite = GPUMEM_ACCESS_READ_WRITE
};
enum class Role {
  kWeights = GPUMEM_ROLE_WEIGHTS,
  kKvCache = GPUMEM_ROLE_KV_CACHE,
  kWorkspace = GPUMEM_ROLE_WORKSPACE,
  kCommunication = GPUMEM_ROLE_COMMUNICATION,
  kDraftModel = GPUMEM_ROLE_DRAFT_MODEL,
  kOther = GPUMEM_ROLE_OTHER
};
enum class Fault {
  kNone = GPUMEM_FAULT_NONE,
  kProcess = GPUMEM_FAULT_PROCESS,
  kEcc = GPUMEM_FAULT_ECC,
  kDevice = GPUMEM_FAULT_DEVICE
};

// What a CUresult means for this process. Needs no client.
inline Fault ClassifyError(int cuda_error) { return static_cast<Fault>(gpumem_classify_error(cuda_error)); }

// The outcome of a call: OK, or a reason with a sentence for a person and the numbers of a refusal. A value.
class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  explicit Status(const gpumem_status& raw) : raw_(raw) {}

  bool ok() const { return raw_.reason == GPUMEM_OK; }
  gpumem_reason reason() const { return raw_.reason; }                         // GPUMEM_QUOTA, …
  const char* reason_name() const { return gpumem_reason_name(raw_.reason); }  // "QUOTA"
  int code() const { return raw_.code; }                                       // canonical gRPC code
  Retry retry() const { return static_cast<Retry>(raw_.retry); }
  int cuda_error() const { return raw_.cuda_error; }  // CUresult, or 0
  std::uint64_t asked_bytes() const { return raw_.asked_bytes; }
  std::uint64_t limit_bytes() const { return raw_.limit_bytes; }
  std::uint64_t available_bytes() const { return raw_.available_bytes; }
  const char* message() const { return raw_.message; }  // valid as long as this object
  std::string ToString() const { return ok() ? "OK" : std::string(reason_name()) + ": " + raw_.message; }

  // The C struct, to pass to a function of gpumem.h.
  gpumem_status* raw() { return &raw_; }

  static Status Empty() {
    Status status;
    status.raw_.reason = GPUMEM_INVALID_ARGUMENT;
    status.raw_.code = 3;
    status.raw_.retry = GPUMEM_RETRY_NO;
    constexpr char kText[] = "the object is empty: it was moved from, closed, released or never made";
    for (std::size_t i = 0; i < sizeof(kText); ++i) status.raw_.message[i] = kText[i];
    return status;
  }

 private:
  gpumem_status raw_ = GPUMEM_STATUS_INIT;
};

// A T or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(status) {}     // NOLINT(google-explicit-constructor); not OK

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return status_; }  // OK when there is a value

  // Requires ok(). Of a temporary they give the value itself, so that a loop over *client.Devices() is safe.
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// `count` chunks of `chunk_bytes` each (rounded up to the device's granularity) on the device of that UUID.
struct ChunkSpec {
  std::string device_uuid;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t count = 1;
};

// One tensor of a segment, at [offset_bytes, offset_bytes + size_bytes) from the segment's start.
struct Tensor {
  std::string name;
  std::string dtype;  // safetensors' spelling: "F32", "BF16", …
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

namespace internal {

inline std::vector<gpumem_chunk_spec> ToC(const std::vector<ChunkSpec>& specs) {
  std::vector<gpumem_chunk_spec> out;
  out.reserve(specs.size());
  for (const ChunkSpec& spec : specs) out.push_back({spec.device_uuid.c_str(), spec.chunk_bytes, spec.count});
  return out;
}

inline std::vector<gpumem_tensor> ToC(const std::vector<Tensor>& tensors) {
  std::vector<gpumem_tensor> out;
  out.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    gpumem_tensor raw = GPUMEM_TENSOR_INIT;
    raw.name = tensor.name.c_str();
    raw.dtype = tensor.dtype.c_str();
    raw.shape = tensor.shape.data();
    raw.shape_count = tensor.shape.size();
    raw.offset_bytes = tensor.offset_bytes;
    raw.size_bytes = tensor.size_bytes;
    out.push_back(raw);
  }
  return out;
}

// True when a failed release or detach has left the C object alive (gpumem.h).
inline bool ObjectLives(gpumem_reason reason) {
  return reason == GPUMEM_CAPTURING || reason == GPUMEM_CUDA || reason == GPUMEM_FORKED ||
         reason == GPUMEM_INVALID_ARGUMENT;
}

}  // namespace internal

// Private memory, or a segment that is being built. Destroying it releases it without waiting for any stream: wait
// first, or call Release with the streams. May outlive its Client, but is dead then.
class Lease {
 public:
  Lease() = default;
  explicit Lease(gpumem_lease* raw) : raw_(raw) {}  // takes it over
  ~Lease() { Reset(); }
  Lease(Lease&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Reset();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  explicit operator bool() const { return raw_ != nullptr; }
  gpumem_lease* get() const { return raw_; }

  // Lease id, bytes, chunks, access and address.
  Result<gpumem_memory_info> Info() const {
    if (raw_ == nullptr) return Status::Empty();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    Status status;
    if (gpumem_lease_info(raw_, &info, status.raw()) != GPUMEM_OK) return status;
    return info;
  }

  // Maps all chunks end to end: anywhere when `wanted` is 0, else exactly there.
  Result<DevicePtr> Map(Access access = Access::kReadWrite, DevicePtr wanted = 0) {
    if (raw_ == nullptr) return Status::Empty();
    DevicePtr address = 0;
    Status status;
    if (gpumem_lease_map(raw_, wanted, static_cast<std::int32_t>(access), &address, status.raw()) != GPUMEM_OK) {
      return status;
    }
    return address;
  }

  // Waits for the streams, then unmaps. The memory stays this process's.
  Status Unmap(const Streams& streams = {}) {
    if (raw_ == nullptr) return Status::Empty();
    Status status;
    (void)gpumem_lease_unmap(raw_, streams.data(), streams.size(), status.raw());
    return status;
  }

  // Waits for the streams, unmaps and gives the memory back. On CAPTURING and CUDA nothing was given back and this
  // object keeps it; else the object is empty afterwards.
  Status Release(const Streams& streams = {}) {
    if (raw_ == nullptr) return Status::Empty();
    Status status;
    const gpumem_reason reason = gpumem_lease_release(raw_, streams.data(), streams.size(), status.raw());
    if (!internal::ObjectLives(reason)) raw_ = nullptr;
    return status;
  }

  // Publishes a segment that was begun with Client::BuildSegment; the result is its full name. The object is empty
  // afterwards. On failure it lives on, and can be sealed again (when nothing had happened) or released.
  Result<std::string> Seal(const std::vector<Tensor>& tensors, const Streams& streams = {}) {
    if (raw_ == nullptr) return Status::Empty();
    const std::vector<gpumem_tensor> raw = internal::ToC(tensors);
    char name[256] = {};
    Status status;
    if (gpumem_segment_seal(raw_, raw.data(), raw.size(), streams.data(), streams.size(), name, sizeof(name),
                            status.raw()) != GPUMEM_OK) {
      return status;
    }
    raw_ = nullptr;
    return std::string(name);
  }

 private:
  void Reset() {
    if (raw_ != nullptr) (void)gpumem_lease_release(std::exchange(raw_, nullptr), nullptr, 0, nullptr);
  }
  gpumem_lease* raw_ = nullptr;
};

// An attached, sealed segment: read-only. Destroying it detaches without waiting for any stream. May outlive its
// Client, but is dead then.
class Segment {
 public:
  Segment() = default;
  explicit Segment(gpumem_segment* raw) : raw_(raw) {}  // takes it over
  ~Segment() { Reset(); }
  Segment(Segment&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Segment& operator=(Segment&& other) noexcept {
    if (this != &other) {
      Reset();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  explicit operator bool() const { return raw_ != nullptr; }
  gpumem_segment* get() const { return raw_; }

  // The full name, with its version; empty for an empty or dead object.
  std::string Name() const {
    const char* const name = raw_ != nullptr ? gpumem_segment_name(raw_) : nullptr;
    return name != nullptr ? name : "";
  }

  Result<gpumem_memory_info> Info() const {
    if (raw_ == nullptr) return Status::Empty();
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    Status status;
    if (gpumem_segment_info(raw_, &info, status.raw()) != GPUMEM_OK) return status;
    return info;
  }

  Result<DevicePtr> Map(DevicePtr wanted = 0) {
    if (raw_ == nullptr) return Status::Empty();
    DevicePtr address = 0;
    Status status;
    if (gpumem_segment_map(raw_, wanted, &address, status.raw()) != GPUMEM_OK) return status;
    return address;
  }

  std::size_t TensorCount() const { return raw_ != nullptr ? gpumem_segment_tensor_count(raw_) : 0; }

  // Copies of the manifest's entries, in the publisher's order.
  Result<std::vector<Tensor>> Tensors() const {
    if (raw_ == nullptr) return Status::Empty();
    std::vector<Tensor> tensors;
    const std::size_t count = gpumem_segment_tensor_count(raw_);
    tensors.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      gpumem_tensor raw = GPUMEM_TENSOR_INIT;
      Status status;
      if (gpumem_segment_tensor(raw_, i, &raw, status.raw()) != GPUMEM_OK) return status;
      tensors.push_back({raw.name, raw.dtype, std::vector<std::uint64_t>(raw.shape, raw.shape + raw.shape_count),
                         raw.offset_bytes, raw.size_bytes});
    }
    return tensors;
  }

  // As Lease::Release.
  Status Detach(const Streams& streams = {}) {
    if (raw_ == nullptr) return Status::Empty();
    Status status;
    const gpumem_reason reason = gpumem_segment_detach(raw_, streams.data(), streams.size(), status.raw());
    if (!internal::ObjectLives(reason)) raw_ = nullptr;
    return status;
  }

 private:
  void Reset() {
    if (raw_ != nullptr) (void)gpumem_segment_detach(std::exchange(raw_, nullptr), nullptr, 0, nullptr);
  }
  gpumem_segment* raw_ = nullptr;
};

// As gpumem_options: an empty string is "the default".
struct ConnectOptions {
  std::string socket_dir;
  std::string client_name;
  std::string libcuda_path;
  std::uint32_t timeout_ms = 0;
};

// One session with the daemon. Destroying it ends the session without waiting for GPU work.
class Client {
 public:
  Client() = default;
  explicit Client(gpumem_client* raw) : raw_(raw) {}  // takes it over
  ~Client() { Close(); }
  Client(Client&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      Close();
      raw_ = std::exchange(other.raw_, nullptr);
    }
    return *this;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  static Result<Client> Connect(const ConnectOptions& options = {}) {
    gpumem_options raw = GPUMEM_OPTIONS_INIT;
    raw.socket_dir = OrNull(options.socket_dir);
    raw.client_name = OrNull(options.client_name);
    raw.libcuda_path = OrNull(options.libcuda_path);
    raw.timeout_ms = options.timeout_ms;
    gpumem_client* client = nullptr;
    Status status;
    if (gpumem_connect(&raw, &client, status.raw()) != GPUMEM_OK) return status;
    return Client(client);
  }

  void Close() { gpumem_close(std::exchange(raw_, nullptr)); }
  explicit operator bool() const { return raw_ != nullptr; }
  gpumem_client* get() const { return raw_; }

  Result<gpumem_session_info> Session() const {
    if (raw_ == nullptr) return Status::Empty();
    gpumem_session_info info = GPUMEM_SESSION_INFO_INIT;
    Status status;
    if (gpumem_session(raw_, &info, status.raw()) != GPUMEM_OK) return status;
    return info;
  }

  // The daemon's devices, as they were when the session began; `ordinal` is -1 for one that this process cannot see.
  Result<std::vector<gpumem_device_info>> Devices() const {
    if (raw_ == nullptr) return Status::Empty();
    std::vector<gpumem_device_info> devices;
    const std::size_t count = gpumem_device_count(raw_);
    for (std::size_t i = 0; i < count; ++i) {
      gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
      Status status;
      if (gpumem_device(raw_, i, &info, status.raw()) != GPUMEM_OK) return status;
      devices.push_back(info);
    }
    return devices;
  }

  // The result is the holder's id.
  Result<std::uint64_t> RegisterHolder(const std::string& name, Role role) {
    if (raw_ == nullptr) return Status::Empty();
    std::uint64_t holder = 0;
    Status status;
    if (gpumem_register_holder(raw_, name.c_str(), static_cast<std::int32_t>(role), &holder, status.raw()) !=
        GPUMEM_OK) {
      return status;
    }
    return holder;
  }

  // All specs or nothing; imported, not mapped.
  Result<Lease> Allocate(std::uint64_t holder, const std::vector<ChunkSpec>& specs) {
    if (raw_ == nullptr) return Status::Empty();
    const std::vector<gpumem_chunk_spec> raw = internal::ToC(specs);
    gpumem_lease* lease = nullptr;
    Status status;
    if (gpumem_allocate(raw_, holder, raw.data(), raw.size(), &lease, status.raw()) != GPUMEM_OK) return status;
    return Lease(lease);
  }

  // Memory to fill and then Seal(). `name` has no version.
  Result<Lease> BuildSegment(std::uint64_t holder, const std::string& name, const std::vector<ChunkSpec>& specs) {
    if (raw_ == nullptr) return Status::Empty();
    const std::vector<gpumem_chunk_spec> raw = internal::ToC(specs);
    gpumem_lease* lease = nullptr;
    Status status;
    if (gpumem_segment_build(raw_, holder, name.c_str(), raw.data(), raw.size(), &lease, status.raw()) != GPUMEM_OK) {
      return status;
    }
    return Lease(lease);
  }

  // `name` with @version, or without for the newest sealed one; imported, not mapped.
  Result<gpumem::Segment> AttachSegment(std::uint64_t holder, const std::string& name) {
    if (raw_ == nullptr) return Status::Empty();
    gpumem_segment* segment = nullptr;
    Status status;
    if (gpumem_segment_attach(raw_, holder, name.c_str(), &segment, status.raw()) != GPUMEM_OK) return status;
    return gpumem::Segment(segment);
  }

  Result<std::vector<gpumem_segment_entry>> ListSegments(const std::string& prefix = "") {
    if (raw_ == nullptr) return Status::Empty();
    std::vector<gpumem_segment_entry> entries;
    Status status;
    const auto each = [](const gpumem_segment_entry* entry, void* user) {
      static_cast<std::vector<gpumem_segment_entry>*>(user)->push_back(*entry);
      return 0;
    };
    if (gpumem_list_segments(raw_, prefix.c_str(), each, &entries, status.raw()) != GPUMEM_OK) return status;
    return entries;
  }

  // This process's context is dead: tell the daemon. Every other call fails with CUDA_FATAL from then on; exit.
  Status ReportFault(int cuda_error, const std::string& detail) {
    if (raw_ == nullptr) return Status::Empty();
    Status status;
    (void)gpumem_report_fault(raw_, cuda_error, detail.c_str(), status.raw());
    return status;
  }

  // Readable when NextEvent has something. Owned by the client. The first call subscribes.
  Result<int> EventFd() {
    if (raw_ == nullptr) return Status::Empty();
    Status status;
    const int fd = gpumem_event_fd(raw_, status.raw());
    if (fd < 0) return status;
    return fd;
  }

  // Never blocks. nullopt when there is nothing now.
  Result<std::optional<gpumem_event>> NextEvent() {
    if (raw_ == nullptr) return Status::Empty();
    gpumem_event event = {};
    event.struct_size = sizeof(event);
    std::int32_t got = 0;
    Status status;
    if (gpumem_next_event(raw_, &event, &got, status.raw()) != GPUMEM_OK) return status;
    if (got == 0) return std::optional<gpumem_event>();
    return std::optional<gpumem_event>(event);
  }

 private:
  static const char* OrNull(const std::string& text) { return text.empty() ? nullptr : text.c_str(); }
  gpumem_client* raw_ = nullptr;
};

}  // namespace gpumem

#endif  // GPUMEM_GPUMEM_HPP_
