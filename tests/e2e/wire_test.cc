// What a peer can send that libgpumem never would: foreign and stale sessions, forged frames, retries, sealing twice.
#include <gtest/gtest.h>

#include <string>

#include "tests/e2e/node.h"
#include "tests/e2e/wire_client.h"

namespace gpumem::e2e {
namespace {

using nlohmann::json;

class WireTest : public testing::Test {
 protected:
  void SetUp() override {
    Node::Options options;
    options.gpus = 1;
    node_ = std::make_unique<Node>(options);
    node_->Start();
    client_ = std::make_unique<WireClient>(node_->socket_dir());
    ASSERT_NE(client_->Open(), 0u);
    v1::RegisterHolderRequest request;
    request.set_session_id(client_->session());
    request.set_request_id(1);
    request.set_name("by-hand");
    request.set_role(v1::ROLE_KV_CACHE);
    v1::RegisterHolderResponse response;
    grpc::ClientContext context;
    const grpc::Status status = client_->rpc().RegisterHolder(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    holder_ = response.holder_id();
  }

  v1::AllocateRequest AllocateRequest(std::uint64_t request_id, std::uint64_t bytes, std::uint32_t count) {
    v1::AllocateRequest request;
    request.set_session_id(client_->session());
    request.set_request_id(request_id);
    request.set_holder_id(holder_);
    auto* spec = request.add_specs();
    spec->set_device_uuid(node_->uuids()[0]);
    spec->set_chunk_bytes(bytes);
    spec->set_count(count);
    return request;
  }
  grpc::Status Allocate(const v1::AllocateRequest& request, v1::AllocateResponse* response) {
    grpc::ClientContext context;
    return client_->rpc().Allocate(&context, request, response);
  }
  grpc::Status Release(std::uint64_t session, std::uint64_t lease, v1::Outcome outcome, std::uint64_t request_id,
                       v1::ReleaseResponse* response) {
    v1::ReleaseRequest request;
    request.set_session_id(session);
    request.set_request_id(request_id);
    request.set_lease_id(lease);
    request.add_outcomes(outcome);
    grpc::ClientContext context;
    return client_->rpc().Release(&context, request, response);
  }
  std::uint64_t Charged() { return node_->Sum(node_->Memctl("devices")["devices"], "charged_bytes"); }

  std::unique_ptr<Node> node_;
  std::unique_ptr<WireClient> client_;
  std::uint64_t holder_ = 0;
};

TEST_F(WireTest, AnotherProcessesSessionIsRefused) {
  auto worker = node_->NewWorker("engine", "kv-cache");
  v1::RegisterHolderRequest request;
  request.set_session_id(std::stoull(worker->Get("session", "id")));
  request.set_request_id(5);
  request.set_name("thief");
  request.set_role(v1::ROLE_OTHER);
  v1::RegisterHolderResponse response;
  grpc::ClientContext context;
  const grpc::Status status = client_->rpc().RegisterHolder(&context, request, &response);
  EXPECT_EQ(WireClient::ReasonOf(status), "FOREIGN_SESSION") << status.error_message();
  EXPECT_EQ(node_->Memctl("holders")["holders"].size(), 2u);
}

TEST_F(WireTest, AStaleSessionIsRefused) {
  v1::RegisterHolderRequest request;
  request.set_session_id(client_->session() + 1000000);
  request.set_request_id(5);
  request.set_name("ghost");
  request.set_role(v1::ROLE_OTHER);
  v1::RegisterHolderResponse response;
  grpc::ClientContext context;
  const grpc::Status status = client_->rpc().RegisterHolder(&context, request, &response);
  EXPECT_EQ(WireClient::ReasonOf(status), "UNKNOWN_SESSION") << status.error_message();
}

TEST_F(WireTest, AnotherSessionsLeaseIsRefusedAndUnharmed) {
  auto worker = node_->NewWorker("engine", "kv-cache");
  const std::uint64_t lease = std::stoull(worker->Get("alloc kv " + node_->uuids()[0] + " 2097152 1", "lease"));
  v1::ReleaseResponse response;
  const grpc::Status status = Release(client_->session(), lease, v1::OUTCOME_UNMAPPED, 9, &response);
  EXPECT_EQ(WireClient::ReasonOf(status), "FOREIGN_LEASE") << status.error_message();
  wire::FetchBody fetch;
  fetch.lease_id = lease;
  fetch.count = 1;
  client_->SendFrameOf(wire::FrameType::kFetch, fetch, {}, 77);
  const ReceivedWireFrame refused = client_->Receive();
  ASSERT_FALSE(refused.end_of_stream);
  EXPECT_EQ(refused.header.type, wire::FrameType::kFetchRefused);
  EXPECT_EQ(refused.header.request_id, 77u);
  EXPECT_TRUE(refused.fds.empty());
  EXPECT_EQ(Charged(), 2 * kMiB);
}

TEST_F(WireTest, AReleasedLeaseIsNeitherFetchedNorMappedNorReleasedAgain) {
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(60, 2 * kMiB, 1), &response).ok());
  const ReceivedWireFrame pushed = client_->Receive();
  ASSERT_EQ(pushed.fds.size(), 1u);
  v1::ReleaseResponse released;
  ASSERT_TRUE(Release(client_->session(), response.lease_id(), v1::OUTCOME_UNMAPPED, 61, &released).ok());
  EXPECT_EQ(Charged(), 0u);
  wire::FetchBody fetch;
  fetch.lease_id = response.lease_id();
  fetch.count = 1;
  client_->SendFrameOf(wire::FrameType::kFetch, fetch, {}, 62);
  const ReceivedWireFrame refused = client_->Receive();
  ASSERT_FALSE(refused.end_of_stream);
  EXPECT_EQ(refused.header.type, wire::FrameType::kFetchRefused);
  EXPECT_TRUE(refused.fds.empty());
  const grpc::Status again = Release(client_->session(), response.lease_id(), v1::OUTCOME_UNMAPPED, 63, &released);
  EXPECT_EQ(WireClient::ReasonOf(again), "UNKNOWN_LEASE") << again.error_message();
  EXPECT_EQ(Charged(), 0u);
}

TEST_F(WireTest, ARetryWithTheSameRequestIdIsTheSameGrant) {
  v1::AllocateResponse first;
  v1::AllocateResponse again;
  ASSERT_TRUE(Allocate(AllocateRequest(40, 2 * kMiB, 2), &first).ok());
  ASSERT_TRUE(Allocate(AllocateRequest(40, 2 * kMiB, 2), &again).ok());
  EXPECT_EQ(first.lease_id(), again.lease_id());
  EXPECT_EQ(Charged(), 4 * kMiB);
  v1::AllocateResponse other;
  const grpc::Status status = Allocate(AllocateRequest(40, 2 * kMiB, 3), &other);
  EXPECT_EQ(WireClient::ReasonOf(status), "REQUEST_ID_REUSED") << status.error_message();
  EXPECT_EQ(WireClient::ReasonOf(Allocate(AllocateRequest(0, 2 * kMiB, 1), &other)), "INVALID_ARGUMENT");
  EXPECT_EQ(Charged(), 4 * kMiB);
}

TEST_F(WireTest, TheFdsOfAGrantArePushedBeforeItsReplyWithItsRequestId) {
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(41, 2 * kMiB, 2), &response).ok());
  EXPECT_EQ(response.pushed_chunks(), 2u);
  const ReceivedWireFrame frame = client_->Receive();
  ASSERT_FALSE(frame.end_of_stream);
  EXPECT_EQ(frame.header.type, wire::FrameType::kHandles);
  EXPECT_EQ(frame.header.request_id, 41u);
  EXPECT_EQ(frame.fds.size(), 2u);
  const auto& body = frame.As<wire::HandlesBody>();
  EXPECT_EQ(body.lease_id, response.lease_id());
  EXPECT_EQ(body.entries[1].chunk_id, response.chunks(1).chunk_id());
  EXPECT_EQ(body.entries[1].bytes, 2 * kMiB);
}

TEST_F(WireTest, AnUnacknowledgedGrantIsReleasedWithItsOwnersWord) {
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(42, 2 * kMiB, 3), &response).ok());
  { const ReceivedWireFrame frame = client_->Receive(); }  // the fds are closed unimported
  v1::ReleaseResponse released;
  ASSERT_TRUE(Release(client_->session(), response.lease_id(), v1::OUTCOME_UNMAPPED, 43, &released).ok());
  EXPECT_EQ(released.released_bytes(), 6 * kMiB);
  EXPECT_EQ(Charged(), 0u);
  node_->ExpectBooksMatchHardware();
  const grpc::Status again = Release(client_->session(), response.lease_id(), v1::OUTCOME_UNMAPPED, 44, &released);
  EXPECT_FALSE(again.ok());
  EXPECT_TRUE(WireClient::ReasonOf(again) == "UNKNOWN_LEASE" || WireClient::ReasonOf(again) == "ALREADY_RELEASED");
}

TEST_F(WireTest, StillMappedIsRefusedAndUnknownIsQuarantined) {
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(45, 2 * kMiB, 1), &response).ok());
  v1::ReleaseResponse released;
  const grpc::Status mapped = Release(client_->session(), response.lease_id(), v1::OUTCOME_STILL_MAPPED, 46, &released);
  EXPECT_EQ(WireClient::ReasonOf(mapped), "STILL_MAPPED");
  ASSERT_TRUE(Release(client_->session(), response.lease_id(), v1::OUTCOME_UNKNOWN, 47, &released).ok());
  EXPECT_EQ(released.quarantined_bytes(), 2 * kMiB);
  const json rows = node_->Memctl("quarantine")["records"];
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["reason"], "outcome-unknown");
  EXPECT_EQ(Charged(), 2 * kMiB);
}

TEST_F(WireTest, SealingTwiceIsRefused) {
  v1::BuildSegmentRequest build;
  build.set_session_id(client_->session());
  build.set_request_id(50);
  build.set_holder_id(holder_);
  build.set_name("models/twice");
  *build.mutable_specs() = AllocateRequest(1, 2 * kMiB, 1).specs();
  v1::BuildSegmentResponse built;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(client_->rpc().BuildSegment(&context, build, &built).ok());
  }
  v1::SealSegmentRequest seal;
  seal.set_session_id(client_->session());
  seal.set_lease_id(built.lease_id());
  seal.add_outcomes(v1::OUTCOME_STILL_MAPPED);
  v1::SealSegmentResponse sealed;
  const auto try_seal = [&](std::uint64_t request_id) {
    seal.set_request_id(request_id);
    grpc::ClientContext context;
    return client_->rpc().SealSegment(&context, seal, &sealed);
  };
  EXPECT_EQ(WireClient::ReasonOf(try_seal(51)), "STILL_MAPPED");
  seal.set_outcomes(0, v1::OUTCOME_UNMAPPED);
  const grpc::Status first = try_seal(52);
  ASSERT_TRUE(first.ok()) << first.error_message();
  EXPECT_EQ(sealed.name(), "models/twice@1");
  EXPECT_EQ(WireClient::ReasonOf(try_seal(53)), "ALREADY_SEALED");
}

TEST_F(WireTest, HelloRefusesAnotherDriverAndAnotherProtocol) {
  v1::HelloRequest hello;
  hello.set_session_id(client_->session());
  hello.set_driver(v1::DRIVER_KIND_CUDA);
  hello.set_protocol_major(1);
  v1::HelloResponse response;
  {
    grpc::ClientContext context;
    EXPECT_EQ(WireClient::ReasonOf(client_->rpc().Hello(&context, hello, &response)), "DRIVER_MISMATCH");
  }
  hello.set_driver(v1::DRIVER_KIND_SIM);
  hello.set_protocol_major(99);
  {
    grpc::ClientContext context;
    EXPECT_EQ(WireClient::ReasonOf(client_->rpc().Hello(&context, hello, &response)), "VERSION_MISMATCH");
  }
  hello.set_protocol_major(1);
  grpc::ClientContext context;
  ASSERT_TRUE(client_->rpc().Hello(&context, hello, &response).ok());
  EXPECT_EQ(response.devices(0).uuid(), node_->uuids()[0]);
}

TEST_F(WireTest, ASessionWithoutAWitnessPipeIsRefused) {
  WireClient client(node_->socket_dir());
  ASSERT_TRUE(client.ConnectHandles());
  client.SendFrameOf(wire::FrameType::kOpen, wire::OpenBody{});
  const ReceivedWireFrame answer = client.Receive();
  EXPECT_TRUE(answer.end_of_stream || answer.header.type == wire::FrameType::kRefused);
  WireClient not_a_pipe(node_->socket_dir());
  ASSERT_TRUE(not_a_pipe.ConnectHandles());
  not_a_pipe.SendFrameOf(wire::FrameType::kOpen, wire::OpenBody{}, {0});
  EXPECT_NE(not_a_pipe.Receive().header.type, wire::FrameType::kWelcome);
  EXPECT_EQ(node_->Memctl("sessions")["sessions"].size(), 1u);
}

TEST_F(WireTest, ALyingFrameFencesItsSessionAndNobodyElses) {
  auto worker = node_->NewWorker("engine", "kv-cache");
  worker->Do("alloc kv " + node_->uuids()[0] + " 2097152 1");
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(60, 2 * kMiB, 1), &response).ok());
  wire::FrameHeader lie;
  lie.type = wire::FrameType::kAcknowledge;
  lie.sequence = 2;
  lie.body_bytes = 4000;  // it brings 48
  wire::AcknowledgeBody body;
  client_->Send(lie, &body, sizeof(body), {});
  while (!client_->Receive().end_of_stream) {
  }
  node_->Eventually("the session is fenced", [&] {
    return node_->Memctl("status")["sessions_fenced"] == 1 && node_->Memctl("status")["sessions_live"] == 1;
  });
  v1::AllocateResponse refused;
  EXPECT_EQ(WireClient::ReasonOf(Allocate(AllocateRequest(61, 2 * kMiB, 1), &refused)), "SESSION_FENCED");
  worker->Do("map kv");
  // Its process lives, so its memory stays in quarantine.
  EXPECT_EQ(node_->Memctl("devices")["devices"][0]["quarantined_bytes"], 2 * kMiB);
  node_->ExpectBooksMatchHardware();
}

TEST_F(WireTest, ForgedAcknowledgementsAndMappingsChangeNothing) {
  v1::AllocateResponse response;
  ASSERT_TRUE(Allocate(AllocateRequest(62, 2 * kMiB, 1), &response).ok());
  wire::AcknowledgeBody ack;
  ack.handles_sequence = 123456;
  ack.access = wire::MappedAccess::kReadWrite;
  ack.imported[0] = 0xff;
  client_->SendFrameOf(wire::FrameType::kAcknowledge, ack);
  wire::MappingBody mapping;
  mapping.lease_id = response.lease_id() + 5000;
  mapping.count = 1;
  mapping.access = wire::MappedAccess::kReadWrite;
  client_->SendFrameOf(wire::FrameType::kMapping, mapping);
  mapping.lease_id = response.lease_id();
  mapping.first = 5;  // it has one chunk
  mapping.count = 2;
  client_->SendFrameOf(wire::FrameType::kMapping, mapping);
  // A fetch is answered in order, so the frames before it have been handled.
  wire::FetchBody fetch;
  fetch.lease_id = response.lease_id();
  fetch.count = 1;
  client_->SendFrameOf(wire::FrameType::kFetch, fetch, {}, 63);
  for (;;) {
    const ReceivedWireFrame frame = client_->Receive();
    if (frame.end_of_stream || frame.header.request_id == 63) break;
  }
  const json device = node_->Memctl("devices")["devices"][0];
  EXPECT_EQ(device["mapped_read_write_bytes"], 0);
  EXPECT_EQ(node_->Memctl("leases")["leases"][0]["chunks"][0]["state"], "undelivered");
}

}  // namespace
}  // namespace gpumem::e2e
