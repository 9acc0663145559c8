#include "client/memctl/admin_client.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/unique_fd.h"
#include "client/memctl/render.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gpumem/v1/admin.grpc.pb.h"

namespace gpumem::memctl {
namespace {

constexpr const char* kHowToStart =
    "start the daemon with `systemctl start gpumemd` or `gpumemd --config FILE`, or name its socket with --socket";

// A page of every list. The daemon may send less.
constexpr std::uint32_t kPageSize = 1000;

std::string Errno(int error) {
  char text[128];
  return strerror_r(error, text, sizeof text);
}

struct WireError {
  std::string reason;
  std::string retry;
};

// The ErrorInfo that the daemon puts into each of its errors; empty when there is none.
WireError ErrorInfoOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return {};
  for (const google::protobuf::Any& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (!any.UnpackTo(&info) || info.domain() != "gpumem") continue;
    const auto retry = info.metadata().find("retry");
    return {info.reason(), retry == info.metadata().end() ? "" : retry->second};
  }
  return {};
}

Outcome ToOutcome(const grpc::Status& status, const std::string& socket_path, std::chrono::milliseconds timeout) {
  if (status.ok()) return {};
  const WireError error = ErrorInfoOf(status);
  const bool from_daemon = !error.reason.empty();
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      if (from_daemon) return {kExitDeadline, ErrorLine(status.error_message(), error.reason, error.retry)};
      return {kExitDeadline, ErrorLine("no answer from " + socket_path + " within " + std::to_string(timeout.count()) +
                                           " ms; the daemon may be stopped or overloaded (--timeout sets the limit)",
                                       "", "")};
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED:
      return {kExitNotPermitted, ErrorLine(status.error_message(), error.reason, error.retry)};
    case grpc::StatusCode::UNAVAILABLE:
      if (from_daemon) break;
      return {kExitNoDaemon, ErrorLine("the connection to " + socket_path + " broke (" + status.error_message() +
                                           "): the daemon ended or refused it",
                                       "", "")};
    case grpc::StatusCode::UNIMPLEMENTED:
      if (from_daemon) break;
      return {kExitRefused, ErrorLine(socket_path + " answers, but not to operators: is it the workers' socket? The "
                                                    "operators' one is admin.sock (--socket or GPUMEM_ADMIN_SOCKET)",
                                      "", "")};
    default:
      break;
  }
  const std::string text = status.error_message().empty()
                               ? "the daemon refused it without a word (gRPC status " +
                                     std::to_string(static_cast<int>(status.error_code())) + ")"
                               : status.error_message();
  return {kExitRefused, ErrorLine(text, error.reason, error.retry)};
}

}  // namespace

struct AdminClient::Impl {
  std::string socket_path;
  std::chrono::milliseconds timeout;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::AdminService::Stub> stub;

  template <typename Request, typename Response>
  using Method = grpc::Status (v1::AdminService::Stub::*)(grpc::ClientContext*, const Request&, Response*);

  template <typename Request, typename Response>
  Outcome Call(Method<Request, Response> method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return ToOutcome(((*stub).*method)(&context, request, response), socket_path, timeout);
  }

  // MergeFrom appends the rows of each page to the last and takes over the newest token.
  template <typename Request, typename Response>
  Outcome Pages(Method<Request, Response> method, Response* out) {
    Request request;
    request.set_page_size(kPageSize);
    do {
      Response page;
      const Outcome outcome = Call(method, request, &page);
      if (!outcome.ok()) return outcome;
      if (page.next_page_token() != 0 && page.next_page_token() <= request.page_token()) {
        return {kExitRefused, ErrorLine("the daemon's list does not advance past page token " +
                                            std::to_string(request.page_token()) + "; this is a defect of the daemon",
                                        "", "")};
      }
      request.set_page_token(page.next_page_token());
      out->MergeFrom(page);
    } while (request.page_token() != 0);
    return {};
  }
};

AdminClient::AdminClient(std::string socket_path, std::chrono::milliseconds timeout)
    : impl_(new Impl{std::move(socket_path), timeout, nullptr, nullptr}) {}
AdminClient::~AdminClient() = default;

Outcome AdminClient::Connect() {
  const std::string& path = impl_->socket_path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return {kExitUsage, ErrorLine("the socket path has " + std::to_string(path.size()) + " bytes; it needs 1 to " +
                                      std::to_string(sizeof address.sun_path - 1) + ": " + path,
                                  "", "")};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return {kExitRefused, ErrorLine("socket(2) failed: " + Errno(errno), "", "")};
  // connect(2) waits while the listener's backlog is full; SO_SNDTIMEO bounds it (socket(7)), with EAGAIN at the end.
  timeval bound{};
  bound.tv_sec = impl_->timeout.count() / 1000;
  bound.tv_usec = impl_->timeout.count() % 1000 * 1000;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (error == EAGAIN) {
      return {kExitDeadline, ErrorLine("the daemon at " + path + " does not take connections", "", "")};
    }
    if (error == EACCES || error == EPERM) {
      return {kExitNotPermitted, ErrorLine("you may not use " + path + " (" + Errno(error) +
                                               "); it is for root, the daemon's user and the group of operators",
                                           "", "")};
    }
    return {kExitNoDaemon, ErrorLine("no daemon at " + path + " (" + Errno(error) + "); " + kHowToStart, "", "")};
  }
  impl_->channel = grpc::CreateInsecureChannelFromFd("memctl", socket.release());
  impl_->stub = v1::AdminService::NewStub(impl_->channel);
  return {};
}

Outcome AdminClient::Status(v1::GetStatusResponse* out) {
  return impl_->Call(&v1::AdminService::Stub::GetStatus, v1::GetStatusRequest(), out);
}
Outcome AdminClient::Devices(v1::ListDevicesResponse* out) {
  return impl_->Call(&v1::AdminService::Stub::ListDevices, v1::ListDevicesRequest(), out);
}
Outcome AdminClient::Sessions(v1::ListSessionsResponse* out) {
  return impl_->Pages<v1::ListSessionsRequest>(&v1::AdminService::Stub::ListSessions, out);
}
Outcome AdminClient::Holders(v1::ListHoldersResponse* out) {
  return impl_->Pages<v1::ListHoldersRequest>(&v1::AdminService::Stub::ListHolders, out);
}
Outcome AdminClient::Leases(v1::ListLeasesResponse* out) {
  return impl_->Pages<v1::ListLeasesRequest>(&v1::AdminService::Stub::ListLeases, out);
}
Outcome AdminClient::Quarantine(v1::ListQuarantineResponse* out) {
  return impl_->Pages<v1::ListQuarantineRequest>(&v1::AdminService::Stub::ListQuarantine, out);
}
Outcome AdminClient::Segments(const std::string& prefix, v1::ListAllSegmentsResponse* out) {
  v1::ListAllSegmentsRequest request;
  request.set_prefix(prefix);
  return impl_->Call(&v1::AdminService::Stub::ListAllSegments, request, out);
}
Outcome AdminClient::RemoveSegment(const std::string& name, v1::RemoveSegmentResponse* out) {
  v1::RemoveSegmentRequest request;
  request.set_name(name);
  return impl_->Call(&v1::AdminService::Stub::RemoveSegment, request, out);
}

Outcome AdminClient::Events(const std::function<bool(const v1::Event&)>& each) {
  grpc::ClientContext context;
  const std::unique_ptr<grpc::ClientReader<v1::Event>> stream =
      impl_->stub->WatchAllEvents(&context, v1::WatchAllEventsRequest());
  v1::Event event;
  while (stream->Read(&event)) {
    if (each(event)) continue;
    context.TryCancel();
    while (stream->Read(&event)) {
    }
    stream->Finish();
    return {};
  }
  const grpc::Status status = stream->Finish();
  if (status.ok()) return {kExitNoDaemon, ErrorLine("the daemon ended the stream of events", "", "")};
  return ToOutcome(status, impl_->socket_path, impl_->timeout);
}

}  // namespace gpumem::memctl
