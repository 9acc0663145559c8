// daemon/service/node.h: what the services are given of the rest of the front. No grpc++ here: the front fills it.
#ifndef GPUMEM_DAEMON_SERVICE_NODE_H_
#define GPUMEM_DAEMON_SERVICE_NODE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/event_loop.h"
#include "daemon/core/books.h"
#include "daemon/manager/manager.h"
#include "daemon/observe/event_hub.h"

namespace gpumem::service {

enum class DriverKind : std::uint8_t { kCuda = 1, kSim = 2 };  // numbers of gpumem.v1.DriverKind

// Filled before the servers start, then constant. Everything pointed at must outlive them.
struct Node {
  EventLoop* loop = nullptr;            // the strand
  manager::Manager* manager = nullptr;  // touched on the strand only
  manager::Options options;             // as the manager got them
  observe::EventHub* events = nullptr;
  DriverKind driver = DriverKind::kCuda;
  absl::Time started_at;
  std::string control_socket;
  std::string handle_socket;

  // May the process behind this connection speak for this session, or as an operator? `peer` is ServerContext::peer(),
  // "fd:N". OK, UNKNOWN_SESSION, FOREIGN_SESSION, NOT_AN_OPERATOR. Called on gRPC's threads, at handler entry: the fd
  // number names the connection only while it is open.
  std::function<absl::Status(std::string_view peer, core::SessionId session)> check_worker;
  std::function<absl::Status(std::string_view peer)> check_operator;
  // A call came on this connection; without one it is closed after a while. Called on gRPC's threads, for health and
  // reflection too.
  std::function<void(std::string_view peer)> mark_used;
};

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_NODE_H_
