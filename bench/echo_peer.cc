// bench/echo_peer.cc: the other side of the bare round trip: a gRPC echo on a Unix socket, and one fd by SCM_RIGHTS on
// a socketpair for each byte that comes there.
//
//   bench-echo-peer SOCKET-PATH FD
// serves on SOCKET-PATH until FD (an inherited SOCK_SEQPACKET socket) ends. What it sends back there is its stdin.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/seqpacket.h"
#include "bench/echo.grpc.pb.h"

namespace {

class EchoServer final : public gpumem::bench::EchoService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const gpumem::bench::EchoMessage* request,
                                 gpumem::bench::EchoMessage* response) override {
    *response = *request;
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench-echo-peer SOCKET-PATH FD\n");
    return 2;
  }
  const int socket = std::atoi(argv[2]);
  EchoServer service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + std::string(argv[1]), grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::array<std::byte, 1> byte{};
  gpumem::SendFrame(socket, byte, {}, true);  // ready
  gpumem::ReceivedFrame frame;
  const int fd = STDIN_FILENO;
  while (gpumem::ReceiveFrame(socket, byte, true, &frame) == 0 && frame.size == 1) {
    gpumem::SendFrame(socket, byte, std::span(&fd, 1), true);
  }
  return 0;
}
