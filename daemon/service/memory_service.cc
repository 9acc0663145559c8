// daemon/service/memory_service.cc: see memory_service.h.
#include "daemon/service/memory_service.h"

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/service/convert.h"
#include "daemon/service/event_stream.h"
#include "daemon/service/requests.h"
#include "daemon/service/strand.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::service {
namespace {

using core::SessionId;
using manager::Reply;

void WriteLimits(const manager::Options& options, v1::Limits* out) {
  out->set_chunks_per_lease(options.limits.chunks_per_lease);
  out->set_chunks_per_frame(wire::kMaxFdsPerFrame);
  out->set_unacknowledged_frames(options.unacknowledged_frames);
  out->set_holders_per_session(options.limits.holders_per_session);
  out->set_leases_per_session(options.limits.leases_per_session);
  out->set_manifest_bytes(kMaxManifestBytes);
  if (options.tenant_limit) out->set_tenant_limit_bytes(options.tenant_limit->value());
}

// AllocateResponse and BuildSegmentResponse have the same fields.
template <typename Response>
void WriteGrant(const manager::Grant& grant, Response* out) {
  out->set_lease_id(grant.lease.value());
  out->set_asked_bytes(grant.asked.value());
  out->set_charged_bytes(grant.charged.value());
  for (const core::ChunkView& chunk : grant.chunks) ToProto(chunk, out->add_chunks());
  out->set_pushed_chunks(grant.pushed);
}

struct Greeting {
  std::string client_version;
};

}  // namespace

MemoryServiceImpl::MemoryServiceImpl(const Node* node, ClientVersions* clients)
    : node_(node), clients_(clients), instance_(InstanceText(node->options.instance)) {}

template <typename Result, typename Request, typename Response, typename DecodeFn, typename StartFn, typename WriteFn>
grpc::ServerUnaryReactor* MemoryServiceImpl::Serve(Context* context, const Request* request, Response* response,
                                                   DecodeFn decode, StartFn start, WriteFn write) {
  return StartCall(*node_, context, response, [&](const std::shared_ptr<Call<Response>>& call) {
    const SessionId session(request->session_id());
    if (const absl::Status who = node_->check_worker(context->peer(), session); !who.ok()) {
      call->Fail(who);
      return;
    }
    auto decoded = decode(*request);
    if (!decoded.ok()) {
      call->Fail(decoded.status());
      return;
    }
    Reply<Result> reply = [this, call, write](absl::StatusOr<Result> result) {
      if (!result.ok()) {
        call->Fail(result.status());
        return;
      }
      call->Succeed([&](Response* out) {
        out->set_instance(instance_);
        write(*result, out);
      });
    };
    // std::function needs a copyable lambda; the decoded request may be large, so it is shared, not copied.
    auto shared = std::make_shared<typename decltype(decoded)::value_type>(*std::move(decoded));
    node_->loop->Post([session, shared, start, reply = std::move(reply)]() mutable {
      start(session, std::move(*shared), std::move(reply));
    });
  });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Hello(Context* context, const v1::HelloRequest* request,
                                                   v1::HelloResponse* response) {
  return Serve<std::vector<core::DeviceRow>>(
      context, request, response,
      [this](const v1::HelloRequest& hello) -> absl::StatusOr<Greeting> {
        const absl::Status match = CheckHello(hello, static_cast<v1::DriverKind>(node_->driver));
        if (!match.ok()) return match;
        return Greeting{CleanUtf8(hello.client_version(), kMaxVersionBytes)};
      },
      [this](SessionId session, Greeting greeting, const Reply<std::vector<core::DeviceRow>>& reply) {
        const core::Books& books = node_->manager->books();
        if (const absl::Status live = books.CheckLive(session); !live.ok()) {
          reply(live);
          return;
        }
        clients_->Set(session, std::move(greeting.client_version), books, node_->options.limits.sessions);
        reply(books.Devices());
      },
      [this](const std::vector<core::DeviceRow>& devices, v1::HelloResponse* out) {
        out->set_daemon_version(GPUMEM_VERSION);
        out->set_protocol_major(kProtocolMajor);
        out->set_driver(static_cast<v1::DriverKind>(node_->driver));
        for (const core::DeviceRow& device : devices) ToProto(device, out->add_devices());
        WriteLimits(node_->options, out->mutable_limits());
        out->set_tenant(std::string(core::Books::kDefaultTenant));
      });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::RegisterHolder(Context* context, const v1::RegisterHolderRequest* request,
                                                            v1::RegisterHolderResponse* response) {
  return Serve<core::HolderId>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, HolderCall call, Reply<core::HolderId> reply) {
        node_->manager->RegisterHolder(session, call.request_id, std::move(call.name), call.role, std::move(reply));
      },
      [](core::HolderId holder, v1::RegisterHolderResponse* out) { out->set_holder_id(holder.value()); });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Allocate(Context* context, const v1::AllocateRequest* request,
                                                      v1::AllocateResponse* response) {
  return Serve<manager::Grant>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, GrantCall call, Reply<manager::Grant> reply) {
        node_->manager->Allocate(session, call.request_id, call.holder, std::move(call.specs), std::move(reply));
      },
      WriteGrant<v1::AllocateResponse>);
}

grpc::ServerUnaryReactor* MemoryServiceImpl::BuildSegment(Context* context, const v1::BuildSegmentRequest* request,
                                                          v1::BuildSegmentResponse* response) {
  return Serve<manager::Grant>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, GrantCall call, Reply<manager::Grant> reply) {
        node_->manager->BuildSegment(session, call.request_id, call.holder, std::move(call.segment_name),
                                     std::move(call.specs), std::move(reply));
      },
      WriteGrant<v1::BuildSegmentResponse>);
}

grpc::ServerUnaryReactor* MemoryServiceImpl::Release(Context* context, const v1::ReleaseRequest* request,
                                                     v1::ReleaseResponse* response) {
  return Serve<manager::ReleaseResult>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, ReleaseCall call, Reply<manager::ReleaseResult> reply) {
        node_->manager->Release(session, call.request_id, call.lease, std::move(call.outcomes), std::move(reply));
      },
      [](const manager::ReleaseResult& result, v1::ReleaseResponse* out) {
        out->set_released_bytes(result.released.value());
        out->set_quarantined_bytes(result.quarantined.value());
      });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::SealSegment(Context* context, const v1::SealSegmentRequest* request,
                                                         v1::SealSegmentResponse* response) {
  return Serve<std::string>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, SealCall call, Reply<std::string> reply) {
        node_->manager->SealSegment(session, call.request_id, call.lease, std::move(call.outcomes),
                                    std::move(call.manifest), std::move(reply));
      },
      [](const std::string& name, v1::SealSegmentResponse* out) { out->set_name(name); });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::AttachSegment(Context* context, const v1::AttachSegmentRequest* request,
                                                           v1::AttachSegmentResponse* response) {
  return Serve<manager::AttachResult>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, AttachCall call, Reply<manager::AttachResult> reply) {
        node_->manager->AttachSegment(session, call.request_id, call.holder, std::move(call.name), std::move(reply));
      },
      [](const manager::AttachResult& result, v1::AttachSegmentResponse* out) {
        out->set_attachment_id(result.attachment.value());
        ToProto(result.segment, out->mutable_segment());
        for (const core::ChunkView& chunk : result.chunks) ToProto(chunk, out->add_chunks());
        ToProto(result.manifest, out->mutable_manifest());
      });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::DetachSegment(Context* context, const v1::DetachSegmentRequest* request,
                                                           v1::DetachSegmentResponse* response) {
  return Serve<std::monostate>(
      context, request, response, [this](const auto& message) { return Decode(message, node_->options.limits); },
      [this](SessionId session, DetachCall call, Reply<std::monostate> reply) {
        node_->manager->DetachSegment(session, call.request_id, call.attachment, std::move(call.outcomes),
                                      std::move(reply));
      },
      [](std::monostate, v1::DetachSegmentResponse*) {});
}

grpc::ServerUnaryReactor* MemoryServiceImpl::ListSegments(Context* context, const v1::ListSegmentsRequest* request,
                                                          v1::ListSegmentsResponse* response) {
  return Serve<std::vector<core::SegmentRow>>(
      context, request, response,
      [this](const v1::ListSegmentsRequest& list) { return DecodePrefix(list.prefix(), node_->options.limits); },
      [this](SessionId session, const std::string& prefix, const Reply<std::vector<core::SegmentRow>>& reply) {
        const core::Books& books = node_->manager->books();
        if (const absl::Status live = books.CheckLive(session); !live.ok()) {
          reply(live);
          return;
        }
        reply(books.Segments(prefix));
      },
      [](const std::vector<core::SegmentRow>& segments, v1::ListSegmentsResponse* out) {
        for (const core::SegmentRow& segment : segments) ToProto(segment, out->add_segments());
      });
}

grpc::ServerUnaryReactor* MemoryServiceImpl::ReportFault(Context* context, const v1::ReportFaultRequest* request,
                                                         v1::ReportFaultResponse* response) {
  return Serve<core::Bytes>(
      context, request, response, [](const v1::ReportFaultRequest& fault) { return Decode(fault); },
      [this](SessionId session, FaultCall call, Reply<core::Bytes> reply) {
        node_->manager->ReportFault(session, call.request_id, std::move(call.report), std::move(reply));
      },
      [](core::Bytes quarantined, v1::ReportFaultResponse* out) { out->set_quarantined_bytes(quarantined.value()); });
}

grpc::ServerWriteReactor<v1::Event>* MemoryServiceImpl::WatchEvents(Context* context,
                                                                    const v1::WatchEventsRequest* request) {
  const SessionId session(request->session_id());
  if (const absl::Status who = node_->check_worker(context->peer(), session); !who.ok()) return RefuseStream(who);
  return StreamEvents(node_->events, WorkerFilter(session));
}

}  // namespace gpumem::service
