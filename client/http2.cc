#include "client/http2.h"

#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>

#include "client/messages.h"

namespace gpumem::client {
namespace {

constexpr std::size_t kFramePrefixBytes = 5;  // gRPC: one byte "compressed", then the length, big-endian
constexpr std::int32_t kWindowBytes = 1024 * 1024;
constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kMaxOutgoingBytes = 256 * 1024;

std::uint32_t BigEndian32(const char* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = (value << 8) | static_cast<std::uint8_t>(bytes[i]);
  return value;
}

// grpc-timeout is at most 8 digits and a unit.
std::string TimeoutHeader(Deadline deadline) {
  const int ms = std::clamp(PollTimeout(deadline), 1, 99'999'999);
  return std::to_string(ms) + "m";
}

nghttp2_nv Header(std::string_view name, std::string_view value) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NONE};
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::uint64_t Number(const ErrorInfo& info, std::string_view key) {
  for (const auto& [name, value] : info.metadata) {
    std::uint64_t number = 0;
    const char* const end = value.data() + value.size();
    if (name == key && std::from_chars(value.data(), end, number).ptr == end) return number;
  }
  return 0;
}

Status ResetStatus(std::uint32_t http2_error) {
  const std::string text = std::string("the daemon reset the call: ") + nghttp2_http2_strerror(http2_error);
  switch (http2_error) {
    case NGHTTP2_CANCEL:
      return Error(Reason::CANCELLED, text);
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return Error(Reason::LIMIT, text);
    case NGHTTP2_REFUSED_STREAM:
      return Error(Reason::DISCONNECTED, text);
    default:
      return Error(Reason::PROTOCOL, text);
  }
}

}  // namespace

std::string PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        out.push_back(static_cast<char>(high * 16 + low));
        i += 2;
        continue;
      }
    }
    out.push_back(text[i]);
  }
  return out;
}

std::optional<std::string> Base64Decode(std::string_view text) {
  static constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int i = 0; i < 2 && !text.empty() && text.back() == '='; ++i) text.remove_suffix(1);
  if (text.size() % 4 == 1) return std::nullopt;
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const std::size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = (bits << 6) | static_cast<std::uint32_t>(value);
    have += 6;
    if (have >= 8) {
      have -= 8;
      out.push_back(static_cast<char>((bits >> have) & 0xff));
    }
  }
  return out;
}

Status StatusOf(const GrpcTrailers& trailers) {
  if (trailers.http_status != 200) {
    return Error(Reason::PROTOCOL, "the daemon answered with HTTP status " + std::to_string(trailers.http_status) +
                                       "; is something else listening on its socket?");
  }
  if (trailers.content_type.rfind("application/grpc", 0) != 0) {
    return Error(Reason::PROTOCOL, "the daemon's answer has the content type '" + trailers.content_type +
                                       "' instead of application/grpc");
  }
  if (!trailers.grpc_status.has_value()) return Error(Reason::PROTOCOL, "the daemon's answer has no grpc-status");
  if (*trailers.grpc_status == 0) return {};
  Status status = Error(ReasonByCode(*trailers.grpc_status), PercentDecode(trailers.grpc_message));
  const std::optional<std::string> details = Base64Decode(trailers.details);
  ErrorInfo info;
  if (details.has_value() && DecodeErrorInfo(*details, &info) && info.domain == "gpumem") {
    status.reason = ReasonByName(info.reason);
    status.asked_bytes = Number(info, "asked_bytes");
    status.limit_bytes = Number(info, "limit_bytes");
    status.available_bytes = Number(info, "available_bytes");
    if (InfoOf(static_cast<std::int32_t>(status.reason)).name != info.reason) {
      status.message = info.reason + " (a reason that this library does not know): " + status.message;
    }
  }
  return status;
}

// What nghttp2 calls. `user` is the connection. Exceptions must not pass through C frames: only allocation can throw
// here, and it ends the connection.
struct Http2Connection::Callbacks {
  static Call* Of(Http2Connection* connection, std::int32_t stream) {
    return connection->call_.stream == stream && !connection->call_.ended ? &connection->call_ : nullptr;
  }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                      const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* user) try {
    Call* const call = Of(static_cast<Http2Connection*>(user), frame->hd.stream_id);
    if (call == nullptr) return 0;
    const std::string_view key(reinterpret_cast<const char*>(name), name_size);
    const std::string_view text(reinterpret_cast<const char*>(value), value_size);
    call->header_bytes += name_size + value_size;
    if (call->header_bytes > kMaxHeaderBytes) {
      call->broken = Error(Reason::PROTOCOL, "the daemon's answer has more than " + std::to_string(kMaxHeaderBytes) +
                                                 " bytes of header fields");
      return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    if (key == ":status") {
      std::from_chars(text.data(), text.data() + text.size(), call->trailers.http_status);
    } else if (key == "content-type") {
      call->trailers.content_type = text;
    } else if (key == "grpc-status") {
      std::int32_t code = 0;
      const auto parsed = std::from_chars(text.data(), text.data() + text.size(), code);
      if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) call->trailers.grpc_status = code;
    } else if (key == "grpc-message") {
      call->trailers.grpc_message = text;
    } else if (key == "grpc-status-details-bin") {
      call->trailers.details = text;
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }

  static int OnData(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data, std::size_t size,
                    void* user) try {
    auto* const connection = static_cast<Http2Connection*>(user);
    Call* const call = Of(connection, stream);
    if (call == nullptr || call->broken.has_value()) return 0;
    call->body.append(reinterpret_cast<const char*>(data), size);
    connection->CheckFrame();
    return 0;
  } catch (const std::bad_alloc&) {
    return NGHTTP2_ERR_CALLBACK_FAILURE;
  }

  static int OnClose(nghttp2_session*, std::int32_t stream, std::uint32_t error, void* user) {
    Call* const call = Of(static_cast<Http2Connection*>(user), stream);
    if (call == nullptr) return 0;
    call->ended = true;
    call->http2_error = error;
    return 0;
  }

  static int OnNotSent(nghttp2_session*, const nghttp2_frame* frame, int, void* user) {
    Call* const call = Of(static_cast<Http2Connection*>(user), frame->hd.stream_id);
    if (call == nullptr || frame->hd.type != NGHTTP2_HEADERS) return 0;
    call->ended = true;
    call->http2_error = NGHTTP2_REFUSED_STREAM;
    return 0;
  }

  static ssize_t ReadRequest(nghttp2_session*, std::int32_t stream, std::uint8_t* buffer, std::size_t size,
                             std::uint32_t* flags, nghttp2_data_source*, void* user) {
    Call* const call = Of(static_cast<Http2Connection*>(user), stream);
    if (call == nullptr) return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    const std::size_t part = std::min(size, call->request.size() - call->request_sent);
    std::memcpy(buffer, call->request.data() + call->request_sent, part);
    call->request_sent += part;
    if (call->request_sent == call->request.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(part);
  }
};

Status Http2Connection::Make(GuardedFd socket, std::unique_ptr<Http2Connection>* connection) {
  std::unique_ptr<Http2Connection> made(new Http2Connection(std::move(socket)));
  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_header_callback(callbacks, Callbacks::OnHeader);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::OnData);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Callbacks::OnClose);
  nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, Callbacks::OnNotSent);
  const int error = nghttp2_session_client_new(&made->session_, callbacks, made.get());
  nghttp2_session_callbacks_del(callbacks);
  if (error != 0) throw std::bad_alloc();
  const std::array<nghttp2_settings_entry, 2> settings = {
      {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0}, {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes}}};
  if (nghttp2_submit_settings(made->session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size()) != 0 ||
      nghttp2_session_set_local_window_size(made->session_, NGHTTP2_FLAG_NONE, 0, kWindowBytes) != 0) {
    throw std::bad_alloc();
  }
  *connection = std::move(made);
  return {};
}

Http2Connection::~Http2Connection() { nghttp2_session_del(session_); }

Status Http2Connection::Lost(const std::string& why) {
  lost_ = true;
  call_.ended = true;
  return Error(Reason::DISCONNECTED, "the connection to gpumemd was lost: " + why);
}

Status Http2Connection::Flush(bool* blocked) {
  *blocked = false;
  for (;;) {
    while (outgoing_.size() < kMaxOutgoingBytes) {
      const std::uint8_t* bytes = nullptr;
      const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
      if (size < 0) return Lost(nghttp2_strerror(static_cast<int>(size)));
      if (size == 0) break;
      outgoing_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    }
    if (outgoing_.empty()) return {};
    const ssize_t sent = ::send(socket_.get(), outgoing_.data(), outgoing_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      outgoing_.erase(0, static_cast<std::size_t>(sent));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      *blocked = true;
      return {};
    }
    // The peer may have answered and closed before it read all: what it said is still to be read.
    if (errno == EPIPE || errno == ECONNRESET) {
      outgoing_.clear();
      return {};
    }
    return Lost(ErrnoText(errno));
  }
}

Status Http2Connection::Read(bool* blocked) {
  *blocked = false;
  std::array<std::uint8_t, kReadBytes> buffer;
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      *blocked = true;
      return {};
    }
    if (got < 0) return Lost(ErrnoText(errno));
    if (got == 0) return call_.ended ? (lost_ = true, Status()) : Lost("the daemon closed it");
    const ssize_t used = nghttp2_session_mem_recv(session_, buffer.data(), static_cast<std::size_t>(got));
    if (used < 0) return Lost(nghttp2_strerror(static_cast<int>(used)));
    if (call_.ended) return {};
  }
}

bool Http2Connection::Usable() {
  bool blocked = false;
  if (lost_ || !Flush(&blocked).ok()) return false;
  while (!lost_ && !blocked) {
    if (!Read(&blocked).ok()) return false;
  }
  return !lost_ && nghttp2_session_check_request_allowed(session_) != 0;
}

Status Http2Connection::Begin(std::string_view method, std::string_view request, std::optional<Deadline> deadline) {
  call_ = Call();
  const auto size = static_cast<std::uint32_t>(request.size());
  const char prefix[kFramePrefixBytes] = {0, static_cast<char>(size >> 24), static_cast<char>(size >> 16),
                                          static_cast<char>(size >> 8), static_cast<char>(size)};
  call_.request.reserve(kFramePrefixBytes + request.size());
  call_.request.append(prefix, kFramePrefixBytes).append(request);
  const std::string timeout = deadline.has_value() ? TimeoutHeader(*deadline) : std::string();
  std::array<nghttp2_nv, 9> headers = {Header(":method", "POST"),        Header(":scheme", "http"),
                                       Header(":path", method),          Header(":authority", "localhost"),
                                       Header("te", "trailers"),         Header("content-type", "application/grpc"),
                                       Header("user-agent", kUserAgent), Header("grpc-accept-encoding", "identity"),
                                       Header("grpc-timeout", timeout)};
  nghttp2_data_provider body{};
  body.read_callback = Callbacks::ReadRequest;
  call_.ended = false;
  const std::size_t count = headers.size() - (deadline.has_value() ? 0 : 1);
  const std::int32_t stream = nghttp2_submit_request(session_, nullptr, headers.data(), count, &body, nullptr);
  if (stream < 0) return Lost(nghttp2_strerror(stream));
  call_.stream = stream;
  return {};
}

void Http2Connection::Cancel() {
  if (call_.ended) return;
  nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call_.stream, NGHTTP2_CANCEL);
  call_.ended = true;
  bool blocked = false;
  (void)Flush(&blocked);
}

Status Http2Connection::RunUntilEnd(Deadline deadline) {
  for (;;) {
    bool full = false;
    bool drained = false;
    if (Status status = Flush(&full); !status.ok()) return status;
    if (call_.ended) return {};
    if (Status status = Read(&drained); !status.ok()) return status;
    if (call_.broken.has_value()) Cancel();
    if (call_.ended) {
      // Window updates and acknowledgements that the answer caused.
      return Flush(&full);
    }
    if (Status status = Flush(&full); !status.ok()) return status;
    if (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0) {
      return Lost("the daemon ended the HTTP/2 session");
    }
    const short events = static_cast<short>(POLLIN | (full ? POLLOUT : 0));
    if (WaitFor(socket_.get(), events, deadline) == 0) {
      Cancel();
      return Error(Reason::DEADLINE, "gpumemd did not answer in time");
    }
  }
}

Status Http2Connection::RunReady() {
  bool full = false;
  bool drained = false;
  while (!drained && !lost_) {
    if (Status status = Flush(&full); !status.ok()) return status;
    if (Status status = Read(&drained); !status.ok()) return status;
    if (call_.broken.has_value()) Cancel();
    if (call_.ended) break;
  }
  return Flush(&full);
}

// Refuses a message that is compressed or too large as soon as its length is known, before it is buffered.
void Http2Connection::CheckFrame() {
  if (call_.body.size() < kFramePrefixBytes) return;
  const std::uint32_t size = BigEndian32(call_.body.data() + 1);
  if (call_.body[0] != 0) {
    call_.broken = Error(Reason::PROTOCOL, "the daemon sent a compressed message although none was asked for");
  } else if (size > kMaxMessageBytes) {
    call_.broken = Error(Reason::PROTOCOL, "the daemon sent a message of " + std::to_string(size) +
                                               " bytes; the limit is " + std::to_string(kMaxMessageBytes));
  }
}

bool Http2Connection::NextMessage(std::string* message) {
  if (call_.broken.has_value() || call_.body.size() < kFramePrefixBytes) return false;
  const std::size_t size = BigEndian32(call_.body.data() + 1);
  if (call_.body.size() - kFramePrefixBytes < size) return false;
  message->assign(call_.body, kFramePrefixBytes, size);
  call_.body.erase(0, kFramePrefixBytes + size);
  CheckFrame();
  return true;
}

Status Http2Connection::Outcome() const {
  if (call_.broken.has_value()) return *call_.broken;
  // Trailers that came count, also when a reset followed them.
  if (!call_.trailers.grpc_status.has_value() && call_.http2_error != NGHTTP2_NO_ERROR) {
    return ResetStatus(call_.http2_error);
  }
  return StatusOf(call_.trailers);
}

}  // namespace gpumem::client
