// daemon/service/memory_service.h: gpumem.v1.MemoryService, what workers call on control.sock.
//
// Every call: may this connection's process speak for that session (kernel's word, never the request's), are the
// fields in their limits, then one event on the strand, then the reply. uid 0 grants nothing here. Thread-safe.
#ifndef GPUMEM_DAEMON_SERVICE_MEMORY_SERVICE_H_
#define GPUMEM_DAEMON_SERVICE_MEMORY_SERVICE_H_

#include <string>

#include "daemon/service/clients.h"
#include "daemon/service/node.h"
#include "gpumem/v1/memory.grpc.pb.h"

namespace gpumem::service {

class MemoryServiceImpl final : public v1::MemoryService::CallbackService {
 public:
  // Both must outlive it; `clients` is touched on the strand only.
  MemoryServiceImpl(const Node* node, ClientVersions* clients);

 private:
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  Unary* Hello(Context* context, const v1::HelloRequest* request, v1::HelloResponse* response) override;
  Unary* RegisterHolder(Context* context, const v1::RegisterHolderRequest* request,
                        v1::RegisterHolderResponse* response) override;
  Unary* Allocate(Context* context, const v1::AllocateRequest* request, v1::AllocateResponse* response) override;
  Unary* Release(Context* context, const v1::ReleaseRequest* request, v1::ReleaseResponse* response) override;
  Unary* BuildSegment(Context* context, const v1::BuildSegmentRequest* request,
                      v1::BuildSegmentResponse* response) override;
  Unary* SealSegment(Context* context, const v1::SealSegmentRequest* request,
                     v1::SealSegmentResponse* response) override;
  Unary* AttachSegment(Context* context, const v1::AttachSegmentRequest* request,
                       v1::AttachSegmentResponse* response) override;
  Unary* DetachSegment(Context* context, const v1::DetachSegmentRequest* request,
                       v1::DetachSegmentResponse* response) override;
  Unary* ListSegments(Context* context, const v1::ListSegmentsRequest* request,
                      v1::ListSegmentsResponse* response) override;
  Unary* ReportFault(Context* context, const v1::ReportFaultRequest* request,
                     v1::ReportFaultResponse* response) override;
  grpc::ServerWriteReactor<v1::Event>* WatchEvents(Context* context, const v1::WatchEventsRequest* request) override;

  // The frame of every unary call: identity, decode(request), post start(session, decoded, reply) to the strand, and
  // write(result, response) from its reply.
  template <typename Result, typename Request, typename Response, typename DecodeFn, typename StartFn, typename WriteFn>
  Unary* Serve(Context* context, const Request* request, Response* response, DecodeFn decode, StartFn start,
               WriteFn write);

  const Node* const node_;
  ClientVersions* const clients_;
  const std::string instance_;
};

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_MEMORY_SERVICE_H_
