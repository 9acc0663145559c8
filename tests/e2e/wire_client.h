// tests/e2e/wire_client.h: a session spoken by hand: the frames of handles.sock and grpc++ on control.sock, without
// libgpumem. For what a peer can send that the library never would. The session's process is the test itself.
#ifndef GPUMEM_TESTS_E2E_WIRE_CLIENT_H_
#define GPUMEM_TESTS_E2E_WIRE_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "gpumem/v1/memory.grpc.pb.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::e2e {

struct ReceivedWireFrame {
  wire::FrameHeader header;
  std::vector<std::byte> body;
  std::vector<UniqueFd> fds;
  bool end_of_stream = false;

  template <typename Body>
  const Body& As() const {
    return *reinterpret_cast<const Body*>(body.data());
  }
};

class WireClient {
 public:
  explicit WireClient(const std::string& socket_dir);

  // Connects handles.sock; false when nobody listens.
  bool ConnectHandles();
  // Sends a frame as it is given: header fields are not corrected.
  int Send(const wire::FrameHeader& header, const void* body, std::size_t body_bytes, const std::vector<int>& fds);
  // A well-formed frame of `type`.
  template <typename Body>
  int SendFrameOf(wire::FrameType type, const Body& body, const std::vector<int>& fds = {},
                  std::uint64_t request_id = 0) {
    wire::FrameHeader header;
    header.type = type;
    header.sequence = ++sequence_;
    header.request_id = request_id;
    header.body_bytes = sizeof(Body);
    header.fd_count = static_cast<std::uint32_t>(fds.size());
    return Send(header, &body, sizeof(Body), fds);
  }
  // The next frame; an end of stream, or nothing within a minute, is end_of_stream.
  ReceivedWireFrame Receive();
  // Opens the session as a good worker does: returns its id, 0 when refused.
  std::uint64_t Open();

  v1::MemoryService::Stub& rpc();
  std::uint64_t session() const { return session_; }
  // The reason in the ErrorInfo of a status; "" when there is none.
  static std::string ReasonOf(const grpc::Status& status);

  void CloseHandles() { handles_.reset(); }
  UniqueFd& witness_read() { return witness_read_; }

 private:
  std::string socket_dir_;
  UniqueFd handles_;
  UniqueFd witness_read_;
  UniqueFd witness_write_;
  std::uint64_t sequence_ = 0;
  std::uint64_t session_ = 0;
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

}  // namespace gpumem::e2e

#endif  // GPUMEM_TESTS_E2E_WIRE_CLIENT_H_
