#include "client/demo/messages.h"

#include <cerrno>
#include <span>
#include <vector>

#include "base/seqpacket.h"

namespace gpumem::demo {

bool Send(int socket, const Json& message) {
  const std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxMessageBytes) return false;
  return SendFrame(socket, std::as_bytes(std::span(text)), {}, /*blocking=*/true) == 0;
}

Received Receive(int socket, bool blocking, Json* message) {
  std::vector<std::byte> buffer(kMaxMessageBytes);
  ReceivedFrame frame;
  const int error = ReceiveFrame(socket, buffer, blocking, &frame);
  if (error == EAGAIN || error == EWOULDBLOCK) return Received::kNothing;
  if (error != 0 || frame.size == 0) return Received::kEnd;
  *message = ParseObject(std::string_view(reinterpret_cast<const char*>(buffer.data()), frame.size));
  return message->is_object() && !frame.truncated ? Received::kMessage : Received::kBroken;
}

Json ParseObject(std::string_view text) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json();
}

std::string TextOf(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

std::uint64_t NumberOf(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
}

double RealOf(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

}  // namespace gpumem::demo
