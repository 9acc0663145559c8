// daemon/manager/grants.cc: the steps of a grant, and its way back from each of them.
#include "daemon/manager/grants.h"

#include <algorithm>
#include <map>
#include <utility>

#include "daemon/text.h"
#include "proto/gpumem/v1/handle_frames.h"

namespace gpumem::manager {

using core::Error;
using core::Evidence;
using core::LeaseKind;
using core::PlannedChunk;
using core::QuarantineReason;
using core::Reason;
using core::ReasonOf;
using core::Transitions;

struct Grants::Job {
  SessionPtr session;
  std::uint64_t request_id = 0;
  LeaseKind kind = LeaseKind::kPrivate;
  std::string segment;
  core::Reservation lease;
  std::vector<DeviceUuid> devices;  // each once
  std::vector<HandleFd> fds;        // of the first chunks: to be pushed
  std::uint32_t frames = 0;         // reserved in the session's window
  std::size_t waiting = 0;          // answers that are missing
  std::size_t kept = 0;             // chunks that the keeper has, or may have
  Transitions moves;                // not yet in the journal
  absl::Status failure;             // the first one

  void Fail(const absl::Status& why) {
    if (failure.ok()) failure = why;
  }
};

absl::StatusOr<Grant> GrantOf(const core::Books& books, LeaseId lease, Bytes asked, Bytes charged,
                              std::uint32_t pushed) {
  absl::StatusOr<std::vector<core::ChunkView>> chunks = books.LeaseChunks(lease);
  if (!chunks.ok()) return chunks.status();
  return Grant{lease, asked, charged, *std::move(chunks), pushed};
}

namespace {

// What the caller can do about a chunk that was not created.
const char* NextStep(Reason reason) {
  switch (reason) {
    case Reason::DRIVER_OUT_OF_MEMORY:
      return "something outside these books uses the device's memory (memctl devices shows it as unattributed); free "
             "some, then send the same request again";
    case Reason::DEVICE_UNAVAILABLE:
      return "its arena is being restarted; send the same request again";
    case Reason::DESCRIPTORS:
      return "raise LimitNOFILE of the daemon, then send the same request again";
    default:
      return "the daemon's log has more; send the same request again";
  }
}

absl::Status NotCreated(const PlannedChunk& chunk, std::size_t index, std::size_t count, const absl::Status& why) {
  core::ErrorDetails details = core::DetailsOf(why);
  details["device_uuid"] = chunk.device.ToString();
  return Error(ReasonOf(why),
               Cat("chunk ", index, " of ", count, " (", chunk.bytes.value(), " bytes) was not created on ",
                   chunk.device.ToString(), ": ", why.message(), "; nothing was granted; ", NextStep(ReasonOf(why))),
               details);
}

}  // namespace

absl::StatusOr<core::Reservation> Grants::Plan(const Request& request, Transitions* moves) {
  if (context_.draining) {
    return Error(Reason::DRAINING, "the daemon is stopping and grants nothing new; ask the daemon that follows it");
  }
  if (request.kind == LeaseKind::kSegment && !context_.keeper_connected) {
    return Error(Reason::KEEPER_UNAVAILABLE,
                 Cat("segment '", request.segment,
                     "' needs the keeper, which is not connected now; send the same request again later"));
  }
  return context_.books.Reserve(request.session->id, request.holder, request.kind, request.segment, request.specs,
                                context_.Now(), moves);
}

void Grants::Start(const Request& request) {
  auto job = std::make_shared<Job>();
  job->session = request.session;
  job->request_id = request.request_id;
  job->kind = request.kind;
  job->segment = request.segment;
  Transitions moves;
  absl::StatusOr<core::Reservation> lease = Plan(request, &moves);
  if (!lease.ok()) {
    context_.Post([job, why = lease.status()] { job->session->requests.Finish<Grant>(job->request_id, why); });
    return;
  }
  job->lease = *std::move(lease);
  for (const PlannedChunk& chunk : job->lease.chunks) {
    if (std::find(job->devices.begin(), job->devices.end(), chunk.device) == job->devices.end()) {
      job->devices.push_back(chunk.device);
    }
  }
  under_way_.insert(job->lease.lease);
  for (const DeviceUuid& device : job->devices) context_.BeginWork(device);
  context_.Record(std::move(moves), [this, job](const absl::Status& recorded) {
    job->Fail(recorded);
    job->Fail(context_.books.CheckLive(job->session->id));
    if (!job->failure.ok()) return NothingAsked(job);
    Create(job);
  });
}

// Nothing was asked of the driver, so it made nothing.
void Grants::NothingAsked(const JobPtr& job) {
  for (const PlannedChunk& chunk : job->lease.chunks) {
    context_.Expect(context_.books.NotCreated(chunk.chunk, Evidence::kDriverFailed, &job->moves),
                    Cat("chunk ", chunk.chunk.value(), " given back before it was created"));
  }
  RollBack(job);
}

void Grants::Create(const JobPtr& job) {
  const std::vector<PlannedChunk>& chunks = job->lease.chunks;
  constexpr std::size_t kFrame = wire::kMaxFdsPerFrame;
  job->frames = deliveries_.ReserveFrames(*job->session, (chunks.size() + kFrame - 1) / kFrame);
  const std::size_t pushed = std::min(chunks.size(), job->frames * kFrame);
  job->fds.resize(pushed);
  job->waiting = job->devices.size();
  for (const DeviceUuid& device : job->devices) {
    std::vector<ArenaChunk> wanted;
    std::vector<std::size_t> indices;
    std::uint32_t want_fds = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].device != device) continue;
      wanted.push_back({chunks[i].chunk, chunks[i].bytes});
      indices.push_back(i);
      if (i < pushed) ++want_fds;
    }
    context_.ports.arenas->Create(device, std::move(wanted), want_fds,
                                  [this, job, device, indices, want_fds](absl::StatusOr<ArenaCreated> answer) {
                                    OnCreated(job, device, indices, want_fds, std::move(answer));
                                  });
  }
}

void Grants::OnCreated(const JobPtr& job, const DeviceUuid& device, const std::vector<std::size_t>& indices,
                       std::uint32_t wanted, absl::StatusOr<ArenaCreated> answer) {
  const std::vector<PlannedChunk>& chunks = job->lease.chunks;
  // A call that failed as a whole failed because the arena is gone, and all that it held went with it.
  const Evidence evidence =
      ReasonOf(answer.status()) == Reason::DEVICE_UNAVAILABLE ? Evidence::kArenaEnded : Evidence::kDriverFailed;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const PlannedChunk& chunk = chunks[indices[i]];
    absl::Status made = answer.status();
    bool exists = false;
    if (answer.ok() && i < answer->chunks.size()) {
      made = answer->chunks[i];
      exists = made.ok();
    } else if (answer.ok()) {
      // Not told: it may exist, so it stays charged until its close is answered or the arena ends.
      made =
          Error(Reason::INTERNAL, Cat("the arena answered ", answer->chunks.size(), " of ", indices.size(), " chunks"));
      exists = true;
    }
    if (!made.ok()) job->Fail(NotCreated(chunk, indices[i], chunks.size(), made));
    const absl::Status booked = exists ? context_.books.Created(chunk.chunk, &job->moves)
                                       : context_.books.NotCreated(chunk.chunk, evidence, &job->moves);
    context_.Expect(booked, Cat("the answer for chunk ", chunk.chunk.value(), " of ", device.ToString()));
    job->Fail(booked);
  }
  if (answer.ok() && job->failure.ok()) {
    for (std::size_t i = 0; i < answer->fds.size() && i < wanted; ++i) {
      job->fds[indices[i]] = std::move(answer->fds[i]);
    }
  }
  if (--job->waiting > 0) return;
  job->Fail(context_.books.CheckLive(job->session->id));
  if (!job->failure.ok()) return RollBack(job);
  if (job->kind == LeaseKind::kSegment) return KeepNext(job);
  Commit(job);
}

// One batch of fds from an arena to the keeper: the front never holds more of them than one frame carries.
void Grants::KeepNext(const JobPtr& job) {
  const std::vector<PlannedChunk>& chunks = job->lease.chunks;
  job->Fail(context_.books.CheckLive(job->session->id));
  if (!job->failure.ok()) return RollBack(job);
  if (job->kept == chunks.size()) return Commit(job);
  const DeviceUuid device = chunks[job->kept].device;
  std::vector<ChunkId> ids;
  for (std::size_t i = job->kept; i < chunks.size() && ids.size() < wire::kMaxFdsPerFrame; ++i) {
    if (chunks[i].device != device) break;
    ids.push_back(chunks[i].chunk);
  }
  const std::size_t count = ids.size();
  context_.ports.arenas->Fetch(device, std::move(ids),
                               [this, job, count](absl::StatusOr<std::vector<HandleFd>> answer) {
                                 if (!answer.ok()) {
                                   job->Fail(answer.status());
                                   return RollBack(job);
                                 }
                                 PutBatch(job, count, *std::move(answer));
                               });
}

void Grants::PutBatch(const JobPtr& job, std::size_t count, std::vector<HandleFd> fds) {
  if (fds.size() != count) {
    job->Fail(Error(Reason::INTERNAL, Cat("asked the arena for ", count, " handles, got ", fds.size())));
  }
  if (!context_.keeper_connected) {
    job->Fail(Error(Reason::KEEPER_UNAVAILABLE, Cat("the keeper went away while segment '", job->segment,
                                                    "' was made; nothing was granted; send the same request again")));
  }
  job->Fail(context_.books.CheckLive(job->session->id));
  if (!job->failure.ok()) {
    fds.clear();
    return RollBack(job);
  }
  job->waiting = count;
  for (std::size_t i = 0; i < count; ++i) {
    const PlannedChunk& chunk = job->lease.chunks[job->kept + i];
    // From here on the keeper may have it, so the books say so: no charge may end while a PUT is on its way.
    const absl::Status booked = context_.books.Kept(chunk.chunk);
    context_.Expect(booked, Cat("chunk ", chunk.chunk.value(), " on its way to the keeper"));
    job->Fail(booked);
    context_.ports.keeper->Put({errands_.NameOf(chunk.chunk), chunk.device, chunk.bytes}, std::move(fds[i]),
                               [this, job, id = chunk.chunk](const absl::Status& answer) { OnPut(job, id, answer); });
  }
  job->kept += count;
}

void Grants::OnPut(const JobPtr& job, ChunkId chunk, const absl::Status& answer) {
  job->Fail(answer);
  // A keeper that went away may have stored it before: that is known only when it is back. Any other error is the
  // keeper's own word that it did not.
  if (!answer.ok() && ReasonOf(answer) != Reason::KEEPER_UNAVAILABLE) {
    const absl::StatusOr<core::ChunkView> view = context_.books.Chunk(chunk);
    if (view.ok() && view->at_keeper) {
      context_.Expect(context_.books.DropKeeperReference(chunk, Evidence::kKeeperDeleted, context_.Now(), &job->moves),
                      Cat("chunk ", chunk.value(), " refused by the keeper"));
    }
  }
  if (--job->waiting > 0) return;
  if (!job->failure.ok()) return RollBack(job);
  KeepNext(job);
}

absl::Status Grants::CheckInPlace(const JobPtr& job) const {
  if (absl::Status live = context_.books.CheckLive(job->session->id); !live.ok()) return live;
  const absl::StatusOr<std::vector<core::ChunkView>> chunks = context_.books.LeaseChunks(job->lease.lease);
  if (!chunks.ok()) return chunks.status();
  for (const core::ChunkView& view : *chunks) {
    if (job->kind == LeaseKind::kSegment && !view.at_keeper) {
      return Error(Reason::KEEPER_UNAVAILABLE,
                   Cat("the keeper lost chunk ", view.index, " of segment '", job->segment,
                       "' while it was made; nothing was granted; send the same request again"));
    }
    if (job->kind == LeaseKind::kPrivate && !view.at_arena) {
      return Error(Reason::DEVICE_UNAVAILABLE,
                   Cat("the arena of ", view.device.ToString(), " ended during the grant; nothing was granted; ",
                       NextStep(Reason::DEVICE_UNAVAILABLE)));
    }
  }
  return absl::OkStatus();
}

void Grants::Commit(const JobPtr& job) {
  job->Fail(CheckInPlace(job));
  if (!job->failure.ok()) return RollBack(job);
  context_.Record(std::exchange(job->moves, {}), [this, job](const absl::Status& recorded) {
    job->Fail(recorded);
    job->Fail(CheckInPlace(job));
    if (!job->failure.ok()) return RollBack(job);
    Deliver(job);
  });
}

void Grants::Deliver(const JobPtr& job) {
  absl::StatusOr<std::vector<core::ChunkView>> chunks = context_.books.LeaseChunks(job->lease.lease);
  if (!chunks.ok()) {  // checked just before
    job->Fail(chunks.status());
    return RollBack(job);
  }
  job->fds.erase(std::find_if(job->fds.begin(), job->fds.end(), [](const HandleFd& fd) { return !fd.valid(); }),
                 job->fds.end());
  deliveries_.ReturnFrames(*job->session, std::exchange(job->frames, 0));
  const std::uint32_t pushed = deliveries_.Push(*job->session, job->request_id, *chunks, std::move(job->fds));
  if (job->kind == LeaseKind::kSegment) {
    core::ReleaseWork leftovers;  // the keeper has them now
    for (const core::ChunkView& view : *chunks) {
      if (view.at_arena) leftovers.close_at_arena.push_back(view.chunk);
    }
    errands_.RunOnly(leftovers, std::nullopt);
  }
  const std::string what =
      job->kind == LeaseKind::kSegment ? Cat("segment '", job->segment, "' is building as ") : std::string();
  context_.Debug(Cat("session ", job->session->id.value(), ": ", what, "lease ", job->lease.lease.value(), ", ",
                     core::FormatBytes(job->lease.charged), " in ", chunks->size(), " chunks, ", pushed, " pushed"));
  Finish(job, GrantOf(context_.books, job->lease.lease, job->lease.asked, job->lease.charged, pushed));
}

void Grants::RollBack(const JobPtr& job) {
  job->fds.clear();
  deliveries_.ReturnFrames(*job->session, std::exchange(job->frames, 0));
  core::ReleaseWork work;
  absl::StatusOr<core::ReleaseWork> rolled_back = context_.books.Rollback(job->lease.lease, &job->moves);
  if (rolled_back.ok()) {
    work = *std::move(rolled_back);
  } else if (ReasonOf(rolled_back.status()) != Reason::UNKNOWN_LEASE) {  // unknown: its last chunk was given back
    context_.Expect(rolled_back.status(), Cat("rolling lease ", job->lease.lease.value(), " back"));
  }
  context_.Info(Cat("session ", job->session->id.value(), ": grant of ", core::FormatBytes(job->lease.charged),
                    " rolled back: ", job->failure.message()));
  context_.Record(std::exchange(job->moves, {}), [this, job, work](const absl::Status& recorded) {
    context_.Expect(recorded, "recording a rollback in the journal");
    errands_.Run(work, QuarantineReason::kRollbackFailed, Tally(),
                 [this, job](const Tally&) { Finish(job, job->failure); });
  });
}

void Grants::Finish(const JobPtr& job, const absl::StatusOr<Grant>& answer) {
  under_way_.erase(job->lease.lease);
  for (const DeviceUuid& device : job->devices) context_.EndWork(device);
  RequestTable::Replay<Grant> replay;
  if (answer.ok()) {
    // Only the numbers are remembered: the chunks of a large lease are read from the books again.
    replay = [this, lease = answer->lease, asked = answer->asked, charged = answer->charged, pushed = answer->pushed] {
      absl::StatusOr<Grant> again = GrantOf(context_.books, lease, asked, charged, pushed);
      if (again.ok()) return again;
      return absl::StatusOr<Grant>(
          Error(Reason::ALREADY_RELEASED, Cat("this request was granted as lease ", lease.value(),
                                              ", which was released since; use a new request id")));
    };
  }
  job->session->requests.Finish<Grant>(job->request_id, answer, std::move(replay));
}

}  // namespace gpumem::manager
