// daemon/service/admin_service.h: gpumem.v1.AdminService, what operators call on admin.sock.
//
// Admission is the session room's (root, the daemon's uid, or the configured group), asked again for each call. Lists
// are read from the books on the strand, each page of one instant. Thread-safe.
#ifndef GPUMEM_DAEMON_SERVICE_ADMIN_SERVICE_H_
#define GPUMEM_DAEMON_SERVICE_ADMIN_SERVICE_H_

#include <string>

#include "daemon/service/clients.h"
#include "daemon/service/node.h"
#include "gpumem/v1/admin.grpc.pb.h"

namespace gpumem::service {

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  // Both must outlive it; `clients` is touched on the strand only.
  AdminServiceImpl(const Node* node, const ClientVersions* clients);

 private:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* GetStatus(Context* context, const v1::GetStatusRequest* request, v1::GetStatusResponse* response) override;
  Unary* ListDevices(Context* context, const v1::ListDevicesRequest* request,
                     v1::ListDevicesResponse* response) override;
  Unary* ListSessions(Context* context, const v1::ListSessionsRequest* request,
                      v1::ListSessionsResponse* response) override;
  Unary* ListHolders(Context* context, const v1::ListHoldersRequest* request,
                     v1::ListHoldersResponse* response) override;
  Unary* ListLeases(Context* context, const v1::ListLeasesRequest* request, v1::ListLeasesResponse* response) override;
  Unary* ListAllSegments(Context* context, const v1::ListAllSegmentsRequest* request,
                         v1::ListAllSegmentsResponse* response) override;
  Unary* ListQuarantine(Context* context, const v1::ListQuarantineRequest* request,
                        v1::ListQuarantineResponse* response) override;
  Unary* RemoveSegment(Context* context, const v1::RemoveSegmentRequest* request,
                       v1::RemoveSegmentResponse* response) override;
  grpc::ServerWriteReactor<v1::Event>* WatchAllEvents(Context* context,
                                                      const v1::WatchAllEventsRequest* request) override;

  // Admission, then write(response) on the strand.
  template <typename Response, typename WriteFn>
  Unary* Snapshot(Context* context, Response* response, WriteFn write);
  void WriteStatus(v1::GetStatusResponse* out) const;  // on the strand

  const Node* const node_;
  const ClientVersions* const clients_;
  const std::string instance_;
};

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_ADMIN_SERVICE_H_
