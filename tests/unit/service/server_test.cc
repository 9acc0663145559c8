// The servers as peers meet them: real gRPC over a handed-over socket, a real manager, and a node whose arenas are the
// test's own.
#include "daemon/service/server.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "daemon/core/reasons.h"
#include "daemon/manager/manager.h"
#include "daemon/observe/event_hub.h"
#include "daemon/service/clients.h"
#include "daemon/service/status_map.h"
#include "gpumem/v1/admin.grpc.pb.h"
#include "gpumem/v1/memory.grpc.pb.h"

namespace gpumem::service {
namespace {

using core::Reason;
using core::SessionId;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kUuid[] = "GPU-00112233-4455-6677-8899-aabbccddeeff";

class FixedClock : public manager::Clock {
  absl::Time Now() override { return absl::FromUnixSeconds(1'800'000'000); }
};
class FixedRandom : public manager::Random {
  std::array<std::uint8_t, 16> Token() override { return {}; }
};
class LoopTimers : public manager::Timers {
 public:
  explicit LoopTimers(EventLoop* loop) : loop_(loop) {}
  void After(absl::Duration delay, std::function<void()> fn) override {
    loop_->After(absl::ToChronoNanoseconds(delay), std::move(fn));
  }

 private:
  EventLoop* const loop_;
};
// A driver that hangs: nothing asked is ever answered.
class HungArenas : public manager::Arenas {
  void Create(const DeviceUuid&, std::vector<manager::ArenaChunk>, std::uint32_t,
              std::function<void(absl::StatusOr<manager::ArenaCreated>)>) override {}
  void Fetch(const DeviceUuid&, std::vector<core::ChunkId>,
             std::function<void(absl::StatusOr<std::vector<manager::HandleFd>>)>) override {}
  void Close(const DeviceUuid&, std::vector<core::ChunkId>,
             std::function<void(absl::StatusOr<std::vector<absl::Status>>)>) override {}
  void Memory(const DeviceUuid&, std::function<void(absl::StatusOr<manager::ArenaMemory>)>) override {}
};
class NoKeeper : public manager::Keeper {
  void Put(const manager::KeptEntry&, manager::HandleFd, std::function<void(absl::Status)>) override {}
  void Get(const manager::KeptName&, std::function<void(absl::StatusOr<manager::HandleFd>)>) override {}
  void Del(const manager::KeptName&, std::function<void(absl::Status)>) override {}
};
class PostedJournal : public manager::Journal {
 public:
  explicit PostedJournal(EventLoop* loop) : loop_(loop) {}
  void Record(core::Transitions, std::function<void(absl::Status)> done) override {
    loop_->Post([done = std::move(done)] { done(absl::OkStatus()); });
  }

 private:
  EventLoop* const loop_;
};
class NoChannels : public manager::HandleChannels {
  absl::StatusOr<std::uint64_t> SendHandles(SessionId, manager::OutboundHandles) override {
    return absl::UnavailableError("no socket");
  }
  absl::Status SendFetchRefused(SessionId, std::uint64_t, const absl::Status&) override { return absl::OkStatus(); }
  absl::Status SendFenced(SessionId, core::QuarantineReason, std::string_view) override { return absl::OkStatus(); }
  void Close(SessionId) override {}
  void Forget(SessionId) override {}
};
class NoLog : public manager::Log {
  void Write(Level, std::string_view) override {}
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    manager::Options options;
    options.instance[0] = 0xab;
    manager_ = std::make_unique<manager::Manager>(
        options,
        manager::Ports{&clock_, &timers_, &random_, &arenas_, &keeper_, &journal_, &channels_, &events_, &log_});
    const manager::DeviceConfig device{*DeviceUuid::Parse(kUuid), "Test", core::Bytes(1u << 30), core::Bytes(0),
                                       core::Bytes(1u << 21)};
    EXPECT_TRUE(manager_->AddDevice(device).ok());
    manager_->OnArenaReady(device.device);
    session_ = manager_->OpenSession({}).value();

    Node node;
    node.loop = &loop_;
    node.manager = manager_.get();
    node.options = options;
    node.events = &events_;
    node.driver = DriverKind::kSim;
    node.started_at = absl::FromUnixSeconds(1);
    node.control_socket = "/c";
    node.handle_socket = "/h";
    node.mark_used = [this](std::string_view peer) {
      if (peer.substr(0, 3) == "fd:") ++calls_seen_;
    };
    node.check_worker = [this](std::string_view peer, SessionId session) {
      EXPECT_EQ(peer.substr(0, 3), "fd:");
      return session == session_ ? absl::OkStatus() : core::Error(Reason::FOREIGN_SESSION, "not yours");
    };
    node.check_operator = [this](std::string_view) {
      return operator_ ? absl::OkStatus() : core::Error(Reason::NOT_AN_OPERATOR, "no");
    };
    servers_ = Servers::Start(node).value();
    thread_ = std::thread([this] { loop_.Run(); });
  }

  ~ServerTest() override {
    Stop(seconds(0));
    loop_.Stop();
    thread_.join();
    servers_.reset();
  }

  // Blocks until the servers have shut down.
  void Stop(milliseconds grace) {
    if (std::exchange(stopped_, true)) return;
    std::promise<void> done;
    loop_.Post([&] { servers_->Shutdown(grace, [&] { done.set_value(); }); });
    done.get_future().wait();
  }
  void OnStrand(const std::function<void()>& fn) {
    std::promise<void> done;
    loop_.Post([&] {
      fn();
      done.set_value();
    });
    done.get_future().wait();
  }

  enum class Socket { kControl, kAdmin };
  std::shared_ptr<grpc::Channel> Connect(Socket socket) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    socket == Socket::kControl ? servers_->AdoptControl(ends[0]) : servers_->AdoptAdmin(ends[0]);
    return grpc::CreateInsecureChannelFromFd("test", ends[1]);
  }
  static void SetDeadline(grpc::ClientContext* context, milliseconds after = seconds(30)) {
    context->set_deadline(std::chrono::system_clock::now() + after);
  }
  static std::string ReasonOf(const grpc::Status& status) {
    const auto info = ErrorInfoOf(status);
    return info ? info->reason : "";
  }
  static v1::AllocateRequest AllocateRequestOf(SessionId session) {
    v1::AllocateRequest request;
    request.set_session_id(session.value());
    request.set_request_id(7);
    auto* spec = request.add_specs();
    spec->set_device_uuid(kUuid);
    spec->set_chunk_bytes(1);
    spec->set_count(1);
    return request;
  }

  EventLoop loop_;
  FixedClock clock_;
  FixedRandom random_;
  LoopTimers timers_{&loop_};
  HungArenas arenas_;
  NoKeeper keeper_;
  PostedJournal journal_{&loop_};
  NoChannels channels_;
  NoLog log_;
  observe::EventHub events_{observe::EventHub::Options{}};
  std::unique_ptr<manager::Manager> manager_;
  SessionId session_;
  std::atomic<bool> operator_{true};
  std::atomic<int> calls_seen_{0};
  bool stopped_ = false;
  std::unique_ptr<Servers> servers_;
  std::thread thread_;
};

TEST_F(ServerTest, HelloTellsDevicesLimitsAndInstance) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::HelloRequest request;
  request.set_session_id(session_.value());
  request.set_driver(v1::DRIVER_KIND_SIM);
  request.set_protocol_major(1);
  request.set_client_version("1.2.3");
  v1::HelloResponse response;
  const grpc::Status status = stub->Hello(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.instance(), "ab000000000000000000000000000000");
  ASSERT_EQ(response.devices_size(), 1);
  EXPECT_EQ(response.devices(0).uuid(), kUuid);
  EXPECT_EQ(response.limits().chunks_per_frame(), 253u);
  EXPECT_FALSE(response.limits().has_tenant_limit_bytes());
  EXPECT_EQ(calls_seen_, 1);

  // What the worker said of itself is what operators see.
  const auto admin = v1::AdminService::NewStub(Connect(Socket::kAdmin));
  grpc::ClientContext admin_context;
  SetDeadline(&admin_context);
  v1::ListSessionsResponse sessions;
  ASSERT_TRUE(admin->ListSessions(&admin_context, {}, &sessions).ok());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).client_version(), "1.2.3");
  EXPECT_EQ(sessions.next_page_token(), 0u);
}

TEST_F(ServerTest, AForeignSessionIsRefusedBeforeItsRequestIsRead) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::AllocateResponse response;
  const grpc::Status status = stub->Allocate(&context, AllocateRequestOf(SessionId(999)), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonOf(status), "FOREIGN_SESSION");

  grpc::ClientContext watch_context;
  SetDeadline(&watch_context);
  v1::WatchEventsRequest watch;
  watch.set_session_id(999);
  v1::Event event;
  const auto reader = stub->WatchEvents(&watch_context, watch);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(ReasonOf(reader->Finish()), "FOREIGN_SESSION");
}

TEST_F(ServerTest, AnErrorOfTheBooksArrivesWithItsReason) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::AllocateResponse response;
  // Holder 0 is nobody's.
  EXPECT_EQ(ReasonOf(stub->Allocate(&context, AllocateRequestOf(session_), &response)), "UNKNOWN_HOLDER");
}

TEST_F(ServerTest, OnlyOperatorsPassTheAdminSocket) {
  const auto stub = v1::AdminService::NewStub(Connect(Socket::kAdmin));
  {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetStatusResponse response;
    ASSERT_TRUE(stub->GetStatus(&context, {}, &response).ok());
    EXPECT_EQ(response.sessions_live(), 1u);
    EXPECT_EQ(response.driver(), v1::DRIVER_KIND_SIM);
    EXPECT_EQ(response.control_socket(), "/c");
    EXPECT_EQ(response.tenants_size(), 1);
  }
  operator_ = false;
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetStatusResponse response;
  EXPECT_EQ(ReasonOf(stub->GetStatus(&context, {}, &response)), "NOT_AN_OPERATOR");
  grpc::ClientContext remove_context;
  SetDeadline(&remove_context);
  v1::RemoveSegmentResponse removed;
  EXPECT_EQ(ReasonOf(stub->RemoveSegment(&remove_context, {}, &removed)), "NOT_AN_OPERATOR");
  grpc::ClientContext watch_context;
  SetDeadline(&watch_context);
  const auto reader = stub->WatchAllEvents(&watch_context, {});
  v1::Event event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(ReasonOf(reader->Finish()), "NOT_AN_OPERATOR");
}

TEST_F(ServerTest, AFencedSessionIsToldSoByEveryCall) {
  OnStrand([&] { manager_->OnSocketClosed(session_); });
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext hello_context;
  SetDeadline(&hello_context);
  v1::HelloRequest hello;
  hello.set_session_id(session_.value());
  hello.set_driver(v1::DRIVER_KIND_SIM);
  hello.set_protocol_major(1);
  v1::HelloResponse greeted;
  EXPECT_EQ(ReasonOf(stub->Hello(&hello_context, hello, &greeted)), "SESSION_FENCED");
  grpc::ClientContext list_context;
  SetDeadline(&list_context);
  v1::ListSegmentsRequest list;
  list.set_session_id(session_.value());
  v1::ListSegmentsResponse segments;
  EXPECT_EQ(ReasonOf(stub->ListSegments(&list_context, list, &segments)), "SESSION_FENCED");
}

TEST_F(ServerTest, HelloRefusesAnotherDriver) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::HelloRequest hello;
  hello.set_session_id(session_.value());
  hello.set_driver(v1::DRIVER_KIND_CUDA);
  hello.set_protocol_major(1);
  v1::HelloResponse greeted;
  EXPECT_EQ(ReasonOf(stub->Hello(&context, hello, &greeted)), "DRIVER_MISMATCH");
}

// gRPC's own limit is 4 MiB, less than a large model's manifest.
TEST_F(ServerTest, AManifestOfManyTensorsArrives) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::SealSegmentRequest seal;
  seal.set_session_id(session_.value());
  seal.set_request_id(1);
  seal.set_lease_id(9);
  seal.add_outcomes(v1::OUTCOME_UNMAPPED);
  for (int i = 0; i < 60'000; ++i) {
    seal.mutable_manifest()->add_tensors()->set_name(std::string(100, 'n'));
  }
  ASSERT_GT(seal.ByteSizeLong(), 5u << 20);
  v1::SealSegmentResponse sealed;
  EXPECT_EQ(ReasonOf(stub->SealSegment(&context, seal, &sealed)), "UNKNOWN_LEASE");
}

TEST(ClientVersionsTest, OnlySessionsThatAreGoneAreForgotten) {
  core::Books books(core::Limits{}, 1);
  const SessionId live = books.OpenSession({}, absl::UnixEpoch()).value();
  ClientVersions versions;
  versions.Set(live, "1.0", books, 1);
  versions.Set(SessionId(900), "2.0", books, 1);
  versions.Set(SessionId(901), "3.0", books, 1);
  EXPECT_EQ(versions.Get(live), "1.0");
  EXPECT_EQ(versions.Get(SessionId(900)), "");
  EXPECT_EQ(versions.Get(SessionId(901)), "3.0");
}

TEST_F(ServerTest, AFullPageNamesTheNext) {
  std::vector<SessionId> all = {session_};
  OnStrand([&] {
    for (int i = 0; i < 2; ++i) all.push_back(manager_->OpenSession({}).value());
  });
  const auto stub = v1::AdminService::NewStub(Connect(Socket::kAdmin));
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  std::vector<SessionId> seen;
  do {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ListSessionsResponse page;
    ASSERT_TRUE(stub->ListSessions(&context, request, &page).ok());
    for (const v1::Session& session : page.sessions()) seen.push_back(SessionId(session.session_id()));
    request.set_page_token(page.next_page_token());
  } while (request.page_token() != 0);
  EXPECT_EQ(seen, all);
}

TEST_F(ServerTest, EveryListNamesItsNextPage) {
  OnStrand([&] {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      manager_->RegisterHolder(session_, i, "h" + std::to_string(i), core::Role::kOther,
                               [this, i](const absl::StatusOr<core::HolderId>& registered) {
                                 // The arena never answers: the lease stays reserved, and is listed.
                                 manager_->Allocate(session_, 10 + i, registered.value(),
                                                    {{*DeviceUuid::Parse(kUuid), core::Bytes(1), 1}},
                                                    [](const absl::StatusOr<manager::Grant>&) {});
                               });
    }
    std::vector<manager::KeptEntry> found(3);
    for (std::uint64_t i = 0; i < found.size(); ++i) {
      found[i] = {{{9}, i + 1}, *DeviceUuid::Parse(kUuid), core::Bytes(4096)};
    }
    manager_->OnKeeperReady(found);
  });
  for (bool allocated = false; !allocated;) {
    OnStrand([&] { allocated = manager_->books().Leases(core::LeaseId(), 10).size() == 6; });
  }
  const auto stub = v1::AdminService::NewStub(Connect(Socket::kAdmin));
  const auto count = [](const auto& call, const auto& rows_of, auto request, auto response) {
    request.set_page_size(2);
    std::size_t rows = 0;
    do {
      grpc::ClientContext context;
      SetDeadline(&context);
      response.Clear();
      EXPECT_TRUE(call(&context, request, &response).ok());
      rows += static_cast<std::size_t>(rows_of(response));
      request.set_page_token(response.next_page_token());
    } while (request.page_token() != 0);
    return rows;
  };
  EXPECT_EQ(count([&](auto... a) { return stub->ListHolders(a...); }, [](const auto& r) { return r.holders_size(); },
                  v1::ListHoldersRequest(), v1::ListHoldersResponse()),
            3u);
  EXPECT_EQ(count([&](auto... a) { return stub->ListLeases(a...); }, [](const auto& r) { return r.leases_size(); },
                  v1::ListLeasesRequest(), v1::ListLeasesResponse()),
            6u);
  EXPECT_EQ(count([&](auto... a) { return stub->ListQuarantine(a...); }, [](const auto& r) { return r.records_size(); },
                  v1::ListQuarantineRequest(), v1::ListQuarantineResponse()),
            3u);
}

// One question on a stream, and its answer's bytes.
class OneAnswer : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  void Ask(const grpc::ByteBuffer* question) {
    StartWrite(question);
    StartRead(&answer_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (ok) StartWritesDone();
  }
  void OnDone(const grpc::Status& status) override { done_.set_value(status); }
  std::string Wait() {
    const grpc::Status status = done_.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<grpc::Slice> slices;
    EXPECT_TRUE(answer_.Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return bytes;
  }

 private:
  grpc::ByteBuffer answer_;
  std::promise<grpc::Status> done_;
};

TEST_F(ServerTest, ReflectionListsTheServicesOfEachSocket) {
  for (const auto& [socket, service] :
       {std::pair(Socket::kControl, "gpumem.v1.MemoryService"), std::pair(Socket::kAdmin, "gpumem.v1.AdminService")}) {
    grpc::GenericStub stub(Connect(socket));
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Slice list_services("\x3a\x01*", 3);  // ServerReflectionRequest{list_services: "*"}, by hand
    const grpc::ByteBuffer request(&list_services, 1);
    OneAnswer answer;
    stub.PrepareBidiStreamingCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", {},
                                  &answer);
    answer.Ask(&request);
    const std::string services = answer.Wait();
    EXPECT_NE(services.find(service), std::string::npos) << services;
    EXPECT_NE(services.find("grpc.health.v1.Health"), std::string::npos) << services;
  }
}

TEST_F(ServerTest, HealthFollowsServing) {
  // grpc.health.v1.Health/Check with an empty request, by hand: its messages are {1: service} and {1: status}.
  grpc::GenericStub stub(Connect(Socket::kControl));
  const auto serving = [&] {
    grpc::ClientContext context;
    SetDeadline(&context);
    const grpc::Slice name("\x0a\x17gpumem.v1.MemoryService", 25);
    const grpc::ByteBuffer request(&name, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &request, &response,
                   [&](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error_message();
    grpc::Slice answer;
    EXPECT_TRUE(response.TrySingleSlice(&answer).ok());
    return answer.size() == 2 && answer.begin()[1] == 1;
  };
  EXPECT_FALSE(serving());
  servers_->SetServing(true);
  EXPECT_TRUE(serving());
  servers_->SetServing(false);
  EXPECT_FALSE(serving());
  EXPECT_EQ(calls_seen_, 3) << "health calls keep a connection too";
}

TEST_F(ServerTest, AWatcherSeesItsEventsAndTheStopAsTheLast) {
  const auto stub = v1::MemoryService::NewStub(Connect(Socket::kControl));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::WatchEventsRequest request;
  request.set_session_id(session_.value());
  const auto reader = stub->WatchEvents(&context, request);
  reader->WaitForInitialMetadata();  // the watch is in place
  OnStrand([&] {
    manager_->OnSocketClosed(manager_->OpenSession({}).value());  // another's fence is not shown
    manager_->OnSocketClosed(session_);
    manager_->BeginDrain(absl::Seconds(1));
  });
  v1::Event event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.session_fenced().session_id(), session_.value());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.daemon_stopping().grace().seconds(), 1);
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServerTest, AWatcherThatReadsNothingIsDropped) {
  const auto stub = v1::AdminService::NewStub(Connect(Socket::kAdmin));
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto reader = stub->WatchAllEvents(&context, {});
  reader->WaitForInitialMetadata();
  // Far more than the queue, the flow control window and the socket's buffer take.
  manager::Event event{0, absl::FromUnixSeconds(1), manager::DeviceChangedEvent{}};
  std::get<manager::DeviceChangedEvent>(event.kind).detail = std::string(2000, 'd');
  OnStrand([&] {
    for (int i = 0; i < 20'000; ++i) {
      ++event.sequence;
      events_.Publish(event);
    }
  });
  v1::Event seen;
  while (reader->Read(&seen)) {
  }
  EXPECT_EQ(ReasonOf(reader->Finish()), "LIMIT");
  EXPECT_LT(seen.sequence(), event.sequence);
}

class HungCallTest : public ServerTest {
 protected:
  // A call that the arena never answers. Runs until it fails.
  std::future<grpc::Status> StartHungCall(grpc::ClientContext* context) {
    stub_ = v1::MemoryService::NewStub(Connect(Socket::kControl));
    v1::RegisterHolderRequest holder;
    holder.set_session_id(session_.value());
    holder.set_request_id(1);
    holder.set_name("h");
    holder.set_role(v1::ROLE_OTHER);
    v1::RegisterHolderResponse registered;
    grpc::ClientContext holder_context;
    SetDeadline(&holder_context);
    EXPECT_TRUE(stub_->RegisterHolder(&holder_context, holder, &registered).ok());
    return std::async(std::launch::async, [this, context, id = registered.holder_id()] {
      v1::AllocateRequest request = AllocateRequestOf(session_);
      request.set_holder_id(id);
      v1::AllocateResponse response;
      return stub_->Allocate(context, request, &response);
    });
  }
  void WaitUntilCharged() {
    for (bool charged = false; !charged;) {
      OnStrand([&] { charged = manager_->books().Count().leases == 1; });
    }
  }
  std::unique_ptr<v1::MemoryService::Stub> stub_;
};

TEST_F(HungCallTest, EndsWithItsCallersDeadlineAndKeepsItsCharge) {
  grpc::ClientContext context;
  SetDeadline(&context, milliseconds(200));
  EXPECT_EQ(StartHungCall(&context).get().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // What became of it in the driver is not known, so the charge stays.
  WaitUntilCharged();
}

TEST_F(HungCallTest, DoesNotKeepTheServersFromShuttingDown) {
  grpc::ClientContext context;
  SetDeadline(&context, std::chrono::hours(1));
  std::future<grpc::Status> call = StartHungCall(&context);
  WaitUntilCharged();
  Stop(milliseconds(50));
  EXPECT_FALSE(call.get().ok());
}

}  // namespace
}  // namespace gpumem::service
