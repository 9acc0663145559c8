#include "daemon/session/handle_sessions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/seqpacket.h"
#include "daemon/core/reasons.h"
#include "tests/unit/session/session_test_util.h"

namespace gpumem::session {
namespace {

using core::LeaseId;
using core::Reason;
using core::SessionId;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using wire::FrameType;

// A worker's end of handles.sock, frame by frame.
class Worker {
 public:
  explicit Worker(const std::string& path) : fd_(Connect(path, SOCK_SEQPACKET)) {}

  int fd() const { return fd_.get(); }
  void Close() { fd_.reset(); }

  template <typename Body>
  int Send(FrameType type, const Body& body, std::uint64_t request_id = 0, const std::vector<int>& fds = {}) {
    wire::FrameHeader header;
    header.type = type;
    header.sequence = next_++;
    header.request_id = request_id;
    header.fd_count = static_cast<std::uint32_t>(fds.size());
    return SendFrame(fd_.get(), EncodeFrame(header, body), fds, /*blocking=*/true);
  }
  int SendOpen(const std::vector<int>& fds) { return Send(FrameType::kOpen, wire::OpenBody(), 0, fds); }
  int SendFetch(std::uint64_t request_id) {
    wire::FetchBody fetch;
    fetch.lease_id = 40;
    fetch.count = 1;
    return Send(FrameType::kFetch, fetch, request_id);
  }
  void SkipSequence() { ++next_; }

  // The next frame, or nothing at the end of the stream or when none is there. `fds` gets what came with it.
  std::optional<Frame> Receive(std::vector<UniqueFd>* fds = nullptr) {
    std::array<std::byte, wire::kMaxFrameBytes> buffer;
    ReceivedFrame received;
    error_ = ReceiveFrame(fd_.get(), buffer, /*blocking=*/false, &received);
    if (error_ != 0 || received.size == 0) return std::nullopt;
    EXPECT_FALSE(received.truncated);
    absl::StatusOr<Frame> frame = ParseFrame({buffer.data(), received.size}, received.fds.size(), Direction::kToWorker);
    EXPECT_TRUE(frame.ok()) << frame.status();
    if (fds != nullptr) *fds = std::move(received.fds);
    return frame.ok() ? std::optional<Frame>(*frame) : std::nullopt;
  }
  bool HasInput() const {
    pollfd input{fd_.get(), POLLIN, 0};
    return ::poll(&input, 1, 0) > 0;
  }
  int last_error() const { return error_; }

 private:
  UniqueFd fd_;
  std::uint64_t next_ = 1;
  int error_ = 0;
};

class HandleSessionsTest : public ::testing::Test {
 protected:
  HandleSessionsTest() {
    events_.open = [this](const core::SessionIdentity& identity) -> absl::StatusOr<SessionId> {
      identities_.push_back(identity);
      if (!refuse_open_.ok()) return refuse_open_;
      return SessionId(++sessions_opened_);
    };
    events_.socket_closed = [this](SessionId session) { Note("socket", session); };
    events_.pidfd_readable = [this](SessionId session) { Note("pidfd", session); };
    events_.witness_closed = [this](SessionId session) { Note("witness", session); };
    events_.fetch = [this](SessionId session, std::uint64_t, LeaseId, std::uint32_t, std::uint32_t) {
      Note("fetch", session);
    };
    events_.acknowledge = [this](SessionId session, std::uint64_t, const std::vector<bool>&, core::Access) {
      Note("acknowledge", session);
    };
    events_.mapping = [this](SessionId session, LeaseId, std::uint32_t, std::uint32_t, core::Access) {
      Note("mapping", session);
    };
    options_.instance = {0xaa, 0xbb};
    options_.unacknowledged_frames = 6;
  }

  void Start() {
    ListenerOptions listener;
    listener.path = path();
    listener.setting = "sockets.handles";
    listener.type = SOCK_SEQPACKET;
    absl::StatusOr<ListeningSocket> socket = ListeningSocket::Bind(listener);
    ASSERT_TRUE(socket.ok()) << socket.status();
    sessions_ =
        std::make_unique<HandleSessions>(&loop_, *std::move(socket), options_, events_, &random_, &closer_, &log_);
    ASSERT_TRUE(sessions_->Start().ok());
  }
  std::string path() const { return dir_.Path("handles.sock"); }

  void Note(const std::string& what, SessionId session) {
    happened_.push_back(what + " " + std::to_string(session.value()));
  }
  bool Happened(const std::string& what) const {
    return std::find(happened_.begin(), happened_.end(), what) != happened_.end();
  }

  // A session of this process.
  Worker OpenSession() {
    Worker worker(path());
    EXPECT_EQ(worker.SendOpen({witness_.read.get()}), 0);
    RunUntil(&loop_, [&] { return worker.HasInput(); });
    const std::optional<Frame> welcome = worker.Receive();
    EXPECT_TRUE(welcome && welcome->header.type == FrameType::kWelcome);
    return worker;
  }

  // Waits for the refusal that `worker` gets, and for the end of the stream after it.
  void ExpectRefused(Worker* worker, Reason reason, const std::string& words) {
    RunUntil(&loop_, [&] { return worker->HasInput(); });
    const std::optional<Frame> frame = worker->Receive();
    ASSERT_TRUE(frame) << "errno " << worker->last_error();
    ASSERT_EQ(frame->header.type, FrameType::kRefused);
    const auto& body = std::get<wire::RefusedBody>(frame->body);
    EXPECT_EQ(body.reason, static_cast<std::uint32_t>(reason));
    EXPECT_THAT(TextOf(body.message), HasSubstr(words));
    EXPECT_TRUE(AtEnd(worker->fd()));
  }

  manager::OutboundHandles Handles(std::size_t count, std::uint64_t request_id = 5) {
    manager::OutboundHandles handles;
    handles.request_id = request_id;
    handles.lease = LeaseId(40);
    for (std::uint32_t i = 0; i < count; ++i) {
      handles.chunks.push_back({core::ChunkId(100 + i), core::Generation(7), core::Bytes(4096), i});
      handles.fds.emplace_back(::fcntl(witness_.read.get(), F_DUPFD_CLOEXEC, 0), &closer_);
    }
    return handles;
  }

  TempDir dir_;
  EventLoop loop_;
  RecordingLog log_;
  CountingCloser closer_;
  FixedRandom random_;
  Pipe witness_;
  HandleSessions::Options options_;
  SessionEvents events_;
  absl::Status refuse_open_;
  std::uint64_t sessions_opened_ = 0;
  std::vector<core::SessionIdentity> identities_;
  std::vector<std::string> happened_;
  std::unique_ptr<HandleSessions> sessions_;
};

// --- opening
// ----------------------------------------------------------------------------------------------------------

TEST_F(HandleSessionsTest, OpenIsAnsweredWithWelcome) {
  Start();
  Worker worker(path());
  ASSERT_EQ(worker.SendOpen({witness_.read.get()}), 0);
  RunUntil(&loop_, [&] { return worker.HasInput(); });
  const std::optional<Frame> frame = worker.Receive();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.sequence, 1u);
  const auto& welcome = std::get<wire::WelcomeBody>(frame->body);
  EXPECT_EQ(welcome.session_id, 1u);
  EXPECT_EQ(welcome.resume_token[15], 16);
  EXPECT_EQ(welcome.instance[1], 0xbb);
  EXPECT_EQ(welcome.unacknowledged_frames, 6u);
  ASSERT_EQ(identities_.size(), 1u);
  EXPECT_EQ(identities_[0].pid, ::getpid());
  EXPECT_EQ(identities_[0].uid, ::geteuid());
  EXPECT_EQ(identities_[0].comm, "session_test");
}

TEST_F(HandleSessionsTest, ARefusedOpenSaysWhyAndEnds) {
  refuse_open_ = core::Error(Reason::DRAINING, "the daemon is stopping");
  Start();
  Worker worker(path());
  ASSERT_EQ(worker.SendOpen({witness_.read.get()}), 0);
  ExpectRefused(&worker, Reason::DRAINING, "stopping");
  worker.Close();
  Settle(&loop_);
  EXPECT_TRUE(happened_.empty()) << "there never was a session";
}

TEST_F(HandleSessionsTest, TheWitnessMustBeTheReadEndOfALivePipe) {
  Start();
  Pipe hung_up;
  hung_up.write.reset();
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const struct {
    int fd;
    const char* words;
  } cases[] = {
      {witness_.write.get(), "not the read end"}, {hung_up.read.get(), "write end"}, {file.get(), "not a pipe"}};
  for (const auto& each : cases) {
    Worker worker(path());
    ASSERT_EQ(worker.SendOpen({each.fd}), 0);
    ExpectRefused(&worker, Reason::INVALID_ARGUMENT, each.words);
  }
  EXPECT_TRUE(identities_.empty());
}

TEST_F(HandleSessionsTest, OpenWithoutItsOneFdIsRefused) {
  Start();
  Worker none(path());
  ASSERT_EQ(none.SendOpen({}), 0);
  ExpectRefused(&none, Reason::INVALID_ARGUMENT, "cannot carry 0 fds");
}

TEST_F(HandleSessionsTest, FdsThatNobodyAskedForAreClosedAway) {
  Start();
  const std::size_t before = OpenFdCount();
  Worker worker(path());
  ASSERT_EQ(worker.SendOpen(std::vector<int>(253, witness_.read.get())), 0);
  ExpectRefused(&worker, Reason::INVALID_ARGUMENT, "cannot carry 253 fds");
  worker.Close();
  EXPECT_GE(closer_.closed, 253) << "by the closer, not by the loop: they could be the driver's";
  EXPECT_EQ(OpenFdCount(), before);
}

TEST_F(HandleSessionsTest, AFrameBeforeOpenIsRefused) {
  Start();
  Worker worker(path());
  ASSERT_EQ(worker.SendFetch(1), 0);
  ExpectRefused(&worker, Reason::INVALID_ARGUMENT, "must be Open");
}

TEST_F(HandleSessionsTest, AnotherVersionIsToldWhichOneIsSpoken) {
  Start();
  Worker body_says(path());
  wire::OpenBody open;
  open.min_version = 2;
  open.max_version = 3;
  ASSERT_EQ(body_says.Send(FrameType::kOpen, open, 0, {witness_.read.get()}), 0);
  ExpectRefused(&body_says, Reason::VERSION_MISMATCH, "2 to 3");
  Worker header_says(path());
  wire::FrameHeader header;
  header.type = FrameType::kOpen;
  header.version = 9;
  header.sequence = 1;
  ASSERT_EQ(SendFrame(header_says.fd(), EncodeFrame(header, open), {}, true), 0);
  ExpectRefused(&header_says, Reason::VERSION_MISMATCH, "speaks version 1");
}

TEST_F(HandleSessionsTest, ASilentConnectionIsRefusedAtItsDeadline) {
  options_.open_deadline = milliseconds(20);
  Start();
  Worker talker = OpenSession();
  Worker silent(path());
  ExpectRefused(&silent, Reason::DEADLINE, "within 20 ms");
  EXPECT_FALSE(talker.HasInput()) << "a session has no such deadline";
}

TEST_F(HandleSessionsTest, OneUidCannotOpenMoreThanItsShare) {
  options_.limits.for_each_uid = 1;
  Start();
  Worker first = OpenSession();
  Worker second(path());
  ASSERT_EQ(second.SendOpen({witness_.read.get()}), 0);  // is there before the connection is looked at
  ExpectRefused(&second, Reason::LIMIT, "the limit for each uid is 1");
  first.Close();
  RunUntil(&loop_, [&] { return Happened("socket 1"); });
  Worker third(path());
  ExpectRefused(&third, Reason::LIMIT, "the limit for each uid is 1");  // a session counts until it is forgotten
  sessions_->Forget(SessionId(1));
  Worker fourth = OpenSession();
}

TEST_F(HandleSessionsTest, OutOfDescriptorsForTheWitnessIsSaid) {
  Start();
  Worker worker(path());
  Settle(&loop_);  // accepted, with its pidfd
  ASSERT_EQ(worker.SendOpen({witness_.read.get()}), 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  Settle(&loop_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ExpectRefused(&worker, Reason::DESCRIPTORS, "LimitNOFILE");
  Worker next = OpenSession();
}

// --- frames of a session
// ----------------------------------------------------------------------------------------------

TEST_F(HandleSessionsTest, FramesReachTheManagerWithTheirValues) {
  struct Seen {
    std::uint64_t request_id = 0, handles_sequence = 0, lease = 0, mapped_lease = 0;
    std::uint32_t first = 0, count = 0, mapped_count = 0;
    std::vector<bool> imported;
    core::Access access{}, mapped{};
  } seen;
  events_.fetch = [&](SessionId, std::uint64_t request_id, LeaseId lease, std::uint32_t first, std::uint32_t count) {
    seen.request_id = request_id;
    seen.lease = lease.value();
    seen.first = first;
    seen.count = count;
  };
  events_.acknowledge = [&](SessionId, std::uint64_t sequence, const std::vector<bool>& imported, core::Access access) {
    seen.handles_sequence = sequence;
    seen.imported = imported;
    seen.access = access;
  };
  bool mapped = false;
  events_.mapping = [&](SessionId, LeaseId lease, std::uint32_t, std::uint32_t count, core::Access access) {
    seen.mapped_lease = lease.value();
    seen.mapped_count = count;
    seen.mapped = access;
    mapped = true;
  };
  Start();
  Worker worker = OpenSession();
  wire::FetchBody fetch;
  fetch.lease_id = 40;
  fetch.first = 2;
  fetch.count = 3;
  ASSERT_EQ(worker.Send(FrameType::kFetch, fetch, 77), 0);
  wire::AcknowledgeBody acknowledge;
  acknowledge.handles_sequence = 2;
  acknowledge.access = wire::MappedAccess::kReadOnly;
  acknowledge.imported[0] = 0x05;
  acknowledge.imported[31] = 0x10;
  ASSERT_EQ(worker.Send(FrameType::kAcknowledge, acknowledge), 0);
  wire::MappingBody mapping;
  mapping.lease_id = 41;
  mapping.count = 300;
  mapping.access = wire::MappedAccess::kReadWrite;
  ASSERT_EQ(worker.Send(FrameType::kMapping, mapping), 0);
  RunUntil(&loop_, [&] { return mapped; });
  EXPECT_EQ(seen.request_id, 77u);
  EXPECT_EQ(seen.lease, 40u);
  EXPECT_EQ(seen.first, 2u);
  EXPECT_EQ(seen.count, 3u);
  EXPECT_EQ(seen.handles_sequence, 2u);
  EXPECT_EQ(seen.access, core::Access::kReadOnly);
  ASSERT_EQ(seen.imported.size(), 253u);
  EXPECT_TRUE(seen.imported[0] && !seen.imported[1] && seen.imported[2] && seen.imported[252]);
  EXPECT_EQ(seen.mapped_lease, 41u);
  EXPECT_EQ(seen.mapped_count, 300u);
  EXPECT_EQ(seen.mapped, core::Access::kReadWrite);
}

TEST_F(HandleSessionsTest, ABreachOfTheProtocolClosesTheSocket) {
  options_.unanswered_fetches = 3;
  Start();
  const std::vector<std::function<void(Worker*)>> breaches = {
      [](Worker* w) {  // a sequence number left out
        w->SkipSequence();
        w->SendFetch(1);
      },
      [&](Worker* w) { w->SendOpen({}); },
      [](Worker* w) { w->Send(FrameType::kWelcome, wire::WelcomeBody()); },
      [](Worker* w) { w->Send(FrameType::kFetch, wire::FetchBody(), 1); },      // no chunk
      [](Worker* w) { w->Send(FrameType::kHandles, wire::HandlesBody{}, 1); },  // longer than any frame of a worker
      [](Worker* w) { ::send(w->fd(), "x", 1, 0); },
      [](Worker* w) {  // the same fetch twice
        w->SendFetch(1);
        w->SendFetch(1);
      },
      [](Worker* w) {  // one fetch too many
        for (std::uint64_t id = 1; id <= 4; ++id) w->SendFetch(id);
      },
  };
  for (std::size_t i = 0; i < breaches.size(); ++i) {
    SCOPED_TRACE("breach " + std::to_string(i));
    Worker worker = OpenSession();
    breaches[i](&worker);
    RunUntil(&loop_, [&] { return Happened("socket " + std::to_string(i + 1)); });
    EXPECT_TRUE(AtEnd(worker.fd()) || worker.last_error() == ECONNRESET);
  }
  Settle(&loop_);
  EXPECT_EQ(std::count(happened_.begin(), happened_.end(), "socket 1"), 1) << "reported once";
}

TEST_F(HandleSessionsTest, AnAnsweredFetchMakesRoomForAnother) {
  options_.unanswered_fetches = 2;
  Start();
  Worker worker = OpenSession();
  for (std::uint64_t id = 1; id <= 10; id += 2) {
    ASSERT_EQ(worker.SendFetch(id), 0);
    ASSERT_EQ(worker.SendFetch(id + 1), 0);
    Settle(&loop_);
    ASSERT_TRUE(sessions_->SendHandles(SessionId(1), Handles(1, id)).ok());
    ASSERT_TRUE(sessions_->SendFetchRefused(SessionId(1), id + 1, core::Error(Reason::UNKNOWN_LEASE, "no lease")).ok());
  }
  Settle(&loop_);
  EXPECT_FALSE(Happened("socket 1"));
}

TEST_F(HandleSessionsTest, FdsInASessionsFramesNeverStay) {
  Start();
  Worker worker = OpenSession();
  const std::size_t before = OpenFdCount();
  wire::FetchBody fetch;
  fetch.count = 1;
  // Linux 6.16 refuses to send them; on an older one the frame is a breach.
  const int error = worker.Send(FrameType::kFetch, fetch, 1, std::vector<int>(100, witness_.read.get()));
  if (error == 0) {
    RunUntil(&loop_, [&] { return Happened("socket 1"); });
    EXPECT_GE(closer_.closed, 100);
    EXPECT_EQ(OpenFdCount(), before - 1);
  } else {
    EXPECT_EQ(error, EPERM);
    Settle(&loop_);
    EXPECT_EQ(OpenFdCount(), before);
  }
}

// --- sending
// ----------------------------------------------------------------------------------------------------------

TEST_F(HandleSessionsTest, HandlesTravelWithTheirFds) {
  Start();
  Worker worker = OpenSession();
  const absl::StatusOr<std::uint64_t> sequence = sessions_->SendHandles(SessionId(1), Handles(3));
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  EXPECT_EQ(*sequence, 2u);  // after Welcome
  EXPECT_EQ(closer_.closed, 3) << "the daemon's copies are given to the closer once they are sent";
  std::vector<UniqueFd> fds;
  const std::optional<Frame> frame = worker.Receive(&fds);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.type, FrameType::kHandles);
  EXPECT_EQ(frame->header.sequence, 2u);
  EXPECT_EQ(frame->header.request_id, 5u);
  const auto& body = std::get<wire::HandlesBody>(frame->body);
  EXPECT_EQ(body.lease_id, 40u);
  EXPECT_EQ(body.entries[2].chunk_id, 102u);
  EXPECT_EQ(body.entries[2].generation, 7u);
  EXPECT_EQ(body.entries[2].bytes, 4096u);
  EXPECT_EQ(body.entries[2].index, 2u);
  EXPECT_EQ(body.entries[3].chunk_id, 0u);
  ASSERT_EQ(fds.size(), 3u);
  ASSERT_EQ(::write(witness_.write.get(), "w", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(fds[0].get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'w');
}

TEST_F(HandleSessionsTest, AFullFrameHas253Fds) {
  Start();
  Worker worker = OpenSession();
  ASSERT_TRUE(sessions_->SendHandles(SessionId(1), Handles(253)).ok());
  std::vector<UniqueFd> fds;
  ASSERT_TRUE(worker.Receive(&fds));
  EXPECT_EQ(fds.size(), 253u);
  for (const std::size_t count : {std::size_t{0}, std::size_t{254}}) {
    EXPECT_EQ(core::ReasonOf(sessions_->SendHandles(SessionId(1), Handles(count)).status()), Reason::INTERNAL);
  }
  manager::OutboundHandles uneven = Handles(2);
  uneven.fds.pop_back();
  EXPECT_EQ(core::ReasonOf(sessions_->SendHandles(SessionId(1), std::move(uneven)).status()), Reason::INTERNAL);
  EXPECT_FALSE(worker.HasInput());
}

TEST_F(HandleSessionsTest, ASlowReaderGetsWholeFramesOrNone) {
  Start();
  Worker worker = OpenSession();
  std::uint64_t sent = 0;
  absl::StatusOr<std::uint64_t> sequence;
  while ((sequence = sessions_->SendHandles(SessionId(1), Handles(4))).ok()) {
    ++sent;
    ASSERT_EQ(*sequence, sent + 1);
    ASSERT_LT(sent, 10'000u);
  }
  EXPECT_EQ(sequence.status().code(), absl::StatusCode::kResourceExhausted) << sequence.status();
  EXPECT_GT(sent, 0u);
  EXPECT_EQ(closer_.closed, static_cast<int>(4 * (sent + 1))) << "also the fds of the frame that was not sent";
  std::uint64_t received = 0;
  std::vector<UniqueFd> fds;
  while (const std::optional<Frame> frame = worker.Receive(&fds)) {
    ++received;
    EXPECT_EQ(frame->header.sequence, received + 1);
    EXPECT_EQ(fds.size(), 4u);
  }
  EXPECT_EQ(received, sent);
  sequence = sessions_->SendHandles(SessionId(1), Handles(4));
  ASSERT_TRUE(sequence.ok()) << "there is room again: " << sequence.status();
  EXPECT_EQ(*sequence, sent + 2) << "the frame that was not sent used no number";
}

TEST_F(HandleSessionsTest, RefusalsAndFencesCarryTheirReasons) {
  Start();
  Worker worker = OpenSession();
  ASSERT_TRUE(sessions_->SendFetchRefused(SessionId(1), 9, core::Error(Reason::UNKNOWN_LEASE, "no lease 40")).ok());
  std::optional<Frame> frame = worker.Receive();
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header.type, FrameType::kFetchRefused);
  EXPECT_EQ(frame->header.request_id, 9u);
  EXPECT_EQ(std::get<wire::RefusedBody>(frame->body).reason, static_cast<std::uint32_t>(Reason::UNKNOWN_LEASE));
  ASSERT_TRUE(sessions_->SendFenced(SessionId(1), core::QuarantineReason::kWriterFaulted, "illegal address").ok());
  frame = worker.Receive();
  ASSERT_TRUE(frame);
  EXPECT_EQ(std::get<wire::FencedBody>(frame->body).quarantine_reason, 2u);
  EXPECT_EQ(TextOf(std::get<wire::FencedBody>(frame->body).message), "illegal address");
}

TEST_F(HandleSessionsTest, WithoutASocketNothingIsSent) {
  Start();
  Worker worker = OpenSession();
  EXPECT_EQ(sessions_->SendHandles(SessionId(2), Handles(1)).status().code(), absl::StatusCode::kUnavailable);
  worker.Close();
  const absl::Status gone = sessions_->SendHandles(SessionId(1), Handles(1)).status();
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable) << "the peer is gone, and the loop does not know yet";
  EXPECT_FALSE(Happened("socket 1")) << "never from inside a send";
  RunUntil(&loop_, [&] { return Happened("socket 1"); });
  EXPECT_EQ(sessions_->SendFenced(SessionId(1), core::QuarantineReason::kOperator, "").code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(closer_.closed, 3) << "both frames' fds, and the socket";
}

TEST_F(HandleSessionsTest, CloseEndsTheSocketAndKeepsWatching) {
  Start();
  Worker worker = OpenSession();
  sessions_->Close(SessionId(1));
  EXPECT_TRUE(AtEnd(worker.fd()));
  sessions_->Close(SessionId(1));
  Settle(&loop_);
  EXPECT_TRUE(happened_.empty()) << "the manager closed it and needs no report";
  witness_.write.reset();
  RunUntil(&loop_, [&] { return Happened("witness 1"); });
}

// --- processes and their ends
// -----------------------------------------------------------------------------------------

// In a child: opens a session with a witness pipe of its own. Returns the pipe's write end, which must stay open.
int OpenSessionInChild(Worker* worker) {
  Pipe pipe;
  if (worker->SendOpen({pipe.read.get()}) != 0) ::_exit(90);
  pollfd input{worker->fd(), POLLIN, 0};
  ::poll(&input, 1, 20'000);
  if (!worker->Receive()) ::_exit(91);
  return pipe.write.release();
}

TEST_F(HandleSessionsTest, AKilledWorkerIsReportedByAllThree) {
  Start();
  Child child([&] {
    Worker worker(path());
    OpenSessionInChild(&worker);
    ::pause();
    return 0;
  });
  RunUntil(&loop_, [&] { return sessions_opened_ == 1; });
  Settle(&loop_);
  EXPECT_TRUE(happened_.empty());
  child.Kill();
  RunUntil(&loop_, [&] { return happened_.size() == 3; });
  EXPECT_TRUE(Happened("socket 1") && Happened("pidfd 1") && Happened("witness 1"));
  Settle(&loop_);
  EXPECT_EQ(happened_.size(), 3u) << "once each";
}

TEST_F(HandleSessionsTest, AForkedGrandchildKeepsTheWitnessUntilItEnds) {
  Start();
  Pipe pids;
  Child child([&] {
    Worker worker(path());
    OpenSessionInChild(&worker);
    const pid_t grandchild = ::fork();
    if (grandchild == 0) {
      ::pause();
      ::_exit(0);
    }
    if (::write(pids.write.get(), &grandchild, sizeof(grandchild)) != sizeof(grandchild)) return 1;
    ::pause();
    return 0;
  });
  RunUntil(&loop_, [&] { return sessions_opened_ == 1; });
  pid_t grandchild = 0;
  ASSERT_EQ(::read(pids.read.get(), &grandchild, sizeof(grandchild)), static_cast<ssize_t>(sizeof(grandchild)));
  child.Kill();
  RunUntil(&loop_, [&] { return Happened("pidfd 1"); });
  Settle(&loop_);
  EXPECT_FALSE(Happened("witness 1"));
  EXPECT_FALSE(Happened("socket 1")) << "the grandchild has the socket too";
  ::kill(grandchild, SIGKILL);
  RunUntil(&loop_, [&] { return Happened("witness 1") && Happened("socket 1"); });
}

TEST_F(HandleSessionsTest, ExecClosesTheWitnessWhileTheProcessLives) {
  Start();
  Child child([&] {
    Worker worker(path());
    OpenSessionInChild(&worker);
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    return 1;
  });
  RunUntil(&loop_, [&] { return Happened("witness 1") && Happened("socket 1"); });
  Settle(&loop_);
  EXPECT_FALSE(Happened("pidfd 1"));
  child.Kill();
  RunUntil(&loop_, [&] { return Happened("pidfd 1"); });
}

TEST_F(HandleSessionsTest, WhatIsWrittenIntoTheWitnessIsNoEvent) {
  Start();
  Worker worker = OpenSession();
  ASSERT_EQ(::write(witness_.write.get(), "noise", 5), 5);
  Settle(&loop_);
  EXPECT_TRUE(happened_.empty());
  witness_.write.reset();
  RunUntil(&loop_, [&] { return Happened("witness 1"); });
}

TEST_F(HandleSessionsTest, FramesSentBeforeTheEndStillCount) {
  Start();
  Worker worker = OpenSession();
  for (std::uint64_t id = 1; id <= 5; ++id) ASSERT_EQ(worker.SendFetch(id), 0);
  worker.Close();
  RunUntil(&loop_, [&] { return Happened("socket 1"); });
  EXPECT_EQ(happened_, (std::vector<std::string>{"fetch 1", "fetch 1", "fetch 1", "fetch 1", "fetch 1", "socket 1"}));
}

TEST_F(HandleSessionsTest, ASessionMayBeForgottenFromInsideItsOwnEvents) {
  events_.fetch = [this](SessionId session, std::uint64_t, LeaseId, std::uint32_t, std::uint32_t) {
    Note("fetch", session);
    sessions_->Forget(session);
  };
  events_.pidfd_readable = [this](SessionId session) {
    Note("pidfd", session);
    sessions_->Forget(session);
  };
  Start();
  Worker worker = OpenSession();
  ASSERT_EQ(worker.SendFetch(1), 0);
  ASSERT_EQ(worker.SendFetch(2), 0);
  RunUntil(&loop_, [&] { return Happened("fetch 1"); });
  Settle(&loop_);
  EXPECT_EQ(happened_.size(), 1u) << "nothing comes after Forget";
  Child child([&] {
    Worker inner(path());
    OpenSessionInChild(&inner);
    return 0;
  });
  RunUntil(&loop_, [&] { return Happened("pidfd 2"); });
  Settle(&loop_);
  EXPECT_EQ(happened_.back(), "pidfd 2");
}

TEST_F(HandleSessionsTest, ASessionBelongsToOneProcess) {
  Start();
  Worker worker = OpenSession();
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  const PeerIdentity self = *ReadPeer(ours.get());
  EXPECT_EQ(sessions_->CheckProcess(SessionId(1), self), ProcessMatch::kSame);
  EXPECT_EQ(sessions_->CheckProcess(SessionId(2), self), ProcessMatch::kNoSuchSession);
  Child child([&] {
    Worker inner(path());
    OpenSessionInChild(&inner);
    ::pause();
    return 0;
  });
  RunUntil(&loop_, [&] { return sessions_opened_ == 2; });
  EXPECT_EQ(sessions_->CheckProcess(SessionId(2), self), ProcessMatch::kOtherProcess);
  sessions_->Close(SessionId(1));
  EXPECT_EQ(sessions_->CheckProcess(SessionId(1), self), ProcessMatch::kSame);
  sessions_->Forget(SessionId(1));
  EXPECT_EQ(sessions_->CheckProcess(SessionId(1), self), ProcessMatch::kNoSuchSession);
}

TEST_F(HandleSessionsTest, ProcessesAreCheckedFromOtherThreadsWhileSessionsComeAndGo) {
  Start();
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  const PeerIdentity self = *ReadPeer(ours.get());
  std::atomic<bool> stop{false};
  std::thread checker([&] {
    for (std::uint64_t id = 1; !stop.load(); id = id % 20 + 1) {
      EXPECT_NE(sessions_->CheckProcess(SessionId(id), self), ProcessMatch::kOtherProcess);
    }
  });
  for (std::uint64_t id = 1; id <= 20; ++id) {
    Worker worker = OpenSession();
    sessions_->Forget(SessionId(id));
  }
  stop.store(true);
  checker.join();
}

TEST_F(HandleSessionsTest, NothingLeaks) {
  const std::size_t before = OpenFdCount();
  Start();
  {
    Worker open = OpenSession();
    Worker closed = OpenSession();
    Worker silent(path());
    closed.Close();
    Settle(&loop_);
    sessions_->StopAccepting();
    EXPECT_FALSE(Connect(path(), SOCK_SEQPACKET).valid());
    sessions_.reset();
  }
  EXPECT_EQ(OpenFdCount(), before);
}

}  // namespace
}  // namespace gpumem::session
