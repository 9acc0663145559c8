#include "tests/e2e/wire_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace gpumem::e2e {

WireClient::WireClient(const std::string& socket_dir) : socket_dir_(socket_dir) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) == 0) {
    witness_read_.reset(fds[0]);
    witness_write_.reset(fds[1]);
  }
}

bool WireClient::ConnectHandles() {
  handles_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (socket_dir_ + "/handles.sock").c_str(), sizeof(address.sun_path) - 1);
  sequence_ = 0;
  return ::connect(handles_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

int WireClient::Send(const wire::FrameHeader& header, const void* body, std::size_t body_bytes,
                     const std::vector<int>& fds) {
  std::vector<std::byte> bytes(sizeof(header) + body_bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (body_bytes > 0) std::memcpy(bytes.data() + sizeof(header), body, body_bytes);
  return SendFrame(handles_.get(), bytes, fds, true);
}

ReceivedWireFrame WireClient::Receive() {
  ReceivedWireFrame result;
  pollfd poll_fd{handles_.get(), POLLIN, 0};
  std::array<std::byte, wire::kMaxFrameBytes> buffer;
  gpumem::ReceivedFrame frame;
  if (::poll(&poll_fd, 1, 60000) <= 0 || ReceiveFrame(handles_.get(), buffer, false, &frame) != 0 ||
      frame.size < sizeof(wire::FrameHeader)) {
    result.end_of_stream = true;
    return result;
  }
  std::memcpy(&result.header, buffer.data(), sizeof(wire::FrameHeader));
  result.body.assign(buffer.begin() + sizeof(wire::FrameHeader),
                     buffer.begin() + static_cast<std::ptrdiff_t>(frame.size));
  result.fds = std::move(frame.fds);
  return result;
}

std::uint64_t WireClient::Open() {
  if (!ConnectHandles()) return 0;
  wire::OpenBody body;
  std::strcpy(body.client_name, "by hand");
  SendFrameOf(wire::FrameType::kOpen, body, {witness_read_.get()});
  const ReceivedWireFrame answer = Receive();
  if (answer.end_of_stream || answer.header.type != wire::FrameType::kWelcome) return 0;
  session_ = answer.As<wire::WelcomeBody>().session_id;
  return session_;
}

v1::MemoryService::Stub& WireClient::rpc() {
  if (stub_ == nullptr) {
    stub_ = v1::MemoryService::NewStub(
        grpc::CreateChannel("unix:" + socket_dir_ + "/control.sock", grpc::InsecureChannelCredentials()));
  }
  return *stub_;
}

std::string WireClient::ReasonOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return {};
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    if (any.UnpackTo(&info)) return info.reason();
  }
  return {};
}

}  // namespace gpumem::e2e
