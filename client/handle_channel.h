// client/handle_channel.h: the worker's end of handles.sock (proto/gpumem/v1/handle_frames.h). Calls base/ and libc.
//
// The open socket is the session's lifeline. Any number of threads use one channel: whoever waits for a frame reads the
// socket while nobody else does, and hands each frame to whom it is for, so there is no thread of the library's own.
// Frames that nobody waits for any more (the call that asked for them has failed) have their fds closed and are
// acknowledged as not imported, so that the daemon's window opens again.
#ifndef GPUMEM_CLIENT_HANDLE_CHANNEL_H_
#define GPUMEM_CLIENT_HANDLE_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/seqpacket.h"
#include "base/unique_fd.h"
#include "client/guarded_fd.h"
#include "client/status.h"
#include "client/turn.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::client {

// The chunks of one Handles frame. The fds are in the order of the entries.
struct HandleSet {
  std::uint64_t sequence = 0;  // to acknowledge it by
  std::uint64_t lease_id = 0;
  std::vector<wire::HandleEntry> entries;
  std::vector<UniqueFd> fds;
};

class HandleChannel {
 public:
  // Connects to `path` and opens a session. Errors: as ConnectUnix; what the daemon refused with; PROTOCOL; DEADLINE.
  static Status Open(const std::string& path, const std::string& client_name, Deadline deadline,
                     std::unique_ptr<HandleChannel>* channel);
  // The same on a socket that is connected already.
  static Status OpenOn(GuardedFd socket, const std::string& client_name, Deadline deadline,
                       std::unique_ptr<HandleChannel>* channel);
  HandleChannel(const HandleChannel&) = delete;
  HandleChannel& operator=(const HandleChannel&) = delete;

  const wire::WelcomeBody& welcome() const { return welcome_; }
  int fd() const { return socket_.get(); }

  // Frames of this request are kept from now on, until Forget. Before the call that makes the daemon push them.
  void Expect(std::uint64_t request_id) GPUMEM_EXCLUDES(mu_);
  // What came and was not taken is closed and acknowledged as not imported.
  void Forget(std::uint64_t request_id, Deadline deadline) GPUMEM_EXCLUDES(mu_);

  // Waits for the next frame of an expected request. Errors: DEADLINE; what a fetch was refused with; DESCRIPTORS when
  // this process had no room for the fds (they are closed; the chunks can be fetched again); PROTOCOL or DISCONNECTED,
  // after which the channel is dead.
  Status Await(std::uint64_t request_id, Deadline deadline, HandleSet* handles) GPUMEM_EXCLUDES(mu_);

  // Asks for up to `count` chunks from `first` on, as `request_id`, which is expected; the answer comes by Await.
  Status Fetch(std::uint64_t request_id, std::uint64_t lease_id, std::uint32_t first, std::uint32_t count,
               Deadline deadline);

  // `imported` has one element for each entry of the frame.
  Status Acknowledge(std::uint64_t handles_sequence, const std::vector<bool>& imported, Deadline deadline);

  Status ReportMapping(std::uint64_t lease_id, std::uint32_t chunk_count, wire::MappedAccess access, Deadline deadline);

  // Reads what is there, without waiting; nothing when another thread reads. DISCONNECTED or PROTOCOL when it is dead.
  Status Poll() GPUMEM_EXCLUDES(mu_);

  // The daemon's word that nothing more is granted to the session; nullopt when it has not said so.
  std::optional<wire::FencedBody> fenced() const GPUMEM_EXCLUDES(mu_);

  bool dead() const GPUMEM_EXCLUDES(mu_);

  // Adds one to `event_fd` (an eventfd; not owned, and open as long as the channel is used) when the session is fenced
  // or the channel dies, whichever thread learns of it. Thread-safe.
  void WakeOnNews(int event_fd) GPUMEM_EXCLUDES(mu_);

  // Ends every wait, at once, and refuses new calls. Thread-safe.
  void Shutdown();

  // Leaves the witness pipe's write end open for the rest of the process's life: something of the session is still in
  // this process, and a child forked later must show that.
  void KeepWitness() { (void)witness_.release(); }

 private:
  // What came for one request, in order.
  struct Expected {
    std::deque<HandleSet> sets;
    std::deque<Status> failures;
  };
  struct Incoming;
  class ReaderTurn;

  explicit HandleChannel(GuardedFd socket) : socket_(std::move(socket)) {}
  Status SendOpen(const std::string& client_name, Deadline deadline);
  Status ReceiveWelcome(Deadline deadline);
  // Sends are whole frames, one thread at a time, so that their sequence numbers rise.
  Status Send(wire::FrameType type, std::uint64_t request_id, std::span<const std::byte> body, std::span<const int> fds,
              Deadline deadline);
  // Waits for one frame until the deadline and checks it. OK with type 0 when none came.
  Status Receive(Deadline deadline, Incoming* incoming);
  Status CheckFrame(ReceivedFrame* received, Incoming* incoming);
  // One frame, delivered. The reader's turn is the caller's.
  void ReadOne(Deadline deadline) GPUMEM_EXCLUDES(mu_);
  std::optional<std::uint64_t> Deliver(Incoming* arrived) GPUMEM_REQUIRES(mu_);
  bool TakeArrived(std::uint64_t request_id, HandleSet* handles, Status* status) GPUMEM_REQUIRES(mu_);
  bool BecomeReader(std::uint64_t request_id, Deadline deadline, HandleSet* handles, Status* status)
      GPUMEM_EXCLUDES(mu_);
  void Die(Status why) GPUMEM_EXCLUDES(mu_);
  void Wake() const;

  GuardedFd socket_;
  UniqueFd witness_;  // the write end: every forked child has it too, exec closes it
  wire::WelcomeBody welcome_{};

  Turn send_turn_;
  std::uint64_t sent_ = 0;                                                                     // under send_turn_
  std::uint64_t received_ = 0;                                                                 // under reading_
  std::unique_ptr<std::byte[]> buffer_ = std::make_unique<std::byte[]>(wire::kMaxFrameBytes);  // under reading_

  std::atomic<int> wake_fd_{-1};

  mutable Mutex mu_;
  CondVar changed_;
  bool reading_ GPUMEM_GUARDED_BY(mu_) = false;
  Status dead_ GPUMEM_GUARDED_BY(mu_);
  std::optional<wire::FencedBody> fenced_ GPUMEM_GUARDED_BY(mu_);
  std::map<std::uint64_t, Expected> expected_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem::client

#endif  // GPUMEM_CLIENT_HANDLE_CHANNEL_H_
