// client/abi.cc: gpumem.h over client.h. Checks what callers hand in, keeps exceptions inside, and turns a Status into
// a gpumem_status. Everything exported by libgpumem is defined here.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/event_queue.h"
#include "client/include/gpumem/gpumem.h"
#include "cuda/fault.h"

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace c = gpumem::client;
using c::Error;
using c::Reason;
using c::Status;

// The C objects. The pid is here so that a forked child is told apart before anything else is touched.
struct gpumem_client {
  std::shared_ptr<c::Client> impl;
};
struct gpumem_lease {
  std::shared_ptr<c::Holding> holding;
};
struct gpumem_segment {
  std::shared_ptr<c::Holding> holding;
};

namespace {

// The sizes of the structs' first versions: what every caller has at least. A struct that grows keeps its number here.
constexpr std::size_t kOptionsV1 = sizeof(gpumem_options);
constexpr std::size_t kSessionInfoV1 = sizeof(gpumem_session_info);
constexpr std::size_t kDeviceInfoV1 = sizeof(gpumem_device_info);
constexpr std::size_t kMemoryInfoV1 = sizeof(gpumem_memory_info);
constexpr std::size_t kTensorV1 = sizeof(gpumem_tensor);
constexpr std::size_t kEventV1 = sizeof(gpumem_event);

template <std::size_t kSize>
void CopyText(char (&to)[kSize], std::string_view from) {
  std::size_t size = std::min(from.size(), kSize - 1);
  // Not in the middle of a character.
  while (size < from.size() && size > 0 && (static_cast<unsigned char>(from[size]) & 0xc0) == 0x80) --size;
  std::memcpy(to, from.data(), size);
  std::memset(to + size, 0, kSize - size);
}

gpumem_reason Report(const Status& status, gpumem_status* out) {
  const auto number = static_cast<gpumem_reason>(status.reason);
  if (out == nullptr) return number;
  gpumem_status full = GPUMEM_STATUS_INIT;
  const c::ReasonInfo info = c::InfoOf(number);
  full.struct_size = out->struct_size;
  full.reason = number;
  full.code = static_cast<std::int32_t>(info.code);
  full.retry = info.retry;
  full.cuda_error = status.cuda_error;
  full.asked_bytes = status.asked_bytes;
  full.limit_bytes = status.limit_bytes;
  full.available_bytes = status.available_bytes;
  CopyText(full.message, status.message);
  // An older caller's struct is shorter; a newer one's rest is not ours to fill.
  std::memcpy(out, &full, std::min(out->struct_size, sizeof(full)));
  return number;
}

// Runs an entry point. Nothing is thrown to a C caller, whatever happens inside.
template <typename Body>
gpumem_reason Enter(gpumem_status* status, Body body) {
  try {
    return Report(body(), status);
#if defined(__GLIBCXX__)
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_cancel: not an error, and the C library aborts when it is swallowed
#endif
  } catch (const std::bad_alloc&) {
    return Report(Error(Reason::OUT_OF_HOST_MEMORY, {}), status);
  } catch (...) {
    return Report(Error(Reason::INTERNAL, {}), status);
  }
}

Status Invalid(const char* what) { return Error(Reason::INVALID_ARGUMENT, what); }

Status Ready(const std::shared_ptr<c::Client>& client) { return client->Ready(); }

Status CheckSize(const char* name, std::size_t size, std::size_t least, std::size_t known) {
  if (size < least) {
    return Error(Reason::INVALID_ARGUMENT, std::string(name) + ".struct_size is " + std::to_string(size) +
                                               "; it must be at least " + std::to_string(least) +
                                               "; initialise the struct with its GPUMEM_*_INIT");
  }
  if (size <= known) return {};
  return Error(Reason::VERSION_MISMATCH, std::string("the program was built for a newer ") + name + " (" +
                                             std::to_string(size) + " bytes) than libgpumem " + gpumem_version() +
                                             " knows (" + std::to_string(known) + "); install a newer libgpumem");
}

// Fills a caller's struct, as much of it as the caller has.
template <typename Struct>
void Fill(Struct* out, Struct full) {
  full.struct_size = out->struct_size;
  std::memcpy(out, &full, out->struct_size);
}

Status Streams(const gpumem_stream* streams, std::size_t count, std::vector<CUstream>* out) {
  if (streams == nullptr && count != 0) return Invalid("streams is NULL and stream_count is not 0");
  for (std::size_t i = 0; i < count; ++i) out->push_back(static_cast<CUstream>(streams[i]));
  return {};
}

Status Specs(const gpumem_chunk_spec* specs, std::size_t count, std::vector<c::ChunkSpec>* out) {
  if (specs == nullptr || count == 0) return Error(Reason::SIZE_ZERO, "no chunks were asked for: spec_count is 0");
  for (std::size_t i = 0; i < count; ++i) {
    if (specs[i].device_uuid == nullptr) return Invalid("a chunk spec has no device_uuid");
    out->push_back({specs[i].device_uuid, specs[i].chunk_bytes, specs[i].count});
  }
  return {};
}

Status Tensors(const gpumem_tensor* tensors, std::size_t count, std::vector<c::Tensor>* out) {
  if (tensors == nullptr && count != 0) return Invalid("tensors is NULL and tensor_count is not 0");
  for (std::size_t i = 0; i < count; ++i) {
    const gpumem_tensor& tensor = tensors[i];
    if (Status status = CheckSize("gpumem_tensor", tensor.struct_size, kTensorV1, sizeof(tensor)); !status.ok()) {
      return status;
    }
    if (tensor.name == nullptr || tensor.dtype == nullptr || (tensor.shape == nullptr && tensor.shape_count != 0)) {
      return Invalid("a tensor's name, dtype or shape is NULL");
    }
    if (!c::ValidUtf8(tensor.name) || !c::ValidUtf8(tensor.dtype)) {
      return Error(Reason::MANIFEST_INVALID, "the name or dtype of tensor " + std::to_string(i) + " is not UTF-8");
    }
    c::Tensor& made = out->emplace_back();
    made.name = tensor.name;
    made.dtype = tensor.dtype;
    if (tensor.shape_count != 0) made.shape.assign(tensor.shape, tensor.shape + tensor.shape_count);
    made.offset_bytes = tensor.offset_bytes;
    made.size_bytes = tensor.size_bytes;
  }
  return {};
}

// The environment of a program with raised rights is not its own.
std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* const value = ::secure_getenv(name);
  return value != nullptr && *value != 0 ? value : otherwise;
}

c::ClientOptions Options(const gpumem_options& options) {
  c::ClientOptions out;
  out.socket_dir =
      options.socket_dir != nullptr ? options.socket_dir : FromEnvironment("GPUMEM_SOCKET_DIR", "/run/gpumemd");
  out.client_name = options.client_name != nullptr ? options.client_name : ::program_invocation_short_name;
  out.libcuda_path = options.libcuda_path != nullptr ? options.libcuda_path : FromEnvironment("GPUMEM_LIBCUDA", "");
  if (options.timeout_ms != 0) out.timeout = std::chrono::milliseconds(options.timeout_ms);
  return out;
}

gpumem_memory_info InfoOf(c::Holding* holding) {
  const c::TurnHolder turn(&holding->turn);
  gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
  info.lease_id = holding->lease_id;
  info.bytes = holding->bytes;
  info.chunk_count = holding->chunk_count;
  info.access = static_cast<std::uint32_t>(holding->access);
  info.address = holding->access != GPUMEM_ACCESS_NONE ? holding->memory.address() : 0;
  return info;
}

Status MemoryInfo(c::Holding* holding, gpumem_memory_info* info) {
  if (info == nullptr) return Invalid("info is NULL");
  if (Status status = CheckSize("gpumem_memory_info", info->struct_size, kMemoryInfoV1, sizeof(*info)); !status.ok()) {
    return status;
  }
  if (Status status = Ready(holding->client); !status.ok()) return status;
  Fill(info, InfoOf(holding));
  return {};
}

gpumem_event EventOf(const c::ClientEvent& from) {
  gpumem_event event{};
  const c::Event& of_daemon = from.event;
  event.sequence = of_daemon.sequence;
  event.session_id = of_daemon.session_id;
  event.bytes = of_daemon.bytes;
  event.state = of_daemon.state;
  CopyText(event.name, of_daemon.name);
  CopyText(event.detail, of_daemon.detail);
  if (from.kind == c::ClientEvent::Kind::kDisconnected) {
    event.kind = GPUMEM_EVENT_DISCONNECTED;
    CopyText(event.detail, "gpumemd is gone; mapped memory stays valid");
    return event;
  }
  switch (of_daemon.kind) {
    case c::Event::Kind::kSessionFenced:
      event.kind = GPUMEM_EVENT_SESSION_FENCED;
      break;
    case c::Event::Kind::kSessionEnded:
      event.kind = GPUMEM_EVENT_SESSION_ENDED;
      break;
    case c::Event::Kind::kDeviceChanged:
      event.kind = GPUMEM_EVENT_DEVICE_CHANGED;
      break;
    case c::Event::Kind::kSegmentChanged:
      event.kind = GPUMEM_EVENT_SEGMENT_CHANGED;
      if (of_daemon.removed) CopyText(event.detail, "removed");
      break;
    case c::Event::Kind::kDaemonStopping:
      event.kind = GPUMEM_EVENT_DAEMON_STOPPING;
      break;
    case c::Event::Kind::kUnknown:
      break;
  }
  return event;
}

// Releases, or detaches, and frees the object when nothing of it is left to give back.
template <typename Object>
gpumem_reason GiveBack(Object* object, const gpumem_stream* streams, std::size_t stream_count, gpumem_status* status) {
  bool freed = false;
  const gpumem_reason reason = Enter(status, [&]() -> Status {
    if (object == nullptr) return Invalid("the object is NULL");
    const std::shared_ptr<c::Client>& client = object->holding->client;
    if (client->forked()) return client->Ready();
    std::vector<CUstream> list;
    if (Status checked = Streams(streams, stream_count, &list); !checked.ok()) return checked;
    return client->GiveBack(object->holding, list, &freed);
  });
  if (freed) delete object;
  return reason;
}

}  // namespace

extern "C" {

const char* gpumem_version(void) { return c::kVersion.data(); }

const char* gpumem_reason_name(gpumem_reason reason) { return c::InfoOf(reason).name; }

gpumem_reason gpumem_connect(const gpumem_options* options, gpumem_client** client, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr) return Invalid("client is NULL");
    gpumem_options given = GPUMEM_OPTIONS_INIT;
    if (options != nullptr) {
      if (Status checked = CheckSize("gpumem_options", options->struct_size, kOptionsV1, sizeof(given));
          !checked.ok()) {
        return checked;
      }
      std::memcpy(&given, options, options->struct_size);
    }
    auto made = std::make_unique<gpumem_client>();
    if (Status connected = c::Client::Connect(Options(given), &made->impl); !connected.ok()) return connected;
    *client = made.release();
    return {};
  });
}

void gpumem_close(gpumem_client* client) {
  // In a forked child the object's locks may be taken by threads that are not there, and its memory is the parent's
  // business: it is left alone.
  if (client == nullptr || client->impl->forked()) return;
  (void)Enter(nullptr, [client]() -> Status {
    client->impl->Close();
    return {};
  });
  delete client;
}

gpumem_reason gpumem_session(gpumem_client* client, gpumem_session_info* info, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || info == nullptr) return Invalid("client or info is NULL");
    if (Status checked = CheckSize("gpumem_session_info", info->struct_size, kSessionInfoV1, sizeof(*info));
        !checked.ok()) {
      return checked;
    }
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    const c::HelloResponse& hello = client->impl->hello();
    gpumem_session_info full = GPUMEM_SESSION_INFO_INIT;
    full.session_id = client->impl->session_id();
    CopyText(full.instance, hello.instance);
    CopyText(full.daemon_version, hello.daemon_version);
    CopyText(full.driver, client->impl->driver_kind());
    CopyText(full.tenant, hello.tenant);
    Fill(info, full);
    return {};
  });
}

size_t gpumem_device_count(gpumem_client* client) {
  return client != nullptr && !client->impl->forked() ? client->impl->hello().devices.size() : 0;
}

gpumem_reason gpumem_device(gpumem_client* client, size_t index, gpumem_device_info* info, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || info == nullptr) return Invalid("client or info is NULL");
    if (Status checked = CheckSize("gpumem_device_info", info->struct_size, kDeviceInfoV1, sizeof(*info));
        !checked.ok()) {
      return checked;
    }
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    const std::vector<c::Device>& devices = client->impl->hello().devices;
    if (index >= devices.size()) {
      return Error(Reason::UNKNOWN_DEVICE,
                   "device index " + std::to_string(index) + " of " + std::to_string(devices.size()) + " devices");
    }
    const c::Device& device = devices[index];
    gpumem_device_info full = GPUMEM_DEVICE_INFO_INIT;
    CopyText(full.uuid, device.uuid);
    CopyText(full.name, device.name);
    full.ordinal = client->impl->ordinal(index);
    full.state = device.state;
    full.granularity_bytes = device.granularity_bytes;
    full.capacity_bytes = device.capacity_bytes;
    full.available_bytes = device.available_bytes;
    Fill(info, full);
    return {};
  });
}

gpumem_reason gpumem_register_holder(gpumem_client* client, const char* name, int32_t role, uint64_t* holder_id,
                                     gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || name == nullptr || holder_id == nullptr) {
      return Invalid("client, name or holder_id is NULL");
    }
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    return client->impl->RegisterHolder(name, role, holder_id);
  });
}

gpumem_reason gpumem_allocate(gpumem_client* client, uint64_t holder_id, const gpumem_chunk_spec* specs,
                              size_t spec_count, gpumem_lease** lease, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || lease == nullptr) return Invalid("client or lease is NULL");
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    std::vector<c::ChunkSpec> list;
    if (Status checked = Specs(specs, spec_count, &list); !checked.ok()) return checked;
    auto made = std::make_unique<gpumem_lease>();
    if (Status granted = client->impl->Allocate(holder_id, list, &made->holding); !granted.ok()) return granted;
    *lease = made.release();
    return {};
  });
}

gpumem_reason gpumem_lease_info(gpumem_lease* lease, gpumem_memory_info* info, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (lease == nullptr) return Invalid("lease is NULL");
    return MemoryInfo(lease->holding.get(), info);
  });
}

gpumem_reason gpumem_lease_map(gpumem_lease* lease, gpumem_device_ptr wanted, int32_t access,
                               gpumem_device_ptr* address, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (lease == nullptr || address == nullptr) return Invalid("lease or address is NULL");
    if (access != GPUMEM_ACCESS_READ_ONLY && access != GPUMEM_ACCESS_READ_WRITE) {
      return Invalid("access must be GPUMEM_ACCESS_READ_ONLY or GPUMEM_ACCESS_READ_WRITE");
    }
    if (Status ready = Ready(lease->holding->client); !ready.ok()) return ready;
    CUdeviceptr mapped = 0;
    Status done = lease->holding->client->Map(lease->holding.get(), wanted, access, &mapped);
    if (done.ok()) *address = mapped;
    return done;
  });
}

gpumem_reason gpumem_lease_unmap(gpumem_lease* lease, const gpumem_stream* streams, size_t stream_count,
                                 gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (lease == nullptr) return Invalid("lease is NULL");
    if (Status ready = Ready(lease->holding->client); !ready.ok()) return ready;
    std::vector<CUstream> list;
    if (Status checked = Streams(streams, stream_count, &list); !checked.ok()) return checked;
    return lease->holding->client->Unmap(lease->holding.get(), list);
  });
}

gpumem_reason gpumem_lease_release(gpumem_lease* lease, const gpumem_stream* streams, size_t stream_count,
                                   gpumem_status* status) {
  return GiveBack(lease, streams, stream_count, status);
}

gpumem_reason gpumem_segment_build(gpumem_client* client, uint64_t holder_id, const char* name,
                                   const gpumem_chunk_spec* specs, size_t spec_count, gpumem_lease** lease,
                                   gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || name == nullptr || lease == nullptr) return Invalid("client, name or lease is NULL");
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    std::vector<c::ChunkSpec> list;
    if (Status checked = Specs(specs, spec_count, &list); !checked.ok()) return checked;
    auto made = std::make_unique<gpumem_lease>();
    if (Status granted = client->impl->BuildSegment(holder_id, name, list, &made->holding); !granted.ok()) {
      return granted;
    }
    *lease = made.release();
    return {};
  });
}

gpumem_reason gpumem_segment_seal(gpumem_lease* lease, const gpumem_tensor* tensors, size_t tensor_count,
                                  const gpumem_stream* streams, size_t stream_count, char* sealed_name,
                                  size_t sealed_name_size, gpumem_status* status) {
  constexpr std::size_t kNameBytes = 256;
  bool sealed = false;
  const gpumem_reason reason = Enter(status, [&]() -> Status {
    if (lease == nullptr) return Invalid("lease is NULL");
    if (sealed_name != nullptr && sealed_name_size < kNameBytes) {
      return Invalid("sealed_name must have at least 256 bytes");
    }
    if (Status ready = Ready(lease->holding->client); !ready.ok()) return ready;
    std::vector<c::Tensor> manifest;
    if (Status checked = Tensors(tensors, tensor_count, &manifest); !checked.ok()) return checked;
    std::vector<CUstream> list;
    if (Status checked = Streams(streams, stream_count, &list); !checked.ok()) return checked;
    std::string name;
    Status done = lease->holding->client->Seal(lease->holding, manifest, list, &name);
    sealed = done.ok();
    if (sealed && sealed_name != nullptr) {
      char full[kNameBytes];
      CopyText(full, name);
      std::memcpy(sealed_name, full, kNameBytes);
    }
    return done;
  });
  if (sealed) delete lease;
  return reason;
}

gpumem_reason gpumem_segment_attach(gpumem_client* client, uint64_t holder_id, const char* name,
                                    gpumem_segment** segment, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || name == nullptr || segment == nullptr) return Invalid("client, name or segment is NULL");
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    auto made = std::make_unique<gpumem_segment>();
    if (Status attached = client->impl->AttachSegment(holder_id, name, &made->holding); !attached.ok()) {
      return attached;
    }
    *segment = made.release();
    return {};
  });
}

gpumem_reason gpumem_segment_info(gpumem_segment* segment, gpumem_memory_info* info, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (segment == nullptr) return Invalid("segment is NULL");
    return MemoryInfo(segment->holding.get(), info);
  });
}

const char* gpumem_segment_name(gpumem_segment* segment) {
  if (segment == nullptr || segment->holding->client->forked()) return nullptr;
  const c::TurnHolder turn(&segment->holding->turn);
  return segment->holding->dead ? nullptr : segment->holding->segment_name.c_str();
}

gpumem_reason gpumem_segment_map(gpumem_segment* segment, gpumem_device_ptr wanted, gpumem_device_ptr* address,
                                 gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (segment == nullptr || address == nullptr) return Invalid("segment or address is NULL");
    if (Status ready = Ready(segment->holding->client); !ready.ok()) return ready;
    CUdeviceptr mapped = 0;
    Status done = segment->holding->client->Map(segment->holding.get(), wanted, GPUMEM_ACCESS_READ_ONLY, &mapped);
    if (done.ok()) *address = mapped;
    return done;
  });
}

size_t gpumem_segment_tensor_count(gpumem_segment* segment) {
  return segment != nullptr && !segment->holding->client->forked() ? segment->holding->tensors.size() : 0;
}

gpumem_reason gpumem_segment_tensor(gpumem_segment* segment, size_t index, gpumem_tensor* tensor,
                                    gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (segment == nullptr || tensor == nullptr) return Invalid("segment or tensor is NULL");
    if (Status checked = CheckSize("gpumem_tensor", tensor->struct_size, kTensorV1, sizeof(*tensor)); !checked.ok()) {
      return checked;
    }
    if (Status ready = Ready(segment->holding->client); !ready.ok()) return ready;
    const std::vector<c::Tensor>& tensors = segment->holding->tensors;
    if (index >= tensors.size()) {
      return Error(Reason::INVALID_ARGUMENT,
                   "tensor index " + std::to_string(index) + " of " + std::to_string(tensors.size()) + " tensors");
    }
    const c::Tensor& from = tensors[index];
    gpumem_tensor full = GPUMEM_TENSOR_INIT;
    full.name = from.name.c_str();
    full.dtype = from.dtype.c_str();
    full.shape = from.shape.data();
    full.shape_count = from.shape.size();
    full.offset_bytes = from.offset_bytes;
    full.size_bytes = from.size_bytes;
    Fill(tensor, full);
    return {};
  });
}

gpumem_reason gpumem_segment_detach(gpumem_segment* segment, const gpumem_stream* streams, size_t stream_count,
                                    gpumem_status* status) {
  return GiveBack(segment, streams, stream_count, status);
}

gpumem_reason gpumem_list_segments(gpumem_client* client, const char* prefix,
                                   int (*each)(const gpumem_segment_entry* entry, void* user), void* user,
                                   gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || each == nullptr) return Invalid("client or each is NULL");
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    std::vector<c::Segment> segments;
    Status listed = client->impl->ListSegments(prefix != nullptr ? prefix : "", &segments);
    if (!listed.ok()) return listed;
    for (const c::Segment& segment : segments) {
      gpumem_segment_entry entry{};
      entry.struct_size = sizeof(entry);
      CopyText(entry.name, segment.name);
      entry.state = segment.state;
      entry.readers = segment.readers;
      entry.tensors = segment.tensors;
      entry.bytes = segment.bytes;
      if (each(&entry, user) != 0) break;
    }
    return {};
  });
}

int32_t gpumem_classify_error(int32_t cuda_error) {
  return static_cast<int32_t>(gpumem::cuda::Classify(static_cast<CUresult>(cuda_error)));
}

gpumem_reason gpumem_report_fault(gpumem_client* client, int32_t cuda_error, const char* detail,
                                  gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr) return Invalid("client is NULL");
    if (cuda_error == 0) return Invalid("cuda_error is CUDA_SUCCESS, which is no fault");
    if (client->impl->forked()) return Ready(client->impl);
    return client->impl->ReportFault(cuda_error, detail != nullptr ? detail : "");
  });
}

int gpumem_event_fd(gpumem_client* client, gpumem_status* status) {
  int fd = -1;
  const gpumem_reason reason = Enter(status, [&]() -> Status {
    if (client == nullptr) return Invalid("client is NULL");
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    return client->impl->EventFd(&fd);
  });
  return reason == GPUMEM_OK ? fd : -1;
}

gpumem_reason gpumem_next_event(gpumem_client* client, gpumem_event* event, int32_t* got, gpumem_status* status) {
  return Enter(status, [&]() -> Status {
    if (client == nullptr || event == nullptr || got == nullptr) return Invalid("client, event or got is NULL");
    if (Status checked = CheckSize("gpumem_event", event->struct_size, kEventV1, sizeof(*event)); !checked.ok()) {
      return checked;
    }
    if (Status ready = Ready(client->impl); !ready.ok()) return ready;
    c::ClientEvent next;
    bool found = false;
    if (Status taken = client->impl->NextEvent(&next, &found); !taken.ok()) return taken;
    if (found) Fill(event, EventOf(next));
    *got = found ? 1 : 0;
    return {};
  });
}

}  // extern "C"
