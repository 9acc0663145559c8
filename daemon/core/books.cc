// daemon/core/books.cc: devices, the tenant, and the questions that move nothing.
#include "daemon/core/books.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "daemon/core/format.h"
#include "daemon/core/state.h"

namespace gpumem::core {

using internal::CheckRange;
using internal::ChunkRef;
using internal::Lease;
using internal::LeaseDetails;
using internal::Session;

namespace {

absl::Status UnknownDevice(const DeviceUuid& device) {
  return Error(Reason::UNKNOWN_DEVICE, absl::StrCat("device ", device.ToString(), " is not managed here"),
               {{"device_uuid", device.ToString()}});
}

}  // namespace

Books::Books(const Limits& limits, std::uint64_t first_id)
    : impl_(std::make_unique<Impl>(limits, first_id == 0 ? 1 : first_id)) {}
Books::~Books() = default;

const Limits& Books::limits() const { return impl_->limits; }

absl::Status Books::AddAuthority(const AuthoritySpec& spec) {
  const std::string name = absl::StrCat("device ", spec.device.ToString());
  if (impl_->FindDevice(spec.device) != nullptr) {
    return Error(Reason::INVALID_ARGUMENT, absl::StrCat(name, " is managed already; name each device once"));
  }
  if (spec.granularity.value() == 0) {
    return Error(Reason::INVALID_ARGUMENT, absl::StrCat(name, ": its granularity is 0; take it from the driver"));
  }
  if (spec.headroom > spec.capacity) {
    return Error(Reason::INVALID_ARGUMENT,
                 absl::StrCat(name, ": headroom of ", FormatBytesExact(spec.headroom), " is above the capacity of ",
                              FormatBytesExact(spec.capacity), "; lower it"));
  }
  std::optional<Bytes> sum = spec.capacity;
  for (const auto& device : impl_->devices) {
    sum = CheckedAdd(*sum, device->spec.capacity);
    if (!sum) return Error(Reason::SIZE_OVERFLOW, absl::StrCat(name, ": all capacities together overflow 64 bits"));
  }
  if (impl_->devices.size() > std::numeric_limits<std::uint16_t>::max()) {
    return Error(Reason::LIMIT, absl::StrCat(name, ": at most 65536 devices can be managed"));
  }
  auto device = std::make_unique<internal::Device>();
  device->spec = spec;
  device->generation = impl_->Draw<Generation>();
  impl_->device_index[spec.device] = static_cast<std::uint16_t>(impl_->devices.size());
  impl_->devices.push_back(std::move(device));
  return absl::OkStatus();
}

// A device that comes back from loss is a new generation: what was on the old one is gone.
absl::Status Books::SetDeviceState(const DeviceUuid& uuid, DeviceState state, std::string_view detail) {
  internal::Device* device = impl_->FindDevice(uuid);
  if (device == nullptr) return UnknownDevice(uuid);
  if (device->state == DeviceState::kLost && state != DeviceState::kLost) {
    device->generation = impl_->Draw<Generation>();
  }
  device->state = state;
  device->detail = std::string(detail);
  return absl::OkStatus();
}

absl::Status Books::SetDriverUsed(const DeviceUuid& uuid, Bytes used) {
  internal::Device* device = impl_->FindDevice(uuid);
  if (device == nullptr) return UnknownDevice(uuid);
  // The driver may say less than the books: it frees late and counts in other units. Then nothing is unexplained.
  device->unattributed = CheckedSub(used, Bytes(device->account.total.physical)).value_or(Bytes());
  return absl::OkStatus();
}

absl::Status Books::SetTenantLimit(std::optional<Bytes> per_device) {
  if (per_device) {
    for (const auto& device : impl_->devices) {
      const Bytes charged(device->tenant.total.charged);
      if (charged <= *per_device) continue;
      return Error(Reason::INVALID_ARGUMENT,
                   absl::StrCat("tenant ", AbslView(kDefaultTenant), ": a limit of ", FormatBytesExact(*per_device),
                                " is below the ", FormatBytesExact(charged), " that it is charged on ", Name(*device),
                                "; set a limit at or above that"),
                   {{"asked_bytes", absl::StrCat(per_device->value())}, {"used_bytes", absl::StrCat(charged.value())}});
    }
  }
  impl_->tenant_limit = per_device;
  return absl::OkStatus();
}

absl::Status Books::CheckLive(SessionId session) const { return impl_->LiveSession(session).status(); }

bool Books::Exists(SessionId session) const { return impl_->FindSession(session) != nullptr; }

absl::StatusOr<std::vector<ChunkView>> Books::CheckFetch(SessionId session_id, LeaseId lease_id, std::uint32_t first,
                                                         std::uint32_t count) const {
  const absl::StatusOr<Session*> session = impl_->LiveSession(session_id);
  if (!session.ok()) return session.status();
  Lease* lease = impl_->FindLease(lease_id);
  if (lease == nullptr) {
    return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", lease_id.value(), " is not known, or it was released"),
                 LeaseDetails(lease_id));
  }
  if (const internal::Attachment* reader = impl_->ReaderOf(*lease, session_id); reader != nullptr) {
    if (lease->segment->state == SegmentState::kLost) {
      return Error(
          Reason::SEGMENT_LOST,
          absl::StrCat("segment ", lease->segment->FullName(), " lost its memory handles; it can only be built again"),
          LeaseDetails(lease_id));
    }
    if (reader->outcome_unknown) {
      return Error(Reason::FOREIGN_LEASE,
                   absl::StrCat("session ", session_id.value(), " has detached segment ", lease->segment->FullName()),
                   LeaseDetails(lease_id));
    }
  } else if (lease->session != *session) {
    return Error(Reason::FOREIGN_LEASE,
                 absl::StrCat("lease ", lease_id.value(), " is neither of session ", session_id.value(),
                              " nor a segment that it has attached"),
                 LeaseDetails(lease_id));
  }
  if (absl::Status status = CheckRange(first, count, lease->count()); !status.ok()) return status;
  for (std::uint32_t i = first; i < first + count; ++i) {
    const internal::Chunk& chunk = lease->chunks[i];
    if (chunk.in_use() && !lease->rolled_back) continue;
    const bool granted = chunk.state != ChunkState::kReserved;
    return Error(granted ? Reason::ALREADY_RELEASED : Reason::UNKNOWN_LEASE,
                 absl::StrCat("lease ", lease_id.value(), ": chunk ", i, " is ", ToString(chunk.state),
                              granted ? "; the lease was given back" : "; the lease is not granted yet"),
                 LeaseDetails(lease_id));
  }
  return impl_->Views(*lease, first, count);
}

absl::StatusOr<std::vector<ChunkView>> Books::LeaseChunks(LeaseId id) const {
  const Lease* lease = impl_->FindLease(id);
  if (lease == nullptr) return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", id.value(), " is not known"));
  return impl_->Views(*lease, 0, lease->count());
}

absl::StatusOr<ChunkView> Books::Chunk(ChunkId id) const {
  const ChunkRef chunk = impl_->FindChunk(id);
  if (!chunk) return Error(Reason::UNKNOWN_LEASE, absl::StrCat("chunk ", id.value(), " is not known, or was released"));
  return impl_->View(*chunk.lease, chunk.index);
}

absl::StatusOr<SessionId> Books::OwnerOf(LeaseId id) const {
  const Lease* lease = impl_->FindLease(id);
  if (lease == nullptr || lease->session == nullptr) {
    return Error(Reason::UNKNOWN_LEASE, absl::StrCat("lease ", id.value(), " is of no session"));
  }
  return lease->session->id;
}

std::vector<ChunkId> Books::ReferencedByArena(const DeviceUuid& uuid) const {
  const internal::Device* device = impl_->FindDevice(uuid);
  if (device == nullptr) return {};
  return {device->at_arena.begin(), device->at_arena.end()};
}

std::vector<ChunkId> Books::ReferencedByKeeper() const { return {impl_->kept.begin(), impl_->kept.end()}; }

}  // namespace gpumem::core
