// client/client.h: one session with the daemon, and the memory that it holds in this process. Calls the rest of client/
// and cuda/; abi.cc puts gpumem.h over it.
//
// Thread-safe unless said otherwise. No lock is held across a socket, a driver call or a callback: one piece of memory
// is worked on in its owner's turn, the sockets take care of themselves. Nothing is destroyed in a forked child: abi.cc
// asks forked() before anything else.
#ifndef GPUMEM_CLIENT_CLIENT_H_
#define GPUMEM_CLIENT_CLIENT_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "client/handle_channel.h"
#include "client/memory.h"
#include "client/messages.h"
#include "client/status.h"
#include "client/transport.h"
#include "client/turn.h"
#include "cuda/devices.h"
#include "cuda/driver.h"

namespace gpumem::client {

class Client;
class EventQueue;
struct ClientEvent;

struct ClientOptions {
  std::string socket_dir;
  std::string client_name;
  std::string libcuda_path;  // empty: the loader's search
  std::chrono::milliseconds timeout{30'000};
};

// The chunks of one lease or of one attached segment, as long as the daemon counts them as this session's.
struct Holding {
  enum class Kind { kPrivate, kBuilding, kAttached };
  Kind kind = Kind::kPrivate;
  std::shared_ptr<Client> client;
  std::uint64_t lease_id = 0;
  std::uint64_t attachment_id = 0;  // kAttached
  std::string segment_name;         // kAttached
  std::vector<Tensor> tensors;      // kAttached
  std::uint32_t chunk_count = 0;
  std::uint64_t bytes = 0;

  Turn turn;                      // of what follows
  bool dead = false;              // given back, or its client is closed
  bool let_go = false;            // the handles are given back to the driver: it can only be sealed or released
  std::vector<Outcome> outcomes;  // of let_go: one for each chunk, or one for all
  std::int32_t access = 0;        // GPUMEM_ACCESS_*
  Memory memory;
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  static Status Connect(const ClientOptions& options, std::shared_ptr<Client>* client);
  ~Client();

  // True in a process that was forked from the one that connected.
  bool forked() const;

  // OK, or why no call can be made: FORKED, CUDA_FATAL, DISCONNECTED when it was closed.
  Status Ready() const;

  // Unmaps and lets go of everything, and closes the sockets. The daemon is not asked.
  void Close();

  const HelloResponse& hello() const { return hello_; }
  std::uint64_t session_id() const { return session_id_; }
  std::string_view driver_kind() const { return driver_->is_simulated() ? "sim" : "cuda"; }
  // Of hello().devices[index], in this process; -1 when it is not visible here.
  std::int32_t ordinal(std::size_t index) const;

  Status RegisterHolder(const std::string& name, std::int32_t role, std::uint64_t* holder_id);
  Status Allocate(std::uint64_t holder_id, const std::vector<ChunkSpec>& specs, std::shared_ptr<Holding>* holding);
  Status BuildSegment(std::uint64_t holder_id, const std::string& name, const std::vector<ChunkSpec>& specs,
                      std::shared_ptr<Holding>* holding);
  Status AttachSegment(std::uint64_t holder_id, const std::string& name, std::shared_ptr<Holding>* holding);
  Status ListSegments(const std::string& prefix, std::vector<Segment>* segments);

  Status Map(Holding* holding, CUdeviceptr wanted, std::int32_t access, CUdeviceptr* address);
  Status Unmap(Holding* holding, const std::vector<CUstream>& streams);
  // Releases a lease or detaches a segment. Sets `*freed` when the daemon's or the driver's word no longer matters to
  // the object; else nothing was given back.
  Status GiveBack(const std::shared_ptr<Holding>& holding, const std::vector<CUstream>& streams, bool* freed);
  // On success the holding is dead and `*name` has the version.
  Status Seal(const std::shared_ptr<Holding>& holding, const std::vector<Tensor>& tensors,
              const std::vector<CUstream>& streams, std::string* name);

  Status ReportFault(std::int32_t cuda_error, const std::string& detail);

  // The descriptor to poll, made at the first call.
  Status EventFd(int* fd);
  Status NextEvent(ClientEvent* event, bool* got);

 private:
  struct Sockets {
    std::shared_ptr<Transport> transport;
    std::shared_ptr<HandleChannel> channel;
  };

  explicit Client(const ClientOptions& options);
  Status LoadDriver();
  Status OpenSession();
  Status SayHello(Deadline deadline);

  Deadline CallDeadline() const { return DeadlineAfter(options_.timeout); }
  std::uint64_t NextRequestId();
  // Null sockets after Close.
  Sockets sockets() const GPUMEM_EXCLUDES(mu_);

  // One round trip whose response names the daemon instance that the session is with.
  template <typename Response>
  Status Call(std::string_view method, const std::string& request, Deadline deadline, Response* response);

  // The ordinal here of a device; DEVICE_NOT_VISIBLE, with both sides' devices named, when there is none.
  Status FindVisible(const std::string& uuid, CUdevice* device) const;
  Status CheckVisible(const std::vector<ChunkSpec>& specs) const;

  template <typename Request>
  Status Grant(std::string_view method, Request request, Holding::Kind kind, std::shared_ptr<Holding>* holding);
  Status PutMemory(Holding* holding, const std::vector<Chunk>& chunks);
  // Imports the chunks that were pushed as `request_id`, then fetches and imports the rest.
  Status ImportAll(Holding* holding, const std::vector<Chunk>& chunks, std::uint64_t request_id, std::uint32_t pushed,
                   Deadline deadline);
  Status ImportPushed(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks,
                      std::uint64_t request_id, std::uint32_t pushed, Deadline deadline);
  Status FetchRest(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks, Deadline deadline);
  Status ImportSet(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks, HandleSet set,
                   Deadline deadline);
  // A call whose answer did not come in time: whether it was done is not known. The same request id gets the same
  // answer later, and what it granted to nobody is given back.
  struct Unanswered {
    std::string method;
    std::string request;
  };
  void Remember(const Status& status, std::string_view method, std::string request) GPUMEM_EXCLUDES(mu_);
  // Asks again for what is remembered, before anything new is granted.
  void SettleUnanswered(HandleChannel* channel) GPUMEM_EXCLUDES(mu_);
  Status SettleOne(HandleChannel* channel, const Unanswered& call);
  // After an import that failed: gives back what came of it, here and at the daemon.
  void Undo(Holding* holding);
  Status TellGivenBack(const Holding& holding, const std::vector<Outcome>& outcomes, Deadline deadline);
  Status ReportMapping(const Holding& holding, std::int32_t access);
  // Under the holding's turn: waits and unmaps.
  Status UnmapHeld(Holding* holding, const std::vector<CUstream>& streams);
  // Under the holding's turn: the handles go; the outcomes are what to tell the daemon.
  const std::vector<Outcome>& LetGoHeld(Holding* holding);
  Status CheckHeld(const Holding& holding) const;

  // Remembers that the context is dead when `status` says so, and returns it.
  Status Note(Status status);
  Status Adopt(const std::shared_ptr<Holding>& holding) GPUMEM_EXCLUDES(mu_);
  void Drop(const std::shared_ptr<Holding>& holding) GPUMEM_EXCLUDES(mu_);
  void CloseHolding(Holding* holding);

  const ClientOptions options_;
  const pid_t pid_;
  std::unique_ptr<cuda::Driver> driver_;
  std::vector<cuda::DeviceInfo> visible_;
  std::uint64_t session_id_ = 0;
  HelloResponse hello_;

  std::atomic<std::uint64_t> next_request_id_;
  std::atomic<bool> fatal_{false};
  std::atomic<std::int32_t> fatal_error_{0};
  // Something of the session stays in this process although its object is gone.
  std::atomic<bool> left_behind_{false};

  Turn events_turn_;
  std::unique_ptr<EventQueue> events_;  // under events_turn_

  mutable Mutex mu_;
  Sockets sockets_ GPUMEM_GUARDED_BY(mu_);
  std::set<std::shared_ptr<Holding>> holdings_ GPUMEM_GUARDED_BY(mu_);
  std::deque<Unanswered> unanswered_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_CLIENT_H_
