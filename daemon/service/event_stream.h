// daemon/service/event_stream.h: one caller that watches events.
//
// Bounded: a watcher that does not read fills its queue in the event hub, then its stream ends with LIMIT; it opens a
// new one and sees by the sequence numbers that it missed something. Neither the strand nor anyone else waits for it.
// May call: observe's event hub, core, proto, grpc++.
#ifndef GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_
#define GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "daemon/core/types.h"
#include "daemon/observe/event_hub.h"
#include "gpumem/v1/types.pb.h"

namespace gpumem::service {

using EventFilter = observe::EventHub::Filter;

// Streams what `filter` lets through until the caller leaves, falls behind, or the daemon stops (its DaemonStopping
// event is the last one, then the stream ends with OK). Response headers are sent at once, and after the watch is in
// place: a caller that has them misses nothing from then on. `events` must outlive the call.
grpc::ServerWriteReactor<v1::Event>* StreamEvents(observe::EventHub* events, EventFilter filter);

// A stream that ends at once with `status`.
grpc::ServerWriteReactor<v1::Event>* RefuseStream(const absl::Status& status);

// What a worker may see: its own fence, the end of any session, devices, segments and the daemon's stop.
EventFilter WorkerFilter(core::SessionId session);

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_EVENT_STREAM_H_
