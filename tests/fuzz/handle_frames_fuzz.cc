// The frames of handles.sock, from bytes that a peer may have chosen. The first byte chooses the direction and the
// second the number of fds that came; the rest is the frame. Whatever is accepted must keep what ParseFrame promises,
// and be the same frame when it is written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <variant>
#include <vector>

#include "daemon/session/frames.h"

namespace {

using namespace gpumem;  // NOLINT: a program of its own

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckPromises(const session::Frame& frame) {
  if (const auto* fetch = std::get_if<wire::FetchBody>(&frame.body)) {
    Require(fetch->count >= 1 && fetch->count <= wire::kMaxFdsPerFrame);
    Require(fetch->first <= std::numeric_limits<std::uint32_t>::max() - fetch->count);
  } else if (const auto* mapping = std::get_if<wire::MappingBody>(&frame.body)) {
    Require(mapping->count >= 1 && mapping->first <= std::numeric_limits<std::uint32_t>::max() - mapping->count);
    Require(mapping->access <= wire::MappedAccess::kReadWrite);
  } else if (const auto* acknowledge = std::get_if<wire::AcknowledgeBody>(&frame.body)) {
    Require(acknowledge->access <= wire::MappedAccess::kReadWrite);
  } else if (const auto* open = std::get_if<wire::OpenBody>(&frame.body)) {
    Require(session::TextOf(open->client_name).size() <= sizeof(open->client_name));
  } else if (const auto* refused = std::get_if<wire::RefusedBody>(&frame.body)) {
    Require(session::TextOf(refused->message).size() < sizeof(refused->message));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto direction = (data[0] & 1) != 0 ? session::Direction::kToDaemon : session::Direction::kToWorker;
  const std::size_t fd_count = data[1];
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 2, size - 2);
  const absl::StatusOr<session::Frame> frame = session::ParseFrame(bytes, fd_count, direction);
  if (!frame.ok()) return 0;
  Require(frame->header.fd_count == fd_count);
  CheckPromises(*frame);
  const std::vector<std::byte> again =
      std::visit([&](const auto& body) { return session::EncodeFrame(frame->header, body); }, frame->body);
  Require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  return 0;
}
