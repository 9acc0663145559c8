// client/demo/messages.h: what the demo and its workers say to each other: one JSON object a message, on a
// SOCK_SEQPACKET socket pair that a worker has as descriptor 3. Calls base/ and nlohmann-json. Thread-safe: no state.
//
//   worker → demo                                      demo → worker
//   {"event": "published", …}   the loader is done     {"command": "fault"}    store through the read-only mapping
//   {"event": "verified", …}    every tensor compared  {"command": "finish"}   give everything back and exit
//   {"event": "serving", …}     the work loop begins
//   {"event": "steps", …}       some steps of it, done
//   {"event": "faulted", …}     the context is dead
//   {"event": "finished", …}
//   {"event": "failed", "what": …}
//
// The end of the socket is the demo's end: a worker leaves then, whatever it was doing.
#ifndef GPUMEM_CLIENT_DEMO_MESSAGES_H_
#define GPUMEM_CLIENT_DEMO_MESSAGES_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace gpumem::demo {

using Json = nlohmann::json;

inline constexpr int kMessageFd = 3;
inline constexpr std::size_t kMaxMessageBytes = 64 << 10;

// Waits while the socket is full. False when the other end is gone or the message is too long.
bool Send(int socket, const Json& message);

enum class Received { kMessage, kNothing, kBroken, kEnd };
// kNothing only when `blocking` is false. kBroken: a message that is no JSON object; the socket goes on.
Received Receive(int socket, bool blocking, Json* message);

// `text` as a JSON object, or null.
Json ParseObject(std::string_view text);

// Members of an object; "" and 0 where they are missing or of another type.
std::string TextOf(const Json& object, const char* key);
std::uint64_t NumberOf(const Json& object, const char* key);
double RealOf(const Json& object, const char* key);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_MESSAGES_H_
