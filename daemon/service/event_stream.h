// daemon/service/event_stream.h: one caller that watches events.
//
// Bounded: a watcher that does not read has at most kMaxQueuedEvents waiting, then its stream ends with LIMIT; it opens
// a new one and sees by the sequence numbers what it missed. Neither the strand nor anyone else waits for it.
#ifndef GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_
#define GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>

#include "daemon/core/types.h"
#include "daemon/manager/ports.h"
#include "daemon/service/node.h"
#include "gpumem/v1/types.pb.h"

namespace gpumem::service {

inline constexpr std::size_t kMaxQueuedEvents = 256;

using EventFilter = std::function<bool(const manager::Event&)>;

// Streams what `filter` lets through until the caller leaves, falls behind, or the daemon stops (its DaemonStopping
// event is the last one, then the stream ends with OK). `node` must outlive the call. The response headers are sent as
// soon as the watch is in place, so a caller that has them misses nothing from then on.
grpc::ServerWriteReactor<v1::Event>* StreamEvents(const Node& node, EventFilter filter);

// A stream that ends at once with `status`.
grpc::ServerWriteReactor<v1::Event>* RefuseStream(const absl::Status& status);

// What a worker may see: its own fence, the end of any session, devices, segments and the daemon's stop.
EventFilter WorkerFilter(core::SessionId session);

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_
