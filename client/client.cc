#include "client/client.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/device_uuid.h"
#include "client/event_queue.h"

namespace gpumem::client {
namespace {

// GPUMEM_ACCESS_* of gpumem.h and MappedAccess of the frames are the same numbers.
constexpr std::int32_t kAccessNone = 0;
constexpr std::int32_t kAccessReadOnly = 1;

// Undoing a grant is worth a short wait; a daemon that does not answer settles it when the session ends.
constexpr std::chrono::milliseconds kUndoTimeout{2'000};
// More calls than this without an answer in time are left to the session's end.
constexpr std::size_t kMostUnanswered = 64;

std::uint64_t RandomStart() {
  std::uint64_t value = 0;
  if (::getrandom(&value, sizeof(value), GRND_NONBLOCK) != sizeof(value)) value = std::random_device()();
  return value;
}

std::string Hex(const std::uint8_t (&bytes)[16]) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 0xf]);
  }
  return text;
}

Status Forked() {
  return Error(Reason::FORKED, "this process was forked from the one that connected; call gpumem_connect here");
}

Status ClosedError() { return Error(Reason::DISCONNECTED, "the client was closed"); }

bool AllUnmapped(const std::vector<Outcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(), [](Outcome outcome) { return outcome == Outcome::kUnmapped; });
}

Status CheckName(std::string_view name, const char* what) {
  if (name.empty()) return Error(Reason::NAME_INVALID, std::string("the ") + what + " name is empty");
  if (ValidUtf8(name)) return {};
  return Error(Reason::NAME_INVALID, std::string("the ") + what + " name is not UTF-8: " + CleanUtf8(name));
}

// Frames of a request are kept for this scope.
class Expectation {
 public:
  Expectation(HandleChannel* channel, std::uint64_t request_id) : channel_(channel), request_id_(request_id) {
    channel_->Expect(request_id_);
  }
  ~Expectation() { channel_->Forget(request_id_, DeadlineAfter(kUndoTimeout)); }
  Expectation(const Expectation&) = delete;
  Expectation& operator=(const Expectation&) = delete;

 private:
  HandleChannel* const channel_;
  const std::uint64_t request_id_;
};

}  // namespace

Client::Client(const ClientOptions& options) : options_(options), pid_(::getpid()), next_request_id_(RandomStart()) {}
Client::~Client() = default;

bool Client::forked() const { return ::getpid() != pid_; }

// --- connecting -----------------------------------------------------------------------------------------------------

Status Client::Connect(const ClientOptions& options, std::shared_ptr<Client>* client) {
  std::shared_ptr<Client> made(new Client(options));
  // The driver before the sockets: cuInit may fork helpers of its own.
  if (Status status = made->LoadDriver(); !status.ok()) return status;
  if (Status status = made->OpenSession(); !status.ok()) return status;
  *client = std::move(made);
  return {};
}

Status Client::LoadDriver() {
  std::string error;
  driver_ = cuda::Driver::Load(options_.libcuda_path.c_str(), &error);
  if (driver_ == nullptr) return Error(Reason::NO_DRIVER, error);
  CUresult result = driver_->Init(0);
  if (result != CUDA_SUCCESS) return DriverError(*driver_, "cuInit", result);
  std::string failed_call;
  result = cuda::ListDevices(*driver_, &visible_, &failed_call);
  if (result != CUDA_SUCCESS) return DriverError(*driver_, failed_call, result);
  return {};
}

Status Client::OpenSession() {
  const Deadline deadline = CallDeadline();
  std::unique_ptr<HandleChannel> channel;
  if (Status status =
          HandleChannel::Open(options_.socket_dir + "/handles.sock", options_.client_name, deadline, &channel);
      !status.ok()) {
    return status;
  }
  session_id_ = channel->welcome().session_id;
  hello_.instance = Hex(channel->welcome().instance);
  {
    MutexLock lock(&mu_);
    sockets_.channel = std::move(channel);
    sockets_.transport = std::make_shared<Transport>(options_.socket_dir + "/control.sock");
  }
  return SayHello(deadline);
}

Status Client::SayHello(Deadline deadline) {
  HelloRequest request;
  request.session_id = session_id_;
  request.driver = driver_->is_simulated() ? DriverKind::kSim : DriverKind::kCuda;
  request.driver_version = cuda::CudaVersionText(driver_->version());
  HelloResponse response;
  if (Status status = Call("Hello", Encode(request), deadline, &response); !status.ok()) return status;
  if (response.protocol_major != kProtocolMajor) {
    return Error(Reason::VERSION_MISMATCH, "gpumemd " + response.daemon_version + " speaks protocol " +
                                               std::to_string(response.protocol_major) + "; this library speaks " +
                                               std::to_string(kProtocolMajor) + "; install matching versions");
  }
  if (response.driver != static_cast<std::int32_t>(request.driver)) {
    return Error(Reason::DRIVER_MISMATCH, "gpumemd runs on another kind of driver than this process (" +
                                              std::string(driver_kind()) + ", " + driver_->path() +
                                              "); set GPUMEM_LIBCUDA to the driver that gpumemd uses");
  }
  hello_ = std::move(response);
  return {};
}

std::int32_t Client::ordinal(std::size_t index) const {
  CUdevice device = 0;
  return FindVisible(hello_.devices[index].uuid, &device).ok() ? device : -1;
}

Status Client::FindVisible(const std::string& uuid, CUdevice* device) const {
  const auto parsed = DeviceUuid::Parse(uuid);
  if (!parsed.has_value()) {
    return Error(Reason::UNKNOWN_DEVICE, "'" + CleanUtf8(uuid) + "' is no device UUID (GPU-8-4-4-4-12 or MIG-…)");
  }
  const auto found = cuda::FindDevice(visible_, *parsed);
  if (found.has_value()) {
    *device = found->ordinal;
    return {};
  }
  std::string seen;
  for (const cuda::DeviceInfo& info : visible_) seen += (seen.empty() ? "" : ", ") + info.uuid.ToString();
  return Error(Reason::DEVICE_NOT_VISIBLE,
               "device " + parsed->ToString() + " is not visible to this process, which sees " +
                   (seen.empty() ? "none" : seen) + "; check CUDA_VISIBLE_DEVICES and the container's devices");
}

// A device that the daemon does not manage is the daemon's to refuse.
Status Client::CheckVisible(const std::vector<ChunkSpec>& specs) const {
  for (const ChunkSpec& spec : specs) {
    const bool managed = std::any_of(hello_.devices.begin(), hello_.devices.end(),
                                     [&spec](const Device& device) { return device.uuid == spec.device_uuid; });
    CUdevice device = 0;
    const Status status = FindVisible(spec.device_uuid, &device);
    if (!status.ok() && (managed || status.reason == Reason::UNKNOWN_DEVICE)) return status;
  }
  return {};
}

// --- calls ----------------------------------------------------------------------------------------------------------

Status Client::Ready() const {
  if (forked()) return Forked();
  if (fatal_.load()) {
    Status status = Error(Reason::CUDA_FATAL, "this process's CUDA context is dead: report the fault, then exit");
    status.cuda_error = fatal_error_.load();
    return status;
  }
  return {};
}

Client::Sockets Client::sockets() const {
  MutexLock lock(&mu_);
  return sockets_;
}

std::uint64_t Client::NextRequestId() {
  const std::uint64_t id = next_request_id_.fetch_add(1);
  return id != 0 ? id : next_request_id_.fetch_add(1);
}

Status Client::Note(Status status) {
  if (status.reason == Reason::CUDA_FATAL) {
    fatal_error_.store(status.cuda_error);
    fatal_.store(true);
  }
  return status;
}

template <typename Response>
Status Client::Call(std::string_view method, const std::string& request, Deadline deadline, Response* response) {
  const std::shared_ptr<Transport> transport = sockets().transport;
  if (transport == nullptr) return ClosedError();
  std::string bytes;
  Status status = transport->Call(method, request, deadline, &bytes);
  // The session was open: whoever is not there any more is not "not running".
  if (status.reason == Reason::NOT_RUNNING) status.reason = Reason::DISCONNECTED;
  if (!status.ok()) return status;
  if (!Decode(bytes, response)) {
    return Error(Reason::PROTOCOL, "gpumemd's answer to " + std::string(method) + " is malformed");
  }
  if (response->instance != hello_.instance) {
    return Error(Reason::DISCONNECTED, "another instance of gpumemd answers: the session ended with the one before");
  }
  return {};
}

Status Client::RegisterHolder(const std::string& name, std::int32_t role, std::uint64_t* holder_id) {
  if (Status status = CheckName(name, "holder"); !status.ok()) return status;
  RegisterHolderResponse response;
  const RegisterHolderRequest request{session_id_, NextRequestId(), name, role};
  if (Status status = Call("RegisterHolder", Encode(request), CallDeadline(), &response); !status.ok()) return status;
  *holder_id = response.holder_id;
  return {};
}

Status Client::ListSegments(const std::string& prefix, std::vector<Segment>* segments) {
  if (!ValidUtf8(prefix)) return Error(Reason::NAME_INVALID, "the prefix is not UTF-8: " + CleanUtf8(prefix));
  ListSegmentsResponse response;
  const ListSegmentsRequest request{session_id_, prefix};
  if (Status status = Call("ListSegments", Encode(request), CallDeadline(), &response); !status.ok()) return status;
  *segments = std::move(response.segments);
  return {};
}

Status Client::ReportFault(std::int32_t cuda_error, const std::string& detail) {
  fatal_error_.store(cuda_error);
  fatal_.store(true);
  ReportFaultRequest request;
  request.session_id = session_id_;
  request.request_id = NextRequestId();
  request.cuda_error = cuda_error;
  request.detail = CleanUtf8(detail);
  // A look-up in a table of the driver, which no context takes part in.
  const char* name = nullptr;
  if (driver_->GetErrorName(static_cast<CUresult>(cuda_error), &name) == CUDA_SUCCESS && name != nullptr) {
    request.cuda_error_name = name;
  }
  ReportFaultResponse response;
  return Call("ReportFault", Encode(request), CallDeadline(), &response);
}

// --- grants and imports ---------------------------------------------------------------------------------------------

// Nothing is asked of the driver here.
Status Client::PutMemory(Holding* holding, const std::vector<Chunk>& chunks) {
  holding->client = shared_from_this();
  std::vector<Memory::Place> places;
  places.reserve(chunks.size());
  for (const Chunk& chunk : chunks) {
    Memory::Place place;
    place.bytes = chunk.bytes;
    if (Status status = FindVisible(chunk.device_uuid, &place.device); !status.ok()) return status;
    places.push_back(place);
  }
  if (Status status = Memory::Make(driver_.get(), places, &holding->memory); !status.ok()) return status;
  holding->chunk_count = static_cast<std::uint32_t>(chunks.size());
  holding->bytes = holding->memory.bytes();
  return {};
}

template <typename Request>
Status Client::Grant(std::string_view method, Request request, Holding::Kind kind, std::shared_ptr<Holding>* holding) {
  if (Status status = CheckVisible(request.specs); !status.ok()) return status;
  const std::shared_ptr<HandleChannel> channel = sockets().channel;
  if (channel == nullptr) return ClosedError();
  SettleUnanswered(channel.get());
  request.session_id = session_id_;
  request.request_id = NextRequestId();
  const Deadline deadline = CallDeadline();
  std::optional<Expectation> expectation(std::in_place, channel.get(), request.request_id);
  GrantResponse response;
  std::string bytes = Encode(request);
  Status status = Call(method, bytes, deadline, &response);
  if (!status.ok()) {
    Remember(status, method, std::move(bytes));
    return status;
  }
  auto made = std::make_shared<Holding>();
  made->kind = kind;
  made->lease_id = response.lease_id;
  status = PutMemory(made.get(), response.chunks);
  if (status.ok()) {
    status = ImportAll(made.get(), response.chunks, request.request_id, response.pushed_chunks, deadline);
  }
  if (status.ok()) status = Adopt(made);
  if (!status.ok()) {
    // Handles that were pushed and not read yet would keep the memory alive in the socket.
    expectation.reset();
    (void)channel->Poll();
    Undo(made.get());
    return status;
  }
  *holding = std::move(made);
  return {};
}

Status Client::Allocate(std::uint64_t holder_id, const std::vector<ChunkSpec>& specs,
                        std::shared_ptr<Holding>* holding) {
  AllocateRequest request;
  request.holder_id = holder_id;
  request.specs = specs;
  return Grant("Allocate", std::move(request), Holding::Kind::kPrivate, holding);
}

Status Client::BuildSegment(std::uint64_t holder_id, const std::string& name, const std::vector<ChunkSpec>& specs,
                            std::shared_ptr<Holding>* holding) {
  if (Status status = CheckName(name, "segment"); !status.ok()) return status;
  BuildSegmentRequest request;
  request.holder_id = holder_id;
  request.name = name;
  request.specs = specs;
  return Grant("BuildSegment", std::move(request), Holding::Kind::kBuilding, holding);
}

Status Client::AttachSegment(std::uint64_t holder_id, const std::string& name, std::shared_ptr<Holding>* holding) {
  if (Status status = CheckName(name, "segment"); !status.ok()) return status;
  const std::shared_ptr<HandleChannel> channel = sockets().channel;
  if (channel == nullptr) return ClosedError();
  SettleUnanswered(channel.get());
  const Deadline deadline = CallDeadline();
  AttachSegmentResponse response;
  std::string bytes = Encode(AttachSegmentRequest{session_id_, NextRequestId(), holder_id, name});
  Status status = Call("AttachSegment", bytes, deadline, &response);
  if (!status.ok()) {
    Remember(status, "AttachSegment", std::move(bytes));
    return status;
  }
  auto made = std::make_shared<Holding>();
  made->kind = Holding::Kind::kAttached;
  made->lease_id = response.segment.lease_id;
  made->attachment_id = response.attachment_id;
  made->segment_name = response.segment.name;
  made->tensors = std::move(response.tensors);
  status = PutMemory(made.get(), response.chunks);
  if (status.ok()) status = ImportAll(made.get(), response.chunks, 0, 0, deadline);
  if (status.ok()) status = Adopt(made);
  if (!status.ok()) {
    Undo(made.get());
    return status;
  }
  *holding = std::move(made);
  return {};
}

Status Client::ImportAll(Holding* holding, const std::vector<Chunk>& chunks, std::uint64_t request_id,
                         std::uint32_t pushed, Deadline deadline) {
  const std::shared_ptr<HandleChannel> channel = sockets().channel;
  if (channel == nullptr) return ClosedError();
  if (Status status = ImportPushed(channel.get(), holding, chunks, request_id, pushed, deadline); !status.ok()) {
    return status;
  }
  return FetchRest(channel.get(), holding, chunks, deadline);
}

Status Client::ImportPushed(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks,
                            std::uint64_t request_id, std::uint32_t pushed, Deadline deadline) {
  for (std::size_t done = 0; done < pushed;) {
    HandleSet set;
    if (Status status = channel->Await(request_id, deadline, &set); !status.ok()) return status;
    done += set.entries.size();
    if (Status status = ImportSet(channel, holding, chunks, std::move(set), deadline); !status.ok()) return status;
  }
  return {};
}

Status Client::FetchRest(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks,
                         Deadline deadline) {
  for (std::size_t next = 0; next < chunks.size();) {
    if (holding->memory.imported(next)) {
      ++next;
      continue;
    }
    std::size_t end = next;
    while (end < chunks.size() && end - next < wire::kMaxFdsPerFrame && !holding->memory.imported(end)) ++end;
    const std::uint64_t fetch_id = NextRequestId();
    const Expectation expectation(channel, fetch_id);
    Status status = channel->Fetch(fetch_id, holding->lease_id, static_cast<std::uint32_t>(next),
                                   static_cast<std::uint32_t>(end - next), deadline);
    if (!status.ok()) return status;
    HandleSet set;
    if (status = channel->Await(fetch_id, deadline, &set); !status.ok()) return status;
    if (status = ImportSet(channel, holding, chunks, std::move(set), deadline); !status.ok()) return status;
    if (!holding->memory.imported(next)) return Error(Reason::PROTOCOL, "gpumemd sent other chunks than were fetched");
  }
  return {};
}

Status Client::ImportSet(HandleChannel* channel, Holding* holding, const std::vector<Chunk>& chunks, HandleSet set,
                         Deadline deadline) {
  std::vector<bool> imported(set.entries.size(), false);
  Status status;
  for (std::size_t i = 0; status.ok() && i < set.entries.size(); ++i) {
    const wire::HandleEntry& entry = set.entries[i];
    const bool fits = set.lease_id == holding->lease_id && entry.index < chunks.size() &&
                      entry.chunk_id == chunks[entry.index].chunk_id &&
                      entry.generation == chunks[entry.index].generation && entry.bytes == chunks[entry.index].bytes &&
                      !holding->memory.imported(entry.index);
    if (!fits) {
      status = Error(Reason::PROTOCOL, "gpumemd sent a handle of another chunk than the lease has");
      break;
    }
    status = Note(holding->memory.Import(entry.index, set.fds[i].get()));
    imported[i] = status.ok();
    // The import has its own reference; an fd that is left open would pin the memory beyond it.
    set.fds[i].reset();
  }
  set.fds.clear();
  const Status told = channel->Acknowledge(set.sequence, imported, deadline);
  return status.ok() ? told : status;
}

void Client::Undo(Holding* holding) { (void)TellGivenBack(*holding, LetGoHeld(holding), DeadlineAfter(kUndoTimeout)); }

void Client::Remember(const Status& status, std::string_view method, std::string request) {
  if (status.reason != Reason::DEADLINE) return;
  MutexLock lock(&mu_);
  if (unanswered_.size() < kMostUnanswered) unanswered_.push_back({std::string(method), std::move(request)});
}

void Client::SettleUnanswered(HandleChannel* channel) {
  for (;;) {
    Unanswered call;
    {
      MutexLock lock(&mu_);
      if (unanswered_.empty()) return;
      call = std::move(unanswered_.front());
      unanswered_.pop_front();
    }
    if (SettleOne(channel, call).reason != Reason::DEADLINE) continue;
    MutexLock lock(&mu_);
    unanswered_.push_front(std::move(call));
    return;
  }
}

Status Client::SettleOne(HandleChannel* channel, const Unanswered& call) {
  const Deadline deadline = DeadlineAfter(kUndoTimeout);
  Holding nobodys;
  Status status;
  if (call.method == "Release") {
    ReleaseResponse response;
    return Call(call.method, call.request, deadline, &response);
  }
  if (call.method == "DetachSegment") {
    DetachSegmentResponse response;
    return Call(call.method, call.request, deadline, &response);
  }
  if (call.method == "AttachSegment") {
    AttachSegmentResponse response;
    status = Call(call.method, call.request, deadline, &response);
    nobodys.kind = Holding::Kind::kAttached;
    nobodys.attachment_id = response.attachment_id;
  } else {
    GrantResponse response;
    status = Call(call.method, call.request, deadline, &response);
    nobodys.lease_id = response.lease_id;
  }
  if (!status.ok()) return status;
  (void)channel->Poll();  // handles that were pushed for it
  return TellGivenBack(nobodys, {Outcome::kUnmapped}, deadline);
}

// --- mapping --------------------------------------------------------------------------------------------------------

Status Client::CheckHeld(const Holding& holding) const {
  if (holding.dead) return ClosedError();
  if (holding.let_go) {
    return Error(Reason::ALREADY_RELEASED, "the memory's handles were given back for sealing; release the lease");
  }
  return {};
}

Status Client::ReportMapping(const Holding& holding, std::int32_t access) {
  const std::shared_ptr<HandleChannel> channel = sockets().channel;
  if (channel == nullptr) return {};
  Status status = channel->ReportMapping(holding.lease_id, holding.chunk_count, static_cast<wire::MappedAccess>(access),
                                         CallDeadline());
  // A daemon that is gone keeps no books; what this process has is its own all the same.
  return status.reason == Reason::DISCONNECTED ? Status() : status;
}

Status Client::Map(Holding* holding, CUdeviceptr wanted, std::int32_t access, CUdeviceptr* address) {
  const TurnHolder turn(&holding->turn);
  if (Status status = CheckHeld(*holding); !status.ok()) return status;
  if (holding->memory.reserved()) {
    return Error(Reason::ALREADY_MAPPED, "the memory is mapped already; unmap it first");
  }
  const auto flags = access == kAccessReadOnly ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr mapped = 0;
  if (Status status = Note(holding->memory.Map(wanted, flags, &mapped)); !status.ok()) return status;
  if (Status status = ReportMapping(*holding, access); !status.ok()) {
    // The daemon must not count less than what is mapped.
    (void)Note(holding->memory.Unmap());
    return status;
  }
  holding->access = access;
  *address = mapped;
  return {};
}

Status Client::UnmapHeld(Holding* holding, const std::vector<CUstream>& streams) {
  if (Status status = Note(WaitForStreams(*driver_, streams)); !status.ok()) return status;
  if (!holding->memory.reserved()) return {};
  Status status = Note(holding->memory.Unmap());
  if (status.ok()) holding->access = kAccessNone;
  return status;
}

Status Client::Unmap(Holding* holding, const std::vector<CUstream>& streams) {
  const TurnHolder turn(&holding->turn);
  if (Status status = CheckHeld(*holding); !status.ok()) return status;
  if (!holding->memory.reserved()) return Error(Reason::NOT_MAPPED, "the memory is not mapped");
  if (Status status = UnmapHeld(holding, streams); !status.ok()) return status;
  return ReportMapping(*holding, kAccessNone);
}

// --- giving back ----------------------------------------------------------------------------------------------------

// Decided once: what the driver did not take back then is still in this process later.
const std::vector<Outcome>& Client::LetGoHeld(Holding* holding) {
  if (holding->let_go) return holding->outcomes;
  holding->let_go = true;
  if (fatal_.load()) {
    for (std::size_t i = 0; i < holding->memory.chunk_count(); ++i) {
      holding->outcomes.push_back(holding->memory.imported(i) ? Outcome::kUnknown : Outcome::kUnmapped);
    }
  } else {
    holding->outcomes = holding->memory.LetGo();
  }
  if (AllUnmapped(holding->outcomes)) {
    holding->outcomes.assign(1, Outcome::kUnmapped);
  } else {
    left_behind_.store(true);
    holding->memory.Abandon();
  }
  return holding->outcomes;
}

Status Client::TellGivenBack(const Holding& holding, const std::vector<Outcome>& outcomes, Deadline deadline) {
  Status status;
  if (holding.kind == Holding::Kind::kAttached) {
    DetachSegmentResponse response;
    std::string bytes = Encode(DetachSegmentRequest{session_id_, NextRequestId(), holding.attachment_id, outcomes});
    status = Call("DetachSegment", bytes, deadline, &response);
    Remember(status, "DetachSegment", std::move(bytes));
  } else {
    ReleaseResponse response;
    std::string bytes = Encode(ReleaseRequest{session_id_, NextRequestId(), holding.lease_id, outcomes});
    status = Call("Release", bytes, deadline, &response);
    Remember(status, "Release", std::move(bytes));
  }
  return status;
}

Status Client::GiveBack(const std::shared_ptr<Holding>& holding, const std::vector<CUstream>& streams, bool* freed) {
  const TurnHolder turn(&holding->turn);
  *freed = true;
  if (Status status = Ready(); !status.ok()) {
    CloseHolding(holding.get());
    Drop(holding);
    return status;
  }
  if (holding->dead) return ClosedError();
  if (Status status = UnmapHeld(holding.get(), streams); !status.ok()) {
    if (status.reason != Reason::CUDA_FATAL) {
      *freed = false;
      return status;
    }
    CloseHolding(holding.get());
    Drop(holding);
    return status;
  }
  const std::vector<Outcome>& outcomes = LetGoHeld(holding.get());
  holding->dead = true;
  Drop(holding);
  Status status = TellGivenBack(*holding, outcomes, CallDeadline());
  if (status.ok() && !AllUnmapped(outcomes)) {
    return Error(
        Reason::DRIVER_FAILED,
        "the driver did not take back every handle; gpumemd keeps the memory in quarantine until this process ends");
  }
  return status;
}

Status Client::Seal(const std::shared_ptr<Holding>& holding, const std::vector<Tensor>& tensors,
                    const std::vector<CUstream>& streams, std::string* name) {
  const TurnHolder turn(&holding->turn);
  if (holding->dead) return ClosedError();
  if (holding->kind != Holding::Kind::kBuilding) {
    return Error(Reason::INVALID_ARGUMENT,
                 "the lease is private memory; only a lease of gpumem_segment_build is sealed");
  }
  if (Status status = UnmapHeld(holding.get(), streams); !status.ok()) return status;
  SealSegmentRequest request;
  request.outcomes = LetGoHeld(holding.get());
  if (!AllUnmapped(request.outcomes)) {
    return Error(
        Reason::DRIVER_FAILED,
        "the driver did not take back every handle of the builder, so the segment cannot be sealed; release it");
  }
  request.session_id = session_id_;
  request.request_id = NextRequestId();
  request.lease_id = holding->lease_id;
  request.tensors = tensors;
  SealSegmentResponse response;
  if (Status status = Call("SealSegment", Encode(request), CallDeadline(), &response); !status.ok()) return status;
  holding->dead = true;
  Drop(holding);
  *name = std::move(response.name);
  return {};
}

Status Client::Adopt(const std::shared_ptr<Holding>& holding) {
  MutexLock lock(&mu_);
  // The client was closed meanwhile, and looks after nothing new.
  if (sockets_.channel == nullptr) return ClosedError();
  holdings_.insert(holding);
  return {};
}

void Client::Drop(const std::shared_ptr<Holding>& holding) {
  MutexLock lock(&mu_);
  holdings_.erase(holding);
}

// In the holding's turn: what is here goes, without the daemon.
void Client::CloseHolding(Holding* holding) {
  if (holding->dead) return;
  holding->dead = true;
  if (fatal_.load() || !Note(holding->memory.Unmap()).ok()) {
    left_behind_.store(true);
    holding->memory.Abandon();
    return;
  }
  (void)LetGoHeld(holding);
}

void Client::Close() {
  Sockets sockets;
  std::set<std::shared_ptr<Holding>> holdings;
  {
    MutexLock lock(&mu_);
    sockets = std::exchange(sockets_, Sockets());
    holdings.swap(holdings_);
  }
  // Whoever waits for the daemon in another thread returns now, and gives the turns back.
  if (sockets.transport != nullptr) sockets.transport->Shutdown();
  if (sockets.channel != nullptr) sockets.channel->Shutdown();
  for (const std::shared_ptr<Holding>& holding : holdings) {
    const TurnHolder turn(&holding->turn);
    CloseHolding(holding.get());
  }
  if (left_behind_.load() && sockets.channel != nullptr) sockets.channel->KeepWitness();
  const TurnHolder turn(&events_turn_);
  events_.reset();
}

// --- events ---------------------------------------------------------------------------------------------------------

Status Client::EventFd(int* fd) {
  const TurnHolder turn(&events_turn_);
  const Sockets now = sockets();
  if (now.channel == nullptr) return ClosedError();
  if (events_ == nullptr || events_->stream_ended()) {
    std::unique_ptr<Http2Connection> stream;
    Status status =
        now.transport->Open("WatchEvents", Encode(WatchEventsRequest{session_id_}), CallDeadline(), &stream);
    if (status.reason == Reason::NOT_RUNNING) status.reason = Reason::DISCONNECTED;
    if (!status.ok()) return status;
    status = events_ != nullptr ? events_->Restart(std::move(stream))
                                : EventQueue::Make(now.channel, session_id_, std::move(stream), &events_);
    if (!status.ok()) return status;
  }
  *fd = events_->fd();
  return {};
}

Status Client::NextEvent(ClientEvent* event, bool* got) {
  const TurnHolder turn(&events_turn_);
  *got = false;
  if (events_ == nullptr) {
    return Error(Reason::INVALID_ARGUMENT, "no events were asked for; call gpumem_event_fd first");
  }
  return events_->Next(event, got);
}

}  // namespace gpumem::client
