// daemon/service/requests.cc: see requests.h.
#include "daemon/service/requests.h"

#include <optional>
#include <utility>

#include "base/device_uuid.h"
#include "daemon/service/status_map.h"
#include "daemon/text.h"

namespace gpumem::service {
namespace {

using core::Error;
using core::Reason;

absl::Status CheckRequestId(std::uint64_t request_id) {
  if (request_id != 0) return absl::OkStatus();
  return Error(Reason::INVALID_ARGUMENT,
               "request_id is 0; every call that changes something needs one that is not zero and new in its session");
}

// Length only: what the letters may be is the books' rule.
absl::Status CheckName(std::string_view what, const std::string& name, std::uint32_t most) {
  if (name.size() <= most) return absl::OkStatus();
  return Error(Reason::NAME_INVALID,
               Cat(what, " has ", name.size(), " bytes; at most ", most, " are allowed, so choose a shorter one"),
               {{"asked_bytes", Cat(name.size())}, {"limit_bytes", Cat(most)}});
}

absl::StatusOr<DeviceUuid> ParseDevice(std::string_view field, const std::string& text) {
  if (const std::optional<DeviceUuid> device = DeviceUuid::Parse(text)) return *device;
  return Error(Reason::INVALID_ARGUMENT,
               Cat(field, " is '", CleanUtf8(text, 64),
                   "'; a device is named by its UUID (GPU- or MIG- and 8-4-4-4-12 hex digits), never by an "
                   "ordinal. Hello's reply and `memctl devices` list them"));
}

absl::StatusOr<std::vector<core::ChunkSpec>> DecodeSpecs(const google::protobuf::RepeatedPtrField<v1::ChunkSpec>& specs,
                                                         const core::Limits& limits) {
  if (specs.empty()) {
    return Error(Reason::SIZE_ZERO, "specs is empty; name at least one device, chunk size and count");
  }
  if (static_cast<std::uint32_t>(specs.size()) > limits.specs_per_request) {
    return Error(Reason::LIMIT,
                 Cat("specs has ", specs.size(), " entries; at most ", limits.specs_per_request,
                     " are allowed in one request. Join entries with the same device and chunk size, or ask "
                     "for several leases"),
                 {{"asked", Cat(specs.size())}, {"limit", Cat(limits.specs_per_request)}});
  }
  std::vector<core::ChunkSpec> decoded;
  decoded.reserve(static_cast<std::size_t>(specs.size()));
  for (int i = 0; i < specs.size(); ++i) {
    const v1::ChunkSpec& spec = specs[i];
    absl::StatusOr<DeviceUuid> device = ParseDevice(Cat("specs[", i, "].device_uuid"), spec.device_uuid());
    if (!device.ok()) return device.status();
    decoded.push_back({*device, core::Bytes(spec.chunk_bytes()), spec.count()});
  }
  return decoded;
}

absl::StatusOr<std::vector<core::Outcome>> DecodeOutcomes(const google::protobuf::RepeatedField<int>& outcomes,
                                                          const core::Limits& limits) {
  if (outcomes.empty()) {
    return Error(Reason::INVALID_ARGUMENT,
                 "outcomes is empty; say what became of the chunks: one outcome for each, or one that holds for all");
  }
  if (static_cast<std::uint32_t>(outcomes.size()) > limits.chunks_per_lease) {
    return Error(
        Reason::TOO_MANY_CHUNKS,
        Cat("outcomes has ", outcomes.size(), " entries; a lease has at most ", limits.chunks_per_lease, " chunks"),
        {{"asked", Cat(outcomes.size())}, {"limit", Cat(limits.chunks_per_lease)}});
  }
  std::vector<core::Outcome> decoded;
  decoded.reserve(static_cast<std::size_t>(outcomes.size()));
  for (int i = 0; i < outcomes.size(); ++i) {
    if (!v1::Outcome_IsValid(outcomes[i]) || outcomes[i] == v1::OUTCOME_UNSPECIFIED) {
      return Error(Reason::INVALID_ARGUMENT,
                   Cat("outcomes[", i, "] is ", outcomes[i],
                       "; it must be OUTCOME_UNMAPPED, OUTCOME_STILL_MAPPED or OUTCOME_UNKNOWN"));
    }
    decoded.push_back(static_cast<core::Outcome>(outcomes[i]));
  }
  return decoded;
}

absl::Status ManifestError(std::string_view what) { return Error(Reason::MANIFEST_INVALID, Cat("manifest: ", what)); }

absl::StatusOr<core::TensorInfo> DecodeTensor(int index, const v1::Tensor& tensor) {
  if (tensor.name().size() > kMaxTensorNameBytes) {
    return ManifestError(Cat("the name of tensor ", index, " has ", tensor.name().size(), " bytes; at most ",
                             kMaxTensorNameBytes, " are allowed"));
  }
  if (tensor.dtype().size() > kMaxDtypeBytes) {
    return ManifestError(Cat("the dtype of tensor '", tensor.name(), "' has ", tensor.dtype().size(),
                             " bytes; at most ", kMaxDtypeBytes, " are allowed"));
  }
  if (tensor.shape_size() > kMaxTensorDimensions) {
    return ManifestError(Cat("tensor '", tensor.name(), "' has ", tensor.shape_size(), " dimensions; at most ",
                             kMaxTensorDimensions, " are allowed"));
  }
  core::TensorInfo decoded;
  decoded.name = tensor.name();
  decoded.dtype = tensor.dtype();
  decoded.shape.assign(tensor.shape().begin(), tensor.shape().end());
  decoded.offset = core::Bytes(tensor.offset_bytes());
  decoded.size = core::Bytes(tensor.size_bytes());
  return decoded;
}

absl::StatusOr<core::Manifest> DecodeManifest(const v1::Manifest& manifest, const core::Limits& limits) {
  if (static_cast<std::uint32_t>(manifest.tensors_size()) > limits.tensors_per_manifest) {
    return ManifestError(Cat("it has ", manifest.tensors_size(), " tensors; at most ", limits.tensors_per_manifest,
                             " are allowed in one segment"));
  }
  if (manifest.ByteSizeLong() > kMaxManifestBytes) {
    return ManifestError(Cat("it has ", manifest.ByteSizeLong(), " bytes; at most ", kMaxManifestBytes,
                             " are allowed. Split the model into several segments"));
  }
  core::Manifest decoded;
  decoded.reserve(static_cast<std::size_t>(manifest.tensors_size()));
  for (int i = 0; i < manifest.tensors_size(); ++i) {
    absl::StatusOr<core::TensorInfo> tensor = DecodeTensor(i, manifest.tensors(i));
    if (!tensor.ok()) return tensor.status();
    decoded.push_back(*std::move(tensor));
  }
  return decoded;
}

}  // namespace

absl::StatusOr<HolderCall> Decode(const v1::RegisterHolderRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  if (absl::Status s = CheckName("the holder's name", request.name(), limits.name_bytes); !s.ok()) return s;
  if (!v1::Role_IsValid(request.role()) || request.role() == v1::ROLE_UNSPECIFIED) {
    return Error(Reason::INVALID_ARGUMENT,
                 Cat("role is ", static_cast<int>(request.role()),
                     "; it must be one of gpumem.v1.Role (weights, kv-cache, workspace, communication, "
                     "draft-model, other)"));
  }
  return HolderCall{request.request_id(), request.name(), static_cast<core::Role>(request.role())};
}

absl::StatusOr<GrantCall> Decode(const v1::AllocateRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  absl::StatusOr<std::vector<core::ChunkSpec>> specs = DecodeSpecs(request.specs(), limits);
  if (!specs.ok()) return specs.status();
  return GrantCall{request.request_id(), core::HolderId(request.holder_id()), "", *std::move(specs)};
}

absl::StatusOr<GrantCall> Decode(const v1::BuildSegmentRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  if (absl::Status s = CheckName("the segment's name", request.name(), limits.name_bytes); !s.ok()) return s;
  absl::StatusOr<std::vector<core::ChunkSpec>> specs = DecodeSpecs(request.specs(), limits);
  if (!specs.ok()) return specs.status();
  return GrantCall{request.request_id(), core::HolderId(request.holder_id()), request.name(), *std::move(specs)};
}

absl::StatusOr<ReleaseCall> Decode(const v1::ReleaseRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  absl::StatusOr<std::vector<core::Outcome>> outcomes = DecodeOutcomes(request.outcomes(), limits);
  if (!outcomes.ok()) return outcomes.status();
  return ReleaseCall{request.request_id(), core::LeaseId(request.lease_id()), *std::move(outcomes)};
}

absl::StatusOr<SealCall> Decode(const v1::SealSegmentRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  absl::StatusOr<std::vector<core::Outcome>> outcomes = DecodeOutcomes(request.outcomes(), limits);
  if (!outcomes.ok()) return outcomes.status();
  absl::StatusOr<core::Manifest> manifest = DecodeManifest(request.manifest(), limits);
  if (!manifest.ok()) return manifest.status();
  return SealCall{request.request_id(), core::LeaseId(request.lease_id()), *std::move(outcomes), *std::move(manifest)};
}

absl::StatusOr<AttachCall> Decode(const v1::AttachSegmentRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  if (absl::Status s = CheckName("the segment's name", request.name(), limits.name_bytes); !s.ok()) return s;
  return AttachCall{request.request_id(), core::HolderId(request.holder_id()), request.name()};
}

absl::StatusOr<DetachCall> Decode(const v1::DetachSegmentRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  absl::StatusOr<std::vector<core::Outcome>> outcomes = DecodeOutcomes(request.outcomes(), limits);
  if (!outcomes.ok()) return outcomes.status();
  return DetachCall{request.request_id(), core::AttachmentId(request.attachment_id()), *std::move(outcomes)};
}

absl::StatusOr<FaultCall> Decode(const v1::ReportFaultRequest& request) {
  if (absl::Status s = CheckRequestId(request.request_id()); !s.ok()) return s;
  if (request.cuda_error() == 0) {
    return Error(Reason::INVALID_ARGUMENT, "cuda_error is 0, which is success; report the code of the failed call");
  }
  FaultCall call;
  call.request_id = request.request_id();
  call.report.cuda_error = request.cuda_error();
  call.report.cuda_error_name = CleanUtf8(request.cuda_error_name(), kMaxFaultNameBytes);
  call.report.detail = CleanUtf8(request.detail(), kMaxFaultDetailBytes);
  call.report.device_uuid = CleanUtf8(request.device_uuid(), DeviceUuid::kTextLength);
  return call;
}

absl::Status CheckHello(const v1::HelloRequest& request, v1::DriverKind daemon_driver) {
  if (request.protocol_major() != kProtocolMajor) {
    return Error(Reason::VERSION_MISMATCH,
                 Cat("this worker (libgpumem ", CleanUtf8(request.client_version(), kMaxVersionBytes),
                     ") speaks protocol ", request.protocol_major(), "; this daemon (", GPUMEM_VERSION, ") speaks ",
                     kProtocolMajor, ". Install matching versions of the two"),
                 {{"asked", Cat(request.protocol_major())}, {"supported", Cat(kProtocolMajor)}});
  }
  if (request.driver() != daemon_driver) {
    const auto word = [](v1::DriverKind kind) {
      return kind == v1::DRIVER_KIND_CUDA ? "cuda" : kind == v1::DRIVER_KIND_SIM ? "sim" : "unspecified";
    };
    return Error(
        Reason::DRIVER_MISMATCH,
        Cat("this worker runs on driver '", word(request.driver()), "' and the daemon on '", word(daemon_driver),
            "'; memory of one cannot be mapped by the other. Start both on the same driver "
            "(gpumemd --driver, and SIMCUDA_DIR in the worker's environment for the simulated one)"),
        {{"asked", word(request.driver())}, {"supported", word(daemon_driver)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DecodePrefix(const std::string& prefix, const core::Limits& limits) {
  if (absl::Status s = CheckName("the prefix", prefix, limits.name_bytes); !s.ok()) return s;
  return prefix;
}

absl::StatusOr<std::string> Decode(const v1::RemoveSegmentRequest& request, const core::Limits& limits) {
  if (absl::Status s = CheckName("the segment's name", request.name(), limits.name_bytes); !s.ok()) return s;
  return request.name();
}

std::uint32_t PageSize(std::uint32_t asked) {
  if (asked == 0) return kDefaultPageSize;
  return asked < kMaxPageSize ? asked : kMaxPageSize;
}

}  // namespace gpumem::service
