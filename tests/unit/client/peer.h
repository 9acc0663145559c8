// tests/unit/client/peer.h: the daemon's end of handles.sock, frame by frame, as a test wants it.
#ifndef GPUMEM_TESTS_UNIT_CLIENT_PEER_H_
#define GPUMEM_TESTS_UNIT_CLIENT_PEER_H_

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::client_test {

// One frame of the client, as it came.
struct FromClient {
  wire::FrameHeader header;
  std::vector<std::byte> body;
  std::vector<UniqueFd> fds;

  template <typename Body>
  Body As() const {
    Body out{};
    std::memcpy(&out, body.data(), std::min(sizeof(out), body.size()));
    return out;
  }
};

// Owns a connected SOCK_SEQPACKET socket. Blocking.
class Peer {
 public:
  explicit Peer(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  void Hangup() { socket_.reset(); }

  // False at the end of the stream.
  bool Receive(FromClient* frame) {
    std::array<std::byte, wire::kMaxFrameBytes> buffer;
    ReceivedFrame received;
    if (ReceiveFrame(socket_.get(), buffer, true, &received) != 0 || received.size < sizeof(frame->header))
      return false;
    std::memcpy(&frame->header, buffer.data(), sizeof(frame->header));
    frame->body.assign(buffer.begin() + sizeof(frame->header), buffer.begin() + static_cast<long>(received.size));
    frame->fds = std::move(received.fds);
    return true;
  }

  // A frame as it should be; `change` may spoil its header. Returns its sequence number.
  template <typename Body, typename Change>
  std::uint64_t Send(wire::FrameType type, std::uint64_t request_id, const Body& body, std::span<const int> fds,
                     Change change) {
    wire::FrameHeader header;
    header.type = type;
    header.sequence = ++sequence_;
    header.request_id = request_id;
    header.body_bytes = sizeof(body);
    header.fd_count = static_cast<std::uint32_t>(fds.size());
    change(&header);
    std::vector<std::byte> bytes(sizeof(header) + sizeof(body));
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), &body, sizeof(body));
    (void)SendFrame(socket_.get(), bytes, fds, true);
    return header.sequence;
  }
  template <typename Body>
  std::uint64_t Send(wire::FrameType type, std::uint64_t request_id, const Body& body, std::span<const int> fds = {}) {
    return Send(type, request_id, body, fds, [](wire::FrameHeader*) {});
  }

 private:
  UniqueFd socket_;
  std::uint64_t sequence_ = 0;
};

}  // namespace gpumem::client_test

#endif  // GPUMEM_TESTS_UNIT_CLIENT_PEER_H_
