// client/http2.h: one HTTP/2 connection to the daemon, with one gRPC call on it at a time. nghttp2 and libc.
//
// It speaks gRPC's protocol over HTTP/2 as a client: a request of one message; a response of any number of messages and
// trailers with grpc-status, grpc-message and grpc-status-details-bin (google.rpc.Status with an ErrorInfo).
//
// Not thread-safe: one owner at a time. Nothing is locked and no thread is made; a wait happens in poll(2) on the
// caller's thread. Signals interrupt nothing, and a write to a closed peer raises none (MSG_NOSIGNAL).
#ifndef GPUMEM_CLIENT_HTTP2_H_
#define GPUMEM_CLIENT_HTTP2_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "client/guarded_fd.h"
#include "client/status.h"

struct nghttp2_session;

namespace gpumem::client {

// A larger message is refused: the daemon's largest reply (a lease of the most chunks) is far below it.
inline constexpr std::size_t kMaxMessageBytes = 16 * 1024 * 1024;
// Of all response header and trailer fields that are kept.
inline constexpr std::size_t kMaxHeaderBytes = 64 * 1024;

// What the trailers said of one call.
struct GrpcTrailers {
  int http_status = 0;
  std::string content_type;
  std::optional<std::int32_t> grpc_status;
  std::string grpc_message;  // as it came: percent-encoded
  std::string details;       // as it came: base64
};

// The Status of a finished call: OK for grpc-status 0.
Status StatusOf(const GrpcTrailers& trailers);

// Helpers of StatusOf, for its tests. PercentDecode leaves a malformed escape as it is; Base64Decode gives nullopt for
// text that is not base64 (with or without padding).
std::string PercentDecode(std::string_view text);
std::optional<std::string> Base64Decode(std::string_view text);

class Http2Connection {
 public:
  // Takes over a connected stream socket.
  static Status Make(GuardedFd socket, std::unique_ptr<Http2Connection>* connection);
  ~Http2Connection();
  Http2Connection(const Http2Connection&) = delete;
  Http2Connection& operator=(const Http2Connection&) = delete;

  int fd() const { return socket_.get(); }

  // Reads what has come meanwhile (pings, GOAWAY, end of stream), without waiting. False when no call can be begun on
  // this connection any more.
  bool Usable();

  // Begins a call; the one before has ended. `method` is "/gpumem.v1.MemoryService/Hello". Without a deadline the
  // daemon is told none.
  Status Begin(std::string_view method, std::string_view request, std::optional<Deadline> deadline);

  // Sends and receives until the call has ended or the deadline has passed (DEADLINE; the call is then cancelled, and
  // the connection can go on). DISCONNECTED when the connection is lost. OK when the call has ended.
  Status RunUntilEnd(Deadline deadline);

  // Sends and receives what can be without waiting. DISCONNECTED when the connection is lost.
  Status RunReady();

  // Takes the next whole message of the response. False when none is there now.
  bool NextMessage(std::string* message);

  bool ended() const { return call_.ended; }
  // The outcome of the call that has ended.
  Status Outcome() const;

 private:
  struct Call {
    std::int32_t stream = -1;
    bool ended = true;
    std::uint32_t http2_error = 0;
    std::string request;
    std::size_t request_sent = 0;
    std::string body;              // response bytes that are not yet taken
    std::optional<Status> broken;  // why this side gave the call up
    GrpcTrailers trailers;
    std::size_t header_bytes = 0;
  };
  struct Callbacks;

  explicit Http2Connection(GuardedFd socket) : socket_(std::move(socket)) {}
  Status Flush(bool* blocked);  // sends until nothing is left or the socket is full
  Status Read(bool* blocked);   // reads until nothing is there
  Status Lost(const std::string& why);
  void CheckFrame();
  void Cancel();

  GuardedFd socket_;
  nghttp2_session* session_ = nullptr;
  std::string outgoing_;
  Call call_;
  bool lost_ = false;
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_HTTP2_H_
