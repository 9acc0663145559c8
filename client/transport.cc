#include "client/transport.h"

#include <sys/socket.h>

#include <utility>

#include "client/unix_connect.h"

namespace gpumem::client {
namespace {

std::string PathOf(std::string_view method) { return std::string("/gpumem.v1.MemoryService/").append(method); }

Status Closed() { return Error(Reason::DISCONNECTED, "the client was closed"); }

Status Dial(const std::string& path, Deadline deadline, std::unique_ptr<Http2Connection>* connection) {
  GuardedFd socket;
  if (Status status = ConnectUnix(path, SOCK_STREAM, deadline, &socket); !status.ok()) return status;
  return Http2Connection::Make(std::move(socket), connection);
}

}  // namespace

// Gives the slot back at the end of the call. A call that an exception ended leaves a connection in no known state.
class Transport::SlotHolder {
 public:
  SlotHolder(Transport* transport, Slot* slot) : transport_(transport), slot_(slot) {}
  ~SlotHolder() {
    if (!complete_) transport_->Drop(slot_);
    transport_->Give(slot_);
  }
  SlotHolder(const SlotHolder&) = delete;
  SlotHolder& operator=(const SlotHolder&) = delete;
  void Complete() { complete_ = true; }

 private:
  Transport* const transport_;
  Slot* const slot_;
  bool complete_ = false;
};

// A free slot, best one that has a connection already.
Transport::Slot* Transport::FreeSlot() {
  Slot* found = nullptr;
  for (Slot& slot : slots_) {
    if (slot.taken) continue;
    if (slot.fd >= 0) return &slot;
    if (found == nullptr) found = &slot;
  }
  return found;
}

Status Transport::Take(Deadline deadline, Slot** slot) {
  MutexLock lock(&mu_);
  for (;;) {
    if (shut_) return Closed();
    *slot = FreeSlot();
    if (*slot != nullptr) break;
    if (!changed_.WaitUntil(&mu_, deadline) && FreeSlot() == nullptr) {
      return Error(Reason::DEADLINE, "calls of other threads to gpumemd took the whole time of this one");
    }
  }
  (*slot)->taken = true;
  return {};
}

void Transport::Give(Slot* slot) {
  MutexLock lock(&mu_);
  slot->taken = false;
  changed_.NotifyOne();
}

Status Transport::Connect(Slot* slot, Deadline deadline) {
  std::unique_ptr<Http2Connection> made;
  if (Status status = Dial(path_, deadline, &made); !status.ok()) return status;
  MutexLock lock(&mu_);
  if (shut_) return Closed();
  slot->fd = made->fd();
  slot->connection = std::move(made);
  return {};
}

void Transport::Drop(Slot* slot) {
  {
    // Shutdown must not reach a descriptor that is closed.
    MutexLock lock(&mu_);
    slot->fd = -1;
  }
  slot->connection.reset();
}

Status Transport::CallOn(Slot* slot, std::string_view method, std::string_view request, Deadline deadline,
                         std::string* response) {
  if (slot->connection != nullptr && !slot->connection->Usable()) Drop(slot);
  if (slot->connection == nullptr) {
    if (Status status = Connect(slot, deadline); !status.ok()) return status;
  }
  Http2Connection& connection = *slot->connection;
  if (Status status = connection.Begin(PathOf(method), request, deadline); !status.ok()) return status;
  if (Status status = connection.RunUntilEnd(deadline); !status.ok()) return status;
  if (Status status = connection.Outcome(); !status.ok()) return status;
  if (!connection.NextMessage(response)) {
    return Error(Reason::PROTOCOL, "the daemon answered " + std::string(method) + " without a message");
  }
  return {};
}

Status Transport::Call(std::string_view method, std::string_view request, Deadline deadline, std::string* response) {
  Slot* slot = nullptr;
  if (Status status = Take(deadline, &slot); !status.ok()) return status;
  SlotHolder holder(this, slot);
  Status status = CallOn(slot, method, request, deadline, response);
  if (status.reason != Reason::DISCONNECTED) holder.Complete();
  return status;
}

Status Transport::Open(std::string_view method, std::string_view request, Deadline deadline,
                       std::unique_ptr<Http2Connection>* connection) {
  std::unique_ptr<Http2Connection> made;
  if (Status status = Dial(path_, deadline, &made); !status.ok()) return status;
  if (Status status = made->Begin(PathOf(method), request, std::nullopt); !status.ok()) return status;
  if (Status status = made->RunReady(); !status.ok()) return status;
  *connection = std::move(made);
  return {};
}

void Transport::Shutdown() {
  MutexLock lock(&mu_);
  shut_ = true;
  for (const Slot& slot : slots_) {
    if (slot.fd >= 0) ::shutdown(slot.fd, SHUT_RDWR);
  }
  changed_.NotifyAll();
}

}  // namespace gpumem::client
