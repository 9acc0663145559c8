#include "tests/unit/client/fake_daemon.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/resources.h"
#include "cuda/sim/config.h"
#include "cuda/sim/simcuda.h"
#include "cuda/sim/store.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace gpumem::client_test {
namespace {

constexpr std::uint64_t kMachineBytes = std::uint64_t{4} << 30;

grpc::Status Refusal(grpc::StatusCode code, const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("gpumem");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  return grpc::Status(code, reason + " of the fake daemon", details.SerializeAsString());
}

}  // namespace

Machine::Machine() {
  library = std::string(TEST_LIB_DIR) + "/gpumem-sim/libcuda.so.1";
  state_dir = dir_.path() + "/machine";
  std::string error;
  EXPECT_TRUE(simcuda::InitStateDir(state_dir, simcuda::MakeConfig(2, kMachineBytes), &error)) << error;
  ::setenv("SIMCUDA_DIR", state_dir.c_str(), 1);
  driver = cuda::Driver::Load(library.c_str(), &error);
  EXPECT_NE(driver, nullptr) << error;
  EXPECT_EQ(driver->Init(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda::ListDevices(*driver, &devices, &error), CUDA_SUCCESS) << error;
}

Machine& Machine::Get() {
  static Machine machine;
  return machine;
}

std::uint64_t Machine::PhysicalBytes() const {
  const auto read = reinterpret_cast<decltype(&simcuda_hardware_truth)>(driver->FindSymbol("simcuda_hardware_truth"));
  const auto free = reinterpret_cast<decltype(&simcuda_truth_free)>(driver->FindSymbol("simcuda_truth_free"));
  simcuda_truth* truth = nullptr;
  char error[256] = {};
  EXPECT_EQ(read(state_dir.c_str(), &truth, error, sizeof(error)), 0) << error;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; truth != nullptr && i < truth->device_count; ++i) bytes += truth->devices[i].physical_bytes;
  free(truth);
  return bytes;
}

FakeDaemon::FakeDaemon() {
  (void)Machine::Get();
  // See transport_test.cc.
  [[maybe_unused]] static auto* const keep = new grpc::CompletionQueue;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_.path() + "/handles.sock";
  std::copy(path.begin(), path.end(), address.sun_path);
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::listen(listener_.get(), 64), 0);
  acceptor_ = std::thread([this] { Accept(); });
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + dir_.path() + "/control.sock", grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  EXPECT_NE(server_, nullptr);
}

FakeDaemon::~FakeDaemon() { Kill(); }

void FakeDaemon::Kill() {
  if (stopping_.exchange(true)) return;
  server_->Shutdown(std::chrono::system_clock::now());
  ::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  {
    MutexLock lock(&mu_);
    for (const auto& [id, peer] : peers_) ::shutdown(peer->fd(), SHUT_RDWR);
    peers_.clear();
  }
  for (std::thread& thread : servers_) thread.join();
  server_.reset();
  listener_.reset();
}

void FakeDaemon::Accept() {
  for (;;) {
    UniqueFd accepted(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!accepted.valid()) {
      if (stopping_) return;
      continue;
    }
    servers_.emplace_back([this, peer = std::make_shared<Peer>(std::move(accepted))] { Serve(peer); });
  }
}

void FakeDaemon::Serve(std::shared_ptr<Peer> peer) {
  FromClient frame;
  if (!peer->Receive(&frame) || frame.header.type != wire::FrameType::kOpen) return;
  std::uint64_t session = 0;
  {
    MutexLock lock(&mu_);
    witness_ = std::move(frame.fds.at(0));
    session = next_id_++;
    peers_[session] = peer;
    wire::WelcomeBody welcome;
    welcome.session_id = session;
    std::fill(std::begin(welcome.instance), std::end(welcome.instance), std::uint8_t{0xab});
    welcome.unacknowledged_frames = 8;
    peer->Send(wire::FrameType::kWelcome, 0, welcome);
  }
  while (peer->Receive(&frame)) {
    while (deaf && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    MutexLock lock(&mu_);
    if (frame.header.type == wire::FrameType::kAcknowledge) {
      const auto body = frame.As<wire::AcknowledgeBody>();
      for (const std::uint8_t byte : body.imported) {
        acknowledged_ += static_cast<std::uint64_t>(__builtin_popcount(byte));
      }
    } else if (frame.header.type == wire::FrameType::kMapping) {
      mappings_.push_back(frame.As<wire::MappingBody>());
    } else if (frame.header.type == wire::FrameType::kFetch) {
      const auto body = frame.As<wire::FetchBody>();
      // Short answers are allowed.
      SendChunks(peer.get(), frame.header.request_id, body.lease_id, body.first, std::min(body.count, 3u));
    }
  }
  MutexLock lock(&mu_);
  peers_.erase(session);
}

void FakeDaemon::SendChunks(Peer* peer, std::uint64_t request_id, std::uint64_t lease_id, std::uint32_t first,
                            std::uint32_t count) {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  wire::HandlesBody body;
  body.lease_id = lease_id + (lie == Lie::kLease ? 1 : 0);
  std::vector<int> fds;
  const FakeLease& lease = leases_.at(lease_id);
  for (std::uint32_t i = first; i < lease.chunks.size() && i - first < count; ++i) {
    wire::HandleEntry& entry = body.entries[fds.size()];
    const std::uint32_t said = lie == Lie::kTwice ? first : i;
    entry.chunk_id = lease.chunks[said].chunk.chunk_id() + (lie == Lie::kId ? 1 : 0);
    entry.generation = lease.chunks[said].chunk.generation() + (lie == Lie::kGeneration ? 1 : 0);
    entry.bytes = lease.chunks[said].chunk.bytes() + (lie == Lie::kBytes ? 1 : 0);
    entry.index = said + (lie == Lie::kIndex ? 1000 : 0);
    fds.push_back(static_cast<int>(i) == bad_chunk ? null.get() : lease.chunks[i].fd.get());
  }
  peer->Send(wire::FrameType::kHandles, request_id, body, fds);
}

std::string FakeDaemon::Instance() {
  if (answer_as_other_instance > 0 && answer_as_other_instance-- > 0) return std::string(32, 'f');
  std::string text;
  for (int i = 0; i < 16; ++i) text += "ab";
  return text;
}

void FakeDaemon::Note(std::uint64_t request_id) {
  MutexLock lock(&mu_);
  EXPECT_NE(request_id, 0u);
  EXPECT_TRUE(request_ids_.insert(request_id).second) << "request id " << request_id << " came twice";
}

void FakeDaemon::WaitWhileHanging(grpc::ServerContext* context) {
  while (hang && !context->IsCancelled() && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::string FakeDaemon::device_uuid(std::size_t index) const {
  return Machine::Get().devices.at(index).uuid.ToString();
}

template <typename Request, typename Response>
grpc::Status FakeDaemon::Grant(const Request& request, Response* response, const std::string& segment) {
  {
    MutexLock lock(&mu_);
    const auto answered = answers_.find(request.request_id());
    if (answered != answers_.end()) {
      response->ParseFromString(answered->second);
      return grpc::Status::OK;
    }
  }
  Note(request.request_id());
  response->set_instance(Instance());
  Machine& machine = Machine::Get();
  MutexLock lock(&mu_);
  FakeLease lease;
  lease.session = request.session_id();
  lease.segment = segment;
  for (const v1::ChunkSpec& spec : request.specs()) {
    const auto device = cuda::FindDevice(machine.devices, *DeviceUuid::Parse(spec.device_uuid()));
    if (!device.has_value()) return Refusal(grpc::StatusCode::NOT_FOUND, "UNKNOWN_DEVICE");
    for (std::uint32_t i = 0; i < spec.count(); ++i) {
      FakeChunk chunk;
      chunk.chunk.set_chunk_id(next_id_++);
      chunk.chunk.set_generation(1);
      chunk.chunk.set_device_uuid(spec.device_uuid());
      chunk.chunk.set_bytes((spec.chunk_bytes() + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
      cuda::PhysicalHandle handle;
      const std::uint64_t bytes =
          chunk.chunk.bytes() * (static_cast<int>(lease.chunks.size()) == oversize_chunk ? 2 : 1);
      EXPECT_EQ(cuda::PhysicalHandle::Create(*machine.driver, device->ordinal, bytes, true, &handle), CUDA_SUCCESS);
      EXPECT_EQ(handle.Export(&chunk.fd), CUDA_SUCCESS);
      *response->add_chunks() = chunk.chunk;
      lease.chunks.push_back(std::move(chunk));
    }
  }
  const std::uint64_t id = next_id_++;
  const auto count = static_cast<std::uint32_t>(lease.chunks.size());
  leases_[id] = std::move(lease);
  response->set_lease_id(id);
  const std::uint32_t pushed = std::min<std::uint32_t>(push_at_most, count);
  response->set_pushed_chunks(pushed);
  const auto peer = peers_.find(request.session_id());
  if (peer == peers_.end()) return Refusal(grpc::StatusCode::UNAUTHENTICATED, "UNKNOWN_SESSION");
  for (std::uint32_t sent = 0; sent < pushed; sent += 4) {
    SendChunks(peer->second.get(), request.request_id(), id, sent, std::min(4u, pushed - sent));
  }
  answers_[request.request_id()] = response->SerializeAsString();
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Hello(grpc::ServerContext*, const v1::HelloRequest* request, v1::HelloResponse* response) {
  response->set_instance(Instance());
  response->set_daemon_version("9.9.9");
  response->set_protocol_major(protocol);
  response->set_driver(other_driver ? v1::DRIVER_KIND_CUDA : v1::DRIVER_KIND_SIM);
  response->set_tenant("default");
  EXPECT_EQ(request->driver(), v1::DRIVER_KIND_SIM);
  for (const cuda::DeviceInfo& info : Machine::Get().devices) {
    v1::Device* const device = response->add_devices();
    device->set_uuid(info.uuid.ToString());
    device->set_name(info.name);
    device->set_state(v1::DEVICE_STATE_HEALTHY);
    device->set_granularity_bytes(kChunkBytes);
    device->set_capacity_bytes(info.total_bytes);
  }
  if (invisible) response->add_devices()->set_uuid(other_uuid());
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::RegisterHolder(grpc::ServerContext* context, const v1::RegisterHolderRequest* request,
                                        v1::RegisterHolderResponse* response) {
  WaitWhileHanging(context);
  Note(request->request_id());
  response->set_instance(Instance());
  response->set_holder_id(42);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::Allocate(grpc::ServerContext* context, const v1::AllocateRequest* request,
                                  v1::AllocateResponse* response) {
  WaitWhileHanging(context);
  return Grant(*request, response, "");
}

grpc::Status FakeDaemon::BuildSegment(grpc::ServerContext*, const v1::BuildSegmentRequest* request,
                                      v1::BuildSegmentResponse* response) {
  return Grant(*request, response, request->name());
}

grpc::Status FakeDaemon::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                 v1::ReleaseResponse* response) {
  if (drop_release > 0 && drop_release-- > 0) {
    while (!context->IsCancelled() && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  }
  WaitWhileHanging(context);
  Note(request->request_id());
  response->set_instance(Instance());
  MutexLock lock(&mu_);
  releases_.push_back(*request);
  if (leases_.erase(request->lease_id()) == 0) return Refusal(grpc::StatusCode::NOT_FOUND, "UNKNOWN_LEASE");
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::SealSegment(grpc::ServerContext*, const v1::SealSegmentRequest* request,
                                     v1::SealSegmentResponse* response) {
  Note(request->request_id());
  response->set_instance(Instance());
  if (refuse_seals > 0 && refuse_seals-- > 0) {
    return Refusal(grpc::StatusCode::INVALID_ARGUMENT, "MANIFEST_INVALID");
  }
  MutexLock lock(&mu_);
  EXPECT_EQ(request->outcomes_size(), 1);
  EXPECT_EQ(request->outcomes(0), v1::OUTCOME_UNMAPPED);
  FakeLease& lease = leases_.at(request->lease_id());
  lease.segment += "@1";
  lease.manifest = request->manifest();
  response->set_name(lease.segment);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::AttachSegment(grpc::ServerContext* context, const v1::AttachSegmentRequest* request,
                                       v1::AttachSegmentResponse* response) {
  WaitWhileHanging(context);
  {
    MutexLock lock(&mu_);
    const auto answered = answers_.find(request->request_id());
    if (answered != answers_.end()) {
      response->ParseFromString(answered->second);
      return grpc::Status::OK;
    }
  }
  Note(request->request_id());
  response->set_instance(Instance());
  MutexLock lock(&mu_);
  for (const auto& [id, lease] : leases_) {
    if (lease.segment != request->name()) continue;
    const std::uint64_t attachment = next_id_++;
    attachments_[attachment] = id;
    response->set_attachment_id(attachment);
    response->mutable_segment()->set_name(lease.segment);
    response->mutable_segment()->set_lease_id(id);
    for (const FakeChunk& chunk : lease.chunks) *response->add_chunks() = chunk.chunk;
    *response->mutable_manifest() = lease.manifest;
    answers_[request->request_id()] = response->SerializeAsString();
    return grpc::Status::OK;
  }
  return Refusal(grpc::StatusCode::NOT_FOUND, "UNKNOWN_SEGMENT");
}

grpc::Status FakeDaemon::DetachSegment(grpc::ServerContext* context, const v1::DetachSegmentRequest* request,
                                       v1::DetachSegmentResponse* response) {
  if (drop_detach > 0 && drop_detach-- > 0) {
    while (!context->IsCancelled() && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return grpc::Status::CANCELLED;
  }
  Note(request->request_id());
  response->set_instance(Instance());
  MutexLock lock(&mu_);
  detaches_.push_back(*request);
  attachments_.erase(request->attachment_id());
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::ListSegments(grpc::ServerContext*, const v1::ListSegmentsRequest* request,
                                      v1::ListSegmentsResponse* response) {
  response->set_instance(Instance());
  MutexLock lock(&mu_);
  for (const auto& [id, lease] : leases_) {
    if (lease.segment.empty() || lease.segment.rfind(request->prefix(), 0) != 0) continue;
    v1::Segment* const segment = response->add_segments();
    segment->set_name(lease.segment);
    segment->set_lease_id(id);
    segment->set_state(v1::SEGMENT_STATE_SEALED);
  }
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::ReportFault(grpc::ServerContext*, const v1::ReportFaultRequest* request,
                                     v1::ReportFaultResponse* response) {
  Note(request->request_id());
  response->set_instance(Instance());
  MutexLock lock(&mu_);
  faults_.push_back(*request);
  return grpc::Status::OK;
}

grpc::Status FakeDaemon::WatchEvents(grpc::ServerContext* context, const v1::WatchEventsRequest* request,
                                     grpc::ServerWriter<v1::Event>* writer) {
  if (refuse_watches > 0 && refuse_watches-- > 0) return Refusal(grpc::StatusCode::RESOURCE_EXHAUSTED, "LIMIT");
  v1::Event event;
  event.set_sequence(1);
  event.mutable_session_fenced()->set_session_id(request->session_id() + 1000);  // another's: not for this client
  writer->Write(event);
  for (std::uint64_t i = 2; i <= 3; ++i) {
    event.set_sequence(i);
    event.mutable_device_changed()->set_device_uuid(device_uuid());
    event.mutable_device_changed()->set_state(v1::DEVICE_STATE_SUSPECT);
    writer->Write(event);
  }
  while (!context->IsCancelled() && !stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return grpc::Status::OK;
}

void FakeDaemon::Fence() {
  MutexLock lock(&mu_);
  wire::FencedBody fenced;
  fenced.quarantine_reason = v1::QUARANTINE_REASON_WRITER_FAULTED;
  for (const auto& [id, peer] : peers_) peer->Send(wire::FrameType::kFenced, 0, fenced);
}

std::uint64_t FakeDaemon::acknowledged() const {
  MutexLock lock(&mu_);
  return acknowledged_;
}
std::vector<v1::ReleaseRequest> FakeDaemon::releases() const {
  MutexLock lock(&mu_);
  return releases_;
}
std::vector<v1::DetachSegmentRequest> FakeDaemon::detaches() const {
  MutexLock lock(&mu_);
  return detaches_;
}
std::vector<wire::MappingBody> FakeDaemon::mappings() const {
  MutexLock lock(&mu_);
  return mappings_;
}
std::vector<v1::ReportFaultRequest> FakeDaemon::faults() const {
  MutexLock lock(&mu_);
  return faults_;
}
std::set<std::uint64_t> FakeDaemon::request_ids() const {
  MutexLock lock(&mu_);
  return request_ids_;
}
std::size_t FakeDaemon::leases() const {
  MutexLock lock(&mu_);
  return leases_.size();
}
std::size_t FakeDaemon::attachments() const {
  MutexLock lock(&mu_);
  return attachments_.size();
}
bool FakeDaemon::WitnessClosed() const {
  MutexLock lock(&mu_);
  pollfd entry{witness_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLHUP) != 0;
}
std::size_t FakeDaemon::sessions() const {
  MutexLock lock(&mu_);
  return peers_.size();
}

}  // namespace gpumem::client_test
