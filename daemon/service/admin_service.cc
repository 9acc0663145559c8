// daemon/service/admin_service.cc: see admin_service.h.
#include "daemon/service/admin_service.h"

#include <memory>
#include <utility>

#include "daemon/service/convert.h"
#include "daemon/service/event_stream.h"
#include "daemon/service/requests.h"
#include "daemon/service/strand.h"

namespace gpumem::service {

AdminServiceImpl::AdminServiceImpl(const Node* node, const ClientVersions* clients)
    : node_(node), clients_(clients), instance_(InstanceText(node->options.instance)) {}

template <typename Response, typename WriteFn>
grpc::ServerUnaryReactor* AdminServiceImpl::Snapshot(Context* context, Response* response, WriteFn write) {
  return StartCall(*node_, context, response, [&](const std::shared_ptr<Call<Response>>& call) {
    if (const absl::Status who = node_->check_operator(context->peer()); !who.ok()) {
      call->Fail(who);
      return;
    }
    node_->loop->Post([this, call, write] {
      call->Succeed([&](Response* out) {
        out->set_instance(instance_);
        write(node_->manager->books(), out);
      });
    });
  });
}

void AdminServiceImpl::WriteStatus(v1::GetStatusResponse* out) const {
  const manager::Manager& manager = *node_->manager;
  const core::Books& books = manager.books();
  out->set_daemon_version(GPUMEM_VERSION);
  out->set_driver(static_cast<v1::DriverKind>(node_->driver));
  ToProto(node_->started_at, out->mutable_started_at());
  out->set_draining(manager.draining());
  out->set_keeper_connected(manager.keeper_connected());
  out->set_kept_handles(manager.kept_handles());
  for (const core::DeviceRow& device : books.Devices()) ToProto(device, out->add_devices());
  const core::Counts counts = books.Count();
  out->set_sessions_live(counts.sessions_live);
  out->set_sessions_fenced(counts.sessions_fenced);
  out->set_leases(counts.leases);
  out->set_segments(counts.segments);
  out->set_quarantine_records(counts.quarantine_records);
  out->set_quarantined_bytes(counts.quarantined.value());
  for (const core::TenantRow& tenant : books.Tenants()) ToProto(tenant, out->add_tenants());
  out->set_control_socket(node_->control_socket);
  out->set_handle_socket(node_->handle_socket);
}

grpc::ServerUnaryReactor* AdminServiceImpl::GetStatus(Context* context, const v1::GetStatusRequest* /*request*/,
                                                      v1::GetStatusResponse* response) {
  return Snapshot(context, response, [this](const core::Books&, v1::GetStatusResponse* out) { WriteStatus(out); });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ListDevices(Context* context, const v1::ListDevicesRequest* /*request*/,
                                                        v1::ListDevicesResponse* response) {
  return Snapshot(context, response, [](const core::Books& books, v1::ListDevicesResponse* out) {
    for (const core::DeviceRow& device : books.Devices()) ToProto(device, out->add_devices());
  });
}

// A page is the first PageSize rows after the token, which is the last id of the page before. A full page names the
// next one, which may turn out empty.
grpc::ServerUnaryReactor* AdminServiceImpl::ListSessions(Context* context, const v1::ListSessionsRequest* request,
                                                         v1::ListSessionsResponse* response) {
  const core::SessionId after(request->page_token());
  const std::uint32_t most = PageSize(request->page_size());
  return Snapshot(context, response, [this, after, most](const core::Books& books, v1::ListSessionsResponse* out) {
    for (const core::SessionRow& row : books.Sessions(after, most)) {
      v1::Session* added = out->add_sessions();
      ToProto(row, added);
      added->set_client_version(clients_->Get(row.session));
    }
    if (static_cast<std::uint32_t>(out->sessions_size()) == most) {
      out->set_next_page_token(out->sessions(out->sessions_size() - 1).session_id());
    }
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ListHolders(Context* context, const v1::ListHoldersRequest* request,
                                                        v1::ListHoldersResponse* response) {
  const core::HolderId after(request->page_token());
  const std::uint32_t most = PageSize(request->page_size());
  return Snapshot(context, response, [after, most](const core::Books& books, v1::ListHoldersResponse* out) {
    for (const core::HolderRow& row : books.Holders(after, most)) ToProto(row, out->add_holders());
    if (static_cast<std::uint32_t>(out->holders_size()) == most) {
      out->set_next_page_token(out->holders(out->holders_size() - 1).holder_id());
    }
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ListLeases(Context* context, const v1::ListLeasesRequest* request,
                                                       v1::ListLeasesResponse* response) {
  const core::LeaseId after(request->page_token());
  const std::uint32_t most = PageSize(request->page_size());
  return Snapshot(context, response, [after, most](const core::Books& books, v1::ListLeasesResponse* out) {
    for (const core::LeaseRow& row : books.Leases(after, most)) ToProto(row, out->add_leases());
    if (static_cast<std::uint32_t>(out->leases_size()) == most) {
      out->set_next_page_token(out->leases(out->leases_size() - 1).lease_id());
    }
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ListQuarantine(Context* context, const v1::ListQuarantineRequest* request,
                                                           v1::ListQuarantineResponse* response) {
  const core::QuarantineId after(request->page_token());
  const std::uint32_t most = PageSize(request->page_size());
  return Snapshot(context, response, [after, most](const core::Books& books, v1::ListQuarantineResponse* out) {
    for (const core::QuarantineRow& row : books.Quarantine(after, most)) ToProto(row, out->add_records());
    if (static_cast<std::uint32_t>(out->records_size()) == most) {
      out->set_next_page_token(out->records(out->records_size() - 1).record_id());
    }
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ListAllSegments(Context* context, const v1::ListAllSegmentsRequest* request,
                                                            v1::ListAllSegmentsResponse* response) {
  absl::StatusOr<std::string> prefix = DecodePrefix(request->prefix(), node_->options.limits);
  if (!prefix.ok()) {
    return StartCall(*node_, context, response, [&](const auto& call) { call->Fail(prefix.status()); });
  }
  return Snapshot(context, response,
                  [prefix = *std::move(prefix)](const core::Books& books, v1::ListAllSegmentsResponse* out) {
                    for (const core::SegmentRow& row : books.Segments(prefix)) ToProto(row, out->add_segments());
                  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::RemoveSegment(Context* context, const v1::RemoveSegmentRequest* request,
                                                          v1::RemoveSegmentResponse* response) {
  using PendingCall = std::shared_ptr<Call<v1::RemoveSegmentResponse>>;
  return StartCall(*node_, context, response, [&](const PendingCall& call) {
    if (const absl::Status who = node_->check_operator(context->peer()); !who.ok()) {
      call->Fail(who);
      return;
    }
    absl::StatusOr<std::string> name = Decode(*request, node_->options.limits);
    if (!name.ok()) {
      call->Fail(name.status());
      return;
    }
    node_->loop->Post([this, call, segment = *std::move(name)] {
      node_->manager->RemoveSegment(segment, [this, call](absl::StatusOr<core::Bytes> released) {
        if (!released.ok()) {
          call->Fail(released.status());
          return;
        }
        call->Succeed([&](v1::RemoveSegmentResponse* out) {
          out->set_instance(instance_);
          out->set_released_bytes(released->value());
        });
      });
    });
  });
}

grpc::ServerWriteReactor<v1::Event>* AdminServiceImpl::WatchAllEvents(Context* context,
                                                                      const v1::WatchAllEventsRequest* /*request*/) {
  if (const absl::Status who = node_->check_operator(context->peer()); !who.ok()) return RefuseStream(who);
  return StreamEvents(node_->events, [](const manager::Event&) { return true; });
}

}  // namespace gpumem::service
