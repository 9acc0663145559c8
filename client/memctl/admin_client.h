// client/memctl/admin_client.h: AdminService as blocking calls. The only file of memctl that uses grpc++.
//
// Owns the channel. The socket is connected here and handed to gRPC, so that "nobody listens there", "not permitted"
// and "no answer" are told apart by the kernel's own errors (connect(2), unix(7)), any path works, and a broken
// connection is never silently made anew. Not thread-safe.
#ifndef GPUMEM_CLIENT_MEMCTL_ADMIN_CLIENT_H_
#define GPUMEM_CLIENT_MEMCTL_ADMIN_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "gpumem/v1/admin.pb.h"

namespace gpumem::memctl {

// Exit codes of memctl; part of its interface (--help).
enum ExitCode : int {
  kExitOk = 0,
  kExitRefused = 1,       // the daemon answered with an error
  kExitUsage = 2,         // the command line
  kExitNoDaemon = 3,      // nobody listens at the socket, or the connection broke
  kExitNotPermitted = 4,  // by the socket's mode, or by the daemon
  kExitDeadline = 5,      // no answer in time
};

// How a call ended. `line` is for stderr, with '\n', empty when ok.
struct Outcome {
  ExitCode exit = kExitOk;
  std::string line;
  bool ok() const { return exit == kExitOk; }
};

class AdminClient {
 public:
  // Each call must answer within `timeout` (> 0), Connect's wait for the listener included.
  AdminClient(std::string socket_path, std::chrono::milliseconds timeout);
  ~AdminClient();
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  Outcome Connect();  // first, once; the calls below need its success

  Outcome Status(v1::GetStatusResponse* out);
  Outcome Devices(v1::ListDevicesResponse* out);
  // Lists are fetched page by page until the end and joined.
  Outcome Sessions(v1::ListSessionsResponse* out);
  Outcome Holders(v1::ListHoldersResponse* out);
  Outcome Leases(v1::ListLeasesResponse* out);
  Outcome Quarantine(v1::ListQuarantineResponse* out);
  Outcome Segments(const std::string& prefix, v1::ListAllSegmentsResponse* out);
  Outcome RemoveSegment(const std::string& name, v1::RemoveSegmentResponse* out);
  // Calls `each` until it returns false, or the stream ends: with the daemon (kExitNoDaemon) or by its refusal. No
  // deadline.
  Outcome Events(const std::function<bool(const v1::Event&)>& each);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpumem::memctl

#endif  // GPUMEM_CLIENT_MEMCTL_ADMIN_CLIENT_H_
