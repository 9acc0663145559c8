// daemon/service/server.h: the two gRPC servers of the front, without a listening port of their own.
//
// The session room accepts and identifies connections and hands each over here. Both servers carry health and
// reflection. No grpc++ in this header: only daemon/service includes it. Thread-safe.
#ifndef GPUMEM_DAEMON_SERVICE_SERVER_H_
#define GPUMEM_DAEMON_SERVICE_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "daemon/service/node.h"

namespace gpumem::service {

// Calls in flight on one connection, watches included; more wait in HTTP/2 at the caller.
inline constexpr int kMaxCallsPerConnection = 128;

class Servers {
 public:
  // Builds and starts both; health says NOT_SERVING until SetServing. INTERNAL when gRPC refuses to start.
  static absl::StatusOr<std::unique_ptr<Servers>> Start(Node node);
  // Requires Shutdown to have completed, or that the process is leaving.
  ~Servers();
  Servers(const Servers&) = delete;
  Servers& operator=(const Servers&) = delete;

  // Takes over a connected, non-blocking socket. Its number is what Node::check_worker gets as "fd:N".
  void AdoptControl(int fd);
  void AdoptAdmin(int fd);

  // Health of "", "gpumem.v1.MemoryService" (control) and "gpumem.v1.AdminService" (admin).
  void SetServing(bool serving);

  // Refuses new calls, lets those in flight finish for `grace`, then cancels them. Waits on a thread of its own, since
  // calls in flight need the strand to finish; `done` is posted to it. Once only.
  void Shutdown(std::chrono::milliseconds grace, std::function<void()> done);

 private:
  class Impl;
  explicit Servers(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_SERVER_H_
