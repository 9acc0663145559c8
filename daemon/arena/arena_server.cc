#include "daemon/arena/arena_server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/seqpacket.h"
#include "daemon/core/reasons.h"

namespace gpumem::arena {
namespace {

using core::Reason;

std::uint32_t ReasonNumber(const absl::Status& status) { return static_cast<std::uint32_t>(core::ReasonOf(status)); }

absl::Status SocketResult(int error) {
  if (error == 0) return absl::OkStatus();
  return core::Error(Reason::INTERNAL, absl::StrCat("the socket to the front failed: ", std::strerror(error)));
}

absl::Status Broken(const std::string& why) {
  return core::Error(Reason::INTERNAL, absl::StrCat("the front broke the arena protocol: ", why));
}

}  // namespace

template <typename Body>
int ArenaServer::Send(ArenaFrame type, std::uint64_t request, const Body& body, const std::vector<int>& fds) {
  return SendFrame(socket_.get(), Encode(type, request, static_cast<std::uint32_t>(fds.size()), body), fds,
                   /*blocking=*/true);
}

void ArenaServer::SendFailed(const absl::Status& why) {
  FailedBody body;
  body.reason = ReasonNumber(why);
  SetText(body.message, std::string(why.message()));
  // The front may be gone already; then nobody needs the words.
  Send(ArenaFrame::kFailed, 0, body);
}

absl::Status ArenaServer::Serve(const HelloBody& hello) {
  if (const int error = Send(ArenaFrame::kHello, 0, hello); error != 0) {
    return error == EPIPE || error == ECONNRESET ? absl::OkStatus() : SocketResult(error);
  }
  std::vector<std::byte> buffer(kMaxArenaFrameBytes);
  for (;;) {
    ReceivedFrame frame;
    const int error = ReceiveFrame(socket_.get(), buffer, /*blocking=*/true, &frame);
    // The front's end is closed; with unread answers in it the kernel says ECONNRESET first.
    if (error == ECONNRESET || (error == 0 && frame.size == 0)) return absl::OkStatus();
    if (error != 0) return SocketResult(error);
    FixedHeader header;
    std::string why;
    const auto bytes = std::span<const std::byte>(buffer).first(frame.size);
    if (CheckFrame(kArenaFormat, bytes, frame.fds.size(), frame.truncated, &header, &why) != FrameCheck::kGood) {
      return Broken(why);
    }
    const absl::Status answered = Answer(header, bytes);
    if (!answered.ok()) return answered;
  }
}

absl::Status ArenaServer::Answer(const FixedHeader& header, std::span<const std::byte> bytes) {
  absl::Status result;
  switch (static_cast<ArenaFrame>(header.type)) {
    case ArenaFrame::kCreate:
      result = Create(header.request, DecodeBody<CreateBody>(bytes));
      break;
    case ArenaFrame::kFetch:
      result = Fetch(header.request, DecodeBody<ChunksBody>(bytes));
      break;
    case ArenaFrame::kClose:
      result = Close(header.request, DecodeBody<ChunksBody>(bytes));
      break;
    case ArenaFrame::kMemory:
      result = Memory(header.request);
      break;
    default:
      return Broken(absl::StrCat("a frame of type ", header.type, " is not for an arena"));
  }
  return result;
}

absl::Status ArenaServer::CreateChunk(const CreateEntry& entry) {
  if (entry.chunk_id == 0 || entry.bytes == 0 || chunks_.contains(entry.chunk_id)) {
    return core::Error(Reason::INVALID_ARGUMENT, absl::StrCat("chunk id ", entry.chunk_id, " with ", entry.bytes,
                                                              " bytes is zero or was used before"));
  }
  absl::StatusOr<UniqueFd> fd = memory_->Create(entry.bytes);
  if (!fd.ok()) return fd.status();
  chunks_.emplace(entry.chunk_id, *std::move(fd));
  return absl::OkStatus();
}

absl::Status ArenaServer::Create(std::uint64_t request, const CreateBody& asked) {
  if (!Plausible(asked)) return Broken("a Create has counts out of range");
  CreatedBody answer;
  answer.count = asked.count;
  std::vector<int> fds;
  for (; answer.good < asked.count; ++answer.good) {
    const CreateEntry& entry = asked.entries[answer.good];
    const absl::Status created = CreateChunk(entry);
    if (!created.ok()) {
      if (core::ReasonOf(created) == Reason::INTERNAL) return created;
      answer.reason = ReasonNumber(created);
      SetText(answer.message, std::string(created.message()));
      break;
    }
    if (fds.size() < asked.want_fds) fds.push_back(chunks_.at(entry.chunk_id).get());
  }
  const int error = Send(ArenaFrame::kCreated, request, answer, fds);
  if (error != ETOOMANYREFS) return SocketResult(error);
  // The answer cannot travel as it is, so nothing of it may stand.
  for (std::uint32_t i = 0; i < answer.good; ++i) chunks_.erase(asked.entries[i].chunk_id);
  answer.good = 0;
  answer.reason = static_cast<std::uint32_t>(Reason::DESCRIPTORS);
  SetText(answer.message,
          absl::StrCat("the kernel refused to send ", fds.size(),
                       " descriptors (ETOOMANYREFS): too many are in flight for this user; raise LimitNOFILE"));
  return SocketResult(Send(ArenaFrame::kCreated, request, answer));
}

absl::Status ArenaServer::Fetch(std::uint64_t request, const ChunksBody& asked) {
  if (!Plausible(asked)) return Broken("a Fetch has counts out of range");
  FetchedBody answer;
  std::vector<int> fds;
  for (std::uint32_t i = 0; i < asked.count; ++i) {
    const auto it = chunks_.find(asked.chunk_ids[i]);
    if (it == chunks_.end()) {
      answer.reason = static_cast<std::uint32_t>(Reason::HANDLE_LOST);
      SetText(answer.message, absl::StrCat("the arena has no chunk ", asked.chunk_ids[i]));
      fds.clear();
      break;
    }
    fds.push_back(it->second.get());
  }
  const int error = Send(ArenaFrame::kFetched, request, answer, fds);
  if (error != ETOOMANYREFS) return SocketResult(error);
  answer.reason = static_cast<std::uint32_t>(Reason::DESCRIPTORS);
  SetText(answer.message,
          absl::StrCat("the kernel refused to send ", fds.size(),
                       " descriptors (ETOOMANYREFS): too many are in flight for this user; raise LimitNOFILE"));
  return SocketResult(Send(ArenaFrame::kFetched, request, answer));
}

absl::Status ArenaServer::Close(std::uint64_t request, const ChunksBody& asked) {
  if (!Plausible(asked)) return Broken("a Close has counts out of range");
  ClosedBody answer;
  answer.count = asked.count;
  for (std::uint32_t i = 0; i < asked.count; ++i) {
    // Erasing closes: when the answer is sent the driver has been through it.
    const bool had = chunks_.erase(asked.chunk_ids[i]) == 1;
    answer.reasons[i] = had ? 0 : static_cast<std::uint32_t>(Reason::HANDLE_LOST);
  }
  return SocketResult(Send(ArenaFrame::kClosed, request, answer));
}

absl::Status ArenaServer::Memory(std::uint64_t request) {
  MemoryIsBody answer;
  const absl::StatusOr<MemoryReading> reading = memory_->Memory();
  if (reading.ok()) {
    answer.total_bytes = reading->total_bytes;
    answer.used_bytes = reading->used_bytes;
  } else {
    answer.reason = ReasonNumber(reading.status());
    SetText(answer.message, std::string(reading.status().message()));
  }
  return SocketResult(Send(ArenaFrame::kMemoryIs, request, answer));
}

}  // namespace gpumem::arena
