// daemon/manager/deliveries.cc: pushing, fetching and acknowledging frames of handles.
#include "daemon/manager/deliveries.h"
#include "daemon/text.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gpumem::manager {

using core::ChunkState;
using core::ChunkView;
using core::Error;
using core::Reason;

// One fetch that is under way.
struct Deliveries::Job {
  SessionPtr session;
  std::uint64_t request_id = 0;
  LeaseId lease;
  std::vector<ChunkView> chunks;
  std::vector<HandleFd> fds;
  std::size_t waiting = 0;
  absl::Status failure;
};

std::uint32_t Deliveries::ReserveFrames(SessionRecord& session, std::size_t wanted) {
  const std::size_t used = session.unacknowledged.size() + session.reserved_frames;
  const std::size_t window = context_.options.unacknowledged_frames;
  const auto frames = static_cast<std::uint32_t>(std::min(wanted, window - std::min(used, window)));
  session.reserved_frames += frames;
  return frames;
}

std::uint32_t Deliveries::Push(SessionRecord& session, std::uint64_t request_id, const std::vector<ChunkView>& chunks,
                               std::vector<HandleFd> fds) {
  std::size_t sent = 0;
  while (sent < fds.size()) {
    const std::size_t count = std::min<std::size_t>(wire::kMaxFdsPerFrame, fds.size() - sent);
    const auto at = static_cast<std::ptrdiff_t>(sent);
    const auto end = at + static_cast<std::ptrdiff_t>(count);
    const std::vector<ChunkView> frame(chunks.begin() + at, chunks.begin() + end);
    std::vector<HandleFd> frame_fds(std::make_move_iterator(fds.begin() + at),
                                    std::make_move_iterator(fds.begin() + end));
    const absl::Status status = Send(session, request_id, frame, std::move(frame_fds));
    if (!status.ok()) {
      context_.Debug(Cat("session ", session.id.value(), ": pushed ", sent, " of ", fds.size(), " handles of request ",
                         request_id, ": ", status.message()));
      break;
    }
    sent += count;
  }
  return static_cast<std::uint32_t>(sent);
}

absl::Status Deliveries::Send(SessionRecord& session, std::uint64_t request_id, const std::vector<ChunkView>& chunks,
                              std::vector<HandleFd> fds) {
  OutboundHandles handles;
  handles.request_id = request_id;
  handles.lease = chunks.front().lease;
  std::vector<ChunkId> ids;
  for (const ChunkView& view : chunks) {
    handles.chunks.push_back({view.chunk, view.generation, view.bytes, view.index});
    ids.push_back(view.chunk);
  }
  handles.fds = std::move(fds);
  const absl::StatusOr<std::uint64_t> sequence = context_.ports.channels->SendHandles(session.id, std::move(handles));
  if (!sequence.ok()) return sequence.status();
  // A reader's reference is its attachment; only the owner's is kept chunk by chunk.
  const absl::StatusOr<SessionId> owner = context_.books.OwnerOf(chunks.front().lease);
  if (owner.ok() && *owner == session.id) {
    for (const ChunkId chunk : ids) {
      context_.Expect(context_.books.Sent(chunk), Cat("chunk ", chunk.value(), " sent to its worker"));
    }
  }
  session.unacknowledged.emplace(*sequence, std::move(ids));
  return absl::OkStatus();
}

absl::Status Deliveries::CheckFetchLimits(const SessionRecord& session, std::uint32_t count) const {
  if (count == 0) return Error(Reason::INVALID_ARGUMENT, "a fetch of 0 chunks; ask for 1 to 253");
  if (session.fetches >= kMaxFetches) {
    return Error(Reason::LIMIT, Cat(session.fetches, " fetches of this session are under way; the limit is ",
                                    kMaxFetches, "; wait for an answer, then fetch again"));
  }
  // Grants and fetches under way may each end in a frame of their own.
  if (session.unacknowledged.size() + session.fetches >= kMaxUnacknowledged) {
    return Error(Reason::LIMIT, Cat(session.unacknowledged.size(), " frames are not acknowledged; the limit is ",
                                    kMaxUnacknowledged, "; acknowledge them, then fetch again"));
  }
  return absl::OkStatus();
}

namespace {

// Where the handle of a chunk can be had.
enum class Place { kKeeper, kArena, kNowhere };
Place PlaceOf(const ChunkView& view) {
  return view.at_keeper ? Place::kKeeper : view.at_arena ? Place::kArena : Place::kNowhere;
}

absl::Status NoHandle(const ChunkView& view) {
  const std::string chunk = Cat("chunk ", view.index, " of lease ", view.lease.value());
  if (view.state == ChunkState::kLive) {
    return Error(Reason::HANDLE_LOST,
                 Cat(chunk,
                     " was imported and acknowledged by this session before, so the daemon has let its "
                     "handle go; map the import that you have"));
  }
  return Error(Reason::HANDLE_LOST,
               Cat("the handle of ", chunk, " (", view.bytes.value(), " bytes on ", view.device.ToString(), ", ",
                   core::ToString(view.state), ") was lost; release the lease and allocate again"));
}

// The longest run of chunks from the first on whose handles come from one place in one request.
void KeepOnePlace(std::vector<ChunkView>* views) {
  const ChunkView first = views->front();
  const auto other = std::find_if(views->begin(), views->end(), [&first](const ChunkView& view) {
    return PlaceOf(view) != PlaceOf(first) || (PlaceOf(first) == Place::kArena && view.device != first.device);
  });
  views->erase(other, views->end());
}

}  // namespace

void Deliveries::Fetch(const SessionPtr& session, std::uint64_t request_id, LeaseId lease, std::uint32_t first,
                       std::uint32_t count) {
  auto job = std::make_shared<Job>();
  job->session = session;
  job->request_id = request_id;
  job->lease = lease;
  absl::Status refused = CheckFetchLimits(*session, count);
  ++session->fetches;
  if (!refused.ok()) return Refuse(job, refused);
  absl::StatusOr<std::vector<ChunkView>> views =
      context_.books.CheckFetch(session->id, lease, first, std::min<std::uint32_t>(count, wire::kMaxFdsPerFrame));
  if (!views.ok()) return Refuse(job, views.status());
  if (views->empty()) return Refuse(job, Error(Reason::INTERNAL, "the books allowed a fetch of no chunk"));
  job->chunks = *std::move(views);
  KeepOnePlace(&job->chunks);
  switch (PlaceOf(job->chunks.front())) {
    case Place::kNowhere:
      return Refuse(job, NoHandle(job->chunks.front()));
    case Place::kArena:
      return FetchFromArena(job);
    case Place::kKeeper:
      return FetchFromKeeper(job);
  }
}

void Deliveries::FetchFromArena(const JobPtr& job) {
  std::vector<ChunkId> ids;
  for (const ChunkView& view : job->chunks) ids.push_back(view.chunk);
  context_.ports.arenas->Fetch(job->chunks.front().device, std::move(ids),
                               [this, job](absl::StatusOr<std::vector<HandleFd>> answer) {
                                 if (!answer.ok()) return Refuse(job, answer.status());
                                 job->fds = *std::move(answer);
                                 Deliver(job);
                               });
}

void Deliveries::FetchFromKeeper(const JobPtr& job) {
  if (!context_.keeper_connected) {
    return Refuse(job, Error(Reason::KEEPER_UNAVAILABLE,
                             Cat("lease ", job->lease.value(),
                                 " is kept by the keeper, which is not connected now; fetch again later")));
  }
  job->fds.resize(job->chunks.size());
  job->waiting = job->chunks.size();
  for (std::size_t i = 0; i < job->chunks.size(); ++i) {
    context_.ports.keeper->Get(errands_.NameOf(job->chunks[i].chunk), [this, job, i](absl::StatusOr<HandleFd> answer) {
      if (answer.ok()) {
        job->fds[i] = *std::move(answer);
      } else if (job->failure.ok()) {
        job->failure = answer.status();
      }
      if (--job->waiting > 0) return;
      if (!job->failure.ok()) return Refuse(job, job->failure);
      Deliver(job);
    });
  }
}

void Deliveries::Deliver(const JobPtr& job) {
  SessionRecord& session = *job->session;
  if (job->fds.size() != job->chunks.size()) {
    return Refuse(job,
                  Error(Reason::INTERNAL, Cat("asked for ", job->chunks.size(), " handles, got ", job->fds.size())));
  }
  // The session may have been fenced, or the lease given back, while the handles were on their way here.
  const absl::StatusOr<std::vector<ChunkView>> now = context_.books.CheckFetch(
      session.id, job->lease, job->chunks.front().index, static_cast<std::uint32_t>(job->chunks.size()));
  if (!now.ok()) return Refuse(job, now.status());
  for (std::size_t i = 0; i < job->chunks.size(); ++i) {
    if (i >= now->size() || (*now)[i].chunk != job->chunks[i].chunk) {
      return Refuse(job, Error(Reason::STALE_GENERATION,
                               Cat("lease ", job->lease.value(), " changed during the fetch; fetch again")));
    }
  }
  const absl::Status sent = Send(session, job->request_id, job->chunks, std::move(job->fds));
  if (!sent.ok()) {
    return Refuse(job, Error(Reason::LIMIT, Cat("the handles do not fit the socket now (", sent.message(),
                                                "); receive and acknowledge what is there, then fetch again")));
  }
  --session.fetches;
}

void Deliveries::Refuse(const JobPtr& job, const absl::Status& why) {
  job->fds.clear();
  --job->session->fetches;
  const absl::Status sent = context_.ports.channels->SendFetchRefused(job->session->id, job->request_id, why);
  if (!sent.ok()) {
    context_.Debug(Cat("session ", job->session->id.value(), ": the refusal of fetch ", job->request_id,
                       " was not sent: ", sent.message()));
  }
}

void Deliveries::Acknowledge(SessionRecord& session, std::uint64_t sequence, const std::vector<bool>& imported,
                             core::Access access) {
  const auto it = session.unacknowledged.find(sequence);
  if (it == session.unacknowledged.end()) {
    context_.Warn(Cat("session ", session.id.value(), ": acknowledgement of frame ", sequence,
                      ", which is not waiting for one; ignored"));
    return;
  }
  const std::vector<ChunkId> chunks = std::move(it->second);
  session.unacknowledged.erase(it);
  core::Transitions moves;
  core::ReleaseWork work;
  for (std::size_t i = 0; i < chunks.size() && i < imported.size(); ++i) {
    if (!imported[i]) continue;
    const absl::Status status = context_.books.Acknowledge(session.id, chunks[i], access, &moves);
    if (!status.ok()) {
      context_.Debug(Cat("session ", session.id.value(), ": acknowledgement of chunk ", chunks[i].value(),
                         " ignored: ", status.message()));
      continue;
    }
    const absl::StatusOr<ChunkView> view = context_.books.Chunk(chunks[i]);
    // From here on the worker's own import is the only reference of a private chunk.
    if (view.ok() && view->at_arena && view->state == ChunkState::kLive) work.close_at_arena.push_back(chunks[i]);
  }
  context_.RecordOnly(std::move(moves));
  errands_.RunOnly(work, std::nullopt);
}

}  // namespace gpumem::manager
