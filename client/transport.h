// client/transport.h: unary gRPC calls on control.sock, from any number of threads. Calls http2.h; no threads of its
// own.
//
// A call owns one connection while it runs, on the caller's thread. An idle connection is used again, so a program with
// one thread has one; calls of several threads run side by side on at most kMaxConnections, so that reporting a fault
// need not wait behind an allocation that a hung driver delays. The daemon knows a session by its process, not by its
// connection.
#ifndef GPUMEM_CLIENT_TRANSPORT_H_
#define GPUMEM_CLIENT_TRANSPORT_H_

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "client/http2.h"
#include "client/status.h"

namespace gpumem::client {

class Transport {
 public:
  static constexpr std::size_t kMaxConnections = 4;

  explicit Transport(std::string path) : path_(std::move(path)) {}

  // One round trip. `method` is the bare name, "Hello". NOT_RUNNING when nobody listens, DISCONNECTED when the
  // connection was lost on the way (whether the daemon did what was asked is then not known), DEADLINE, PROTOCOL, or
  // what the daemon answered. `response` is touched on success alone. Thread-safe.
  Status Call(std::string_view method, std::string_view request, Deadline deadline, std::string* response)
      GPUMEM_EXCLUDES(mu_);

  // A connection of its own, not counted here, with the call begun on it: for a stream of events.
  Status Open(std::string_view method, std::string_view request, Deadline deadline,
              std::unique_ptr<Http2Connection>* connection);

  // Ends every call that runs now and refuses new ones, at once. Thread-safe.
  void Shutdown() GPUMEM_EXCLUDES(mu_);

 private:
  // One connection, or room for one. `connection` belongs to whoever has the slot.
  struct Slot {
    bool taken = false;                           // under mu_
    int fd = -1;                                  // under mu_; of the connection, for Shutdown
    std::unique_ptr<Http2Connection> connection;  // null until it is used, and after it was lost
  };
  class SlotHolder;

  Status Take(Deadline deadline, Slot** slot) GPUMEM_EXCLUDES(mu_);
  void Give(Slot* slot) GPUMEM_EXCLUDES(mu_);
  Status Connect(Slot* slot, Deadline deadline) GPUMEM_EXCLUDES(mu_);
  void Drop(Slot* slot) GPUMEM_EXCLUDES(mu_);
  Slot* FreeSlot() GPUMEM_REQUIRES(mu_);
  Status CallOn(Slot* slot, std::string_view method, std::string_view request, Deadline deadline,
                std::string* response);

  const std::string path_;
  Mutex mu_;
  CondVar changed_;
  bool shut_ GPUMEM_GUARDED_BY(mu_) = false;
  std::array<Slot, kMaxConnections> slots_;
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_TRANSPORT_H_
