// The transport against a real gRPC server, and http2.h against peers that break the rules.
#include "client/transport.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <atomic>
#include <functional>
#include <thread>

#include "base/unique_fd.h"
#include "client/messages.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gpumem/v1/memory.grpc.pb.h"
#include "tests/unit/client/temp_dir.h"

namespace gpumem::client {
namespace {

namespace pb = gpumem::v1;
using testing::HasSubstr;
using namespace std::chrono_literals;  // NOLINT: durations in tests

Deadline Soon() { return DeadlineAfter(20s); }

// Every unary call is RegisterHolder; what it does is the test's.
class Service final : public pb::MemoryService::Service {
 public:
  using Handler =
      std::function<grpc::Status(grpc::ServerContext*, const pb::RegisterHolderRequest&, pb::RegisterHolderResponse*)>;
  Handler handler;

  grpc::Status RegisterHolder(grpc::ServerContext* context, const pb::RegisterHolderRequest* request,
                              pb::RegisterHolderResponse* response) override {
    return handler(context, *request, response);
  }
  grpc::Status WatchEvents(grpc::ServerContext*, const pb::WatchEventsRequest*,
                           grpc::ServerWriter<pb::Event>* writer) override {
    for (std::uint64_t i = 1; i <= 3; ++i) {
      pb::Event event;
      event.set_sequence(i);
      event.mutable_daemon_stopping();
      writer->Write(event);
    }
    return grpc::Status::OK;
  }
};

class TransportTest : public testing::Test {
 protected:
  TransportTest() : path_(dir_.path() + "/control.sock") {
    service_.handler = [](grpc::ServerContext*, const pb::RegisterHolderRequest& request,
                          pb::RegisterHolderResponse* response) {
      response->set_holder_id(request.request_id());
      return grpc::Status::OK;
    };
  }
  ~TransportTest() override { Stop(); }

  void Start() {
    // gRPC's own shutdown can take the 10 s of a poller that helps with large writes: a queue that is never destroyed
    // keeps it from happening between tests.
    [[maybe_unused]] static auto* const keep = new grpc::CompletionQueue;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + path_, grpc::InsecureServerCredentials());
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }

  Status Register(Transport* transport, std::uint64_t id, std::uint64_t* holder, Deadline deadline = Soon()) {
    std::string bytes;
    Status status = transport->Call("RegisterHolder", Encode(RegisterHolderRequest{1, id, "n", 1}), deadline, &bytes);
    RegisterHolderResponse response;
    if (status.ok()) {
      EXPECT_TRUE(Decode(bytes, &response));
    }
    *holder = response.holder_id;
    return status;
  }

  client_test::TempDir dir_;
  const std::string path_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  std::uint64_t holder_ = 0;
};

TEST_F(TransportTest, ManyCallsOnOneConnection) {
  Start();
  Transport transport(path_);
  for (std::uint64_t i = 1; i <= 200; ++i) {
    ASSERT_TRUE(Register(&transport, i, &holder_).ok());
    EXPECT_EQ(holder_, i);
  }
}

TEST_F(TransportTest, HeadersAreThoseOfGrpc) {
  std::string agent;
  bool deadline_known = false;
  service_.handler = [&](grpc::ServerContext* context, const auto&, auto*) {
    for (const auto& [key, value] : context->client_metadata()) {
      if (key == "user-agent") agent.assign(value.data(), value.size());
    }
    const auto left = context->deadline() - std::chrono::system_clock::now();
    deadline_known = left > 10s && left < 21s;
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  ASSERT_TRUE(Register(&transport, 1, &holder_).ok());
  EXPECT_EQ(agent, "gpumem/0.1.0");
  EXPECT_TRUE(deadline_known);
}

TEST_F(TransportTest, ThreadsCallSideBySide) {
  Start();
  Transport transport(path_);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 1; i <= 50; ++i) {
        std::uint64_t holder = 0;
        if (!Register(&transport, t * 1000 + i, &holder).ok() || holder != t * 1000 + i) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(TransportTest, ASlowCallDoesNotHoldUpAnother) {
  std::atomic<bool> release{false};
  service_.handler = [&](grpc::ServerContext*, const pb::RegisterHolderRequest& request, auto*) {
    while (request.request_id() == 1 && !release) std::this_thread::sleep_for(1ms);
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  std::thread slow([&] {
    std::uint64_t holder = 0;
    EXPECT_TRUE(Register(&transport, 1, &holder).ok());
  });
  EXPECT_TRUE(Register(&transport, 2, &holder_).ok());
  release = true;
  slow.join();
}

TEST_F(TransportTest, ACallThatFindsEveryConnectionBusyHasItsOwnDeadline) {
  std::atomic<bool> release{false};
  std::atomic<std::size_t> entered{0};
  service_.handler = [&](auto*, const auto&, auto*) {
    ++entered;
    while (!release) std::this_thread::sleep_for(1ms);
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 1; i <= Transport::kMaxConnections; ++i) {
    threads.emplace_back([&, i] {
      std::uint64_t holder = 0;
      EXPECT_TRUE(Register(&transport, i, &holder).ok());
    });
  }
  while (entered < Transport::kMaxConnections) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(Register(&transport, 99, &holder_, DeadlineAfter(20ms)).reason, Reason::DEADLINE);
  EXPECT_EQ(entered, Transport::kMaxConnections);
  release = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TransportTest, ErrorInfoBecomesReasonAndNumbers) {
  service_.handler = [](auto*, const auto&, auto*) {
    google::rpc::ErrorInfo info;
    info.set_reason("QUOTA");
    info.set_domain("gpumem");
    (*info.mutable_metadata())["asked_bytes"] = "18446744073709551615";
    (*info.mutable_metadata())["limit_bytes"] = "20";
    (*info.mutable_metadata())["available_bytes"] = "x";
    google::rpc::Status details;
    details.add_details()->PackFrom(info);
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "50 % too much\nfür \"a\"", details.SerializeAsString());
  };
  Start();
  Transport transport(path_);
  const Status status = Register(&transport, 1, &holder_);
  EXPECT_EQ(status.reason, Reason::QUOTA);
  EXPECT_EQ(status.message, "50 % too much\nfür \"a\"");
  EXPECT_EQ(status.asked_bytes, ~std::uint64_t{0});
  EXPECT_EQ(status.limit_bytes, 20u);
  EXPECT_EQ(status.available_bytes, 0u);
}

TEST_F(TransportTest, CodesWithoutDetailsAndUnknownMethods) {
  service_.handler = [](auto*, const auto&, auto*) { return grpc::Status(grpc::StatusCode::INTERNAL, "oops"); };
  Start();
  Transport transport(path_);
  EXPECT_EQ(Register(&transport, 1, &holder_).reason, Reason::INTERNAL);
  std::string bytes;
  EXPECT_EQ(transport.Call("NoSuchCall", "", Soon(), &bytes).reason, Reason::VERSION_MISMATCH);
}

TEST_F(TransportTest, DetailsOfAnotherDomainAreNotReasons) {
  service_.handler = [](auto*, const auto&, auto*) {
    google::rpc::ErrorInfo info;
    info.set_reason("QUOTA");
    info.set_domain("example.com");
    google::rpc::Status details;
    details.add_details()->PackFrom(info);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no", details.SerializeAsString());
  };
  Start();
  Transport transport(path_);
  EXPECT_EQ(Register(&transport, 1, &holder_).reason, Reason::INVALID_ARGUMENT);
}

TEST_F(TransportTest, ReasonOfANewerDaemonKeepsItsName) {
  service_.handler = [](auto*, const auto&, auto*) {
    google::rpc::ErrorInfo info;
    info.set_reason("NOT_INVENTED_YET");
    info.set_domain("gpumem");
    google::rpc::Status details;
    details.add_details()->PackFrom(info);
    return grpc::Status(grpc::StatusCode::ABORTED, "new", details.SerializeAsString());
  };
  Start();
  Transport transport(path_);
  const Status status = Register(&transport, 1, &holder_);
  EXPECT_EQ(status.reason, Reason::INTERNAL);
  EXPECT_THAT(status.message, HasSubstr("NOT_INVENTED_YET"));
}

TEST_F(TransportTest, LargeMessagesBothWays) {
  service_.handler = [](auto*, const pb::RegisterHolderRequest& request, pb::RegisterHolderResponse* response) {
    response->set_instance(request.name());
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  const std::string name(8 << 20, 'x');
  std::string bytes;
  ASSERT_TRUE(transport.Call("RegisterHolder", Encode(RegisterHolderRequest{1, 1, name, 1}), Soon(), &bytes).ok());
  RegisterHolderResponse response;
  ASSERT_TRUE(Decode(bytes, &response));
  EXPECT_EQ(response.instance, name);
}

TEST_F(TransportTest, AMessageOverTheLimitIsRefusedAndTheConnectionLives) {
  service_.handler = [](auto*, const pb::RegisterHolderRequest& request, pb::RegisterHolderResponse* response) {
    if (request.request_id() == 1) response->set_instance(std::string(kMaxMessageBytes + 1, 'x'));
    response->set_holder_id(request.request_id());
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  const Status status = Register(&transport, 1, &holder_);
  EXPECT_EQ(status.reason, Reason::PROTOCOL);
  EXPECT_THAT(status.message, HasSubstr(std::to_string(kMaxMessageBytes)));
  EXPECT_TRUE(Register(&transport, 2, &holder_).ok());
  EXPECT_EQ(holder_, 2u);
}

TEST_F(TransportTest, DeadlineCancelsTheCallAndTheConnectionLives) {
  std::atomic<bool> cancelled{false};
  service_.handler = [&](grpc::ServerContext* context, const pb::RegisterHolderRequest& request, auto*) {
    while (request.request_id() == 1 && !context->IsCancelled()) std::this_thread::sleep_for(1ms);
    if (request.request_id() == 1) cancelled = true;
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  EXPECT_EQ(Register(&transport, 1, &holder_, DeadlineAfter(50ms)).reason, Reason::DEADLINE);
  EXPECT_TRUE(Register(&transport, 2, &holder_).ok());
  for (int i = 0; i < 5000 && !cancelled; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(cancelled);
}

TEST_F(TransportTest, NobodyThereNamesThePath) {
  Transport transport(path_);
  const Status status = Register(&transport, 1, &holder_);
  EXPECT_EQ(status.reason, Reason::NOT_RUNNING);
  EXPECT_THAT(status.message, HasSubstr(path_));
  Transport too_long("/tmp/" + std::string(200, 'a'));
  const Status refused = Register(&too_long, 1, &holder_);
  EXPECT_EQ(refused.reason, Reason::INVALID_ARGUMENT);
  EXPECT_THAT(refused.message, HasSubstr("107"));
}

TEST_F(TransportTest, AServerThatGoesAwayMidCall) {
  std::atomic<bool> entered{false};
  service_.handler = [&](grpc::ServerContext* context, const auto&, auto*) {
    entered = true;
    while (!context->IsCancelled()) std::this_thread::sleep_for(1ms);
    return grpc::Status(grpc::StatusCode::CANCELLED, "stopping");
  };
  Start();
  Transport transport(path_);
  Status status;
  std::thread caller([&] { status = Register(&transport, 1, &holder_); });
  while (!entered) std::this_thread::sleep_for(1ms);
  Stop();
  caller.join();
  EXPECT_THAT(status.reason, testing::AnyOf(Reason::DISCONNECTED, Reason::CANCELLED));
}

TEST_F(TransportTest, AServerThatCameBackIsFoundOnANewConnection) {
  Start();
  Transport transport(path_);
  ASSERT_TRUE(Register(&transport, 1, &holder_).ok());
  Stop();
  Start();
  EXPECT_TRUE(Register(&transport, 2, &holder_).ok());
}

TEST_F(TransportTest, ShutdownEndsACallAtOnce) {
  std::atomic<bool> entered{false};
  service_.handler = [&](grpc::ServerContext* context, const auto&, auto*) {
    entered = true;
    while (!context->IsCancelled()) std::this_thread::sleep_for(1ms);
    return grpc::Status::OK;
  };
  Start();
  Transport transport(path_);
  Status status;
  std::thread caller([&] { status = Register(&transport, 1, &holder_, DeadlineAfter(60s)); });
  while (!entered) std::this_thread::sleep_for(1ms);
  transport.Shutdown();
  caller.join();
  EXPECT_EQ(status.reason, Reason::DISCONNECTED);
  EXPECT_EQ(Register(&transport, 2, &holder_).reason, Reason::DISCONNECTED);
}

TEST_F(TransportTest, StreamOfEvents) {
  Start();
  Transport transport(path_);
  std::unique_ptr<Http2Connection> stream;
  ASSERT_TRUE(transport.Open("WatchEvents", Encode(WatchEventsRequest{1}), Soon(), &stream).ok());
  std::vector<std::uint64_t> sequences;
  for (;;) {
    std::string message;  // opening it may have read all of them
    while (stream->NextMessage(&message)) {
      Event event;
      ASSERT_TRUE(Decode(message, &event));
      sequences.push_back(event.sequence);
    }
    if (stream->ended()) break;
    WaitFor(stream->fd(), POLLIN, Soon());
    ASSERT_TRUE(stream->RunReady().ok());
  }
  EXPECT_THAT(sequences, testing::ElementsAre(1u, 2u, 3u));
  EXPECT_TRUE(stream->Outcome().ok());
}

std::atomic<int> alarms{0};

TEST_F(TransportTest, AStormOfSignalsDisturbsNothing) {
  Start();
  Transport transport(path_);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++alarms; };
  sigaction(SIGALRM, &action, &before);
  const itimerval storm = {{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &storm, nullptr);
  int failed = 0;
  for (std::uint64_t i = 1; i <= 500; ++i) failed += Register(&transport, i, &holder_).ok() ? 0 : 1;
  while (alarms < 20) ::poll(nullptr, 0, 1);
  const itimerval calm = {};
  setitimer(ITIMER_REAL, &calm, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_EQ(failed, 0);
}

// A peer that says what the test says, on the other end of a socketpair.
class RawPeerTest : public testing::Test {
 protected:
  RawPeerTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    peer_.reset(ends[1]);
    EXPECT_TRUE(Http2Connection::Make(GuardedFd::Adopt(ends[0]), &connection_).ok());
  }
  Status Call(Deadline deadline) {
    if (Status status = connection_->Begin("/s/m", "", deadline); !status.ok()) return status;
    if (Status status = connection_->RunUntilEnd(deadline); !status.ok()) return status;
    return connection_->Outcome();
  }
  void Say(std::string_view bytes) {
    ASSERT_EQ(::send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static std::string Frame(char type, char flags, std::uint32_t stream, const std::string& payload) {
    std::string frame;
    for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
    frame.push_back(type);
    frame.push_back(flags);
    for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
    return frame + payload;
  }
  // HPACK: a literal without indexing.
  static std::string Field(const std::string& name, const std::string& value) {
    std::string out(1, '\0');
    out.push_back(static_cast<char>(name.size()));
    out += name;
    out.push_back(static_cast<char>(value.size()));
    return out + value;
  }

  UniqueFd peer_;
  std::unique_ptr<Http2Connection> connection_;
  const std::string settings_ = Frame(4, 0, 0, "");
};

TEST_F(RawPeerTest, TrailersOnly) {
  Say(settings_ + Frame(1, 0x5, 1,
                        Field(":status", "200") + Field("content-type", "application/grpc") +
                            Field("grpc-status", "5") + Field("grpc-message", "a%20b%zz%")));
  const Status status = Call(Soon());
  EXPECT_EQ(status.reason, Reason::INTERNAL);
  EXPECT_EQ(status.message, "a b%zz%");
}

TEST_F(RawPeerTest, AnythingButGrpcIsNamed) {
  Say(settings_ + Frame(1, 0x5, 1, Field(":status", "404") + Field("content-type", "text/html")));
  Status status = Call(Soon());
  EXPECT_EQ(status.reason, Reason::PROTOCOL);
  EXPECT_THAT(status.message, HasSubstr("404"));
  Say(Frame(1, 0x5, 3, Field(":status", "200") + Field("content-type", "text/html")));
  status = Call(Soon());
  EXPECT_EQ(status.reason, Reason::PROTOCOL);
  EXPECT_THAT(status.message, HasSubstr("text/html"));
  Say(Frame(1, 0x5, 5, Field(":status", "200") + Field("content-type", "application/grpc")));
  status = Call(Soon());
  EXPECT_THAT(status.message, HasSubstr("no grpc-status"));
}

TEST_F(RawPeerTest, AnAnswerThatCameBeforeTheRequestWasReadCounts) {
  Say(settings_ + Frame(1, 0x5, 1,
                        Field(":status", "200") + Field("content-type", "application/grpc") +
                            Field("grpc-status", "8") + Field("grpc-message", "too%20large")));
  peer_.reset();
  ASSERT_TRUE(connection_->Begin("/s/m", "xyz", Soon()).ok());
  ASSERT_TRUE(connection_->RunUntilEnd(Soon()).ok());
  EXPECT_EQ(connection_->Outcome().message, "too large");
}

TEST_F(RawPeerTest, NoHttpAtAllIsALostConnection) {
  Say("SSH-2.0-OpenSSH_9.2 and then some more bytes than a frame header has\r\n");
  EXPECT_EQ(Call(Soon()).reason, Reason::DISCONNECTED);
  EXPECT_FALSE(connection_->Usable());
}

TEST_F(RawPeerTest, CompressedMessageIsRefused) {
  Say(settings_ + Frame(1, 0x4, 1, Field(":status", "200") + Field("content-type", "application/grpc")) +
      Frame(0, 0, 1, std::string("\1\0\0\0\1x", 6)));
  const Status status = Call(Soon());
  EXPECT_EQ(status.reason, Reason::PROTOCOL);
  EXPECT_THAT(status.message, HasSubstr("compressed"));
}

TEST_F(RawPeerTest, EndlessHeadersAreRefused) {
  std::string fields = Field(":status", "200");
  for (int i = 0; i < 100; ++i) fields += Field("x-" + std::to_string(i), std::string(120, 'v'));
  std::string out = settings_ + Frame(1, 0, 1, fields);
  for (int i = 0; i < 8; ++i) out += Frame(9, 0, 1, fields.substr(fields.find("x-") - 2));
  Say(out + Frame(9, 4, 1, ""));
  EXPECT_FALSE(Call(DeadlineAfter(2s)).ok());
}

TEST_F(RawPeerTest, ResetCodes) {
  Say(settings_ + Frame(3, 0, 1, std::string("\0\0\0\x8", 4)));
  EXPECT_EQ(Call(Soon()).reason, Reason::CANCELLED);
  Say(Frame(3, 0, 3, std::string("\0\0\0\xb", 4)));
  EXPECT_EQ(Call(Soon()).reason, Reason::LIMIT);
}

TEST_F(RawPeerTest, GoAwayLetsNoNewCallBegin) {
  // Streams up to 1 are served; then no more.
  Say(settings_ + Frame(7, 0, 0, std::string("\0\0\0\1\0\0\0\0", 8)) +
      Frame(1, 0x5, 1,
            Field(":status", "200") + Field("content-type", "application/grpc") + Field("grpc-status", "0")));
  EXPECT_TRUE(Call(Soon()).ok());
  EXPECT_FALSE(connection_->Usable());
}

TEST_F(RawPeerTest, GoAwayOfTheCallItself) {
  Say(settings_ + Frame(7, 0, 0, std::string("\0\0\0\0\0\0\0\0", 8)));
  EXPECT_EQ(Call(Soon()).reason, Reason::DISCONNECTED);
}

TEST_F(RawPeerTest, EndOfStreamMidCallAndNoSigpipe) {
  peer_.reset();
  struct sigaction before {};
  sigaction(SIGPIPE, nullptr, &before);
  EXPECT_EQ(before.sa_handler, SIG_DFL);
  EXPECT_EQ(Call(Soon()).reason, Reason::DISCONNECTED);
  struct sigaction after {};
  sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
}

TEST_F(RawPeerTest, APeerThatReadsNothing) {
  const int small = 4096;
  ::setsockopt(connection_->fd(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  ASSERT_TRUE(connection_->Begin("/s/m", std::string(1 << 20, 'x'), DeadlineAfter(30ms)).ok());
  EXPECT_EQ(connection_->RunUntilEnd(DeadlineAfter(30ms)).reason, Reason::DEADLINE);
}

TEST(Base64Test, PaddedOrNot) {
  EXPECT_EQ(Base64Decode(""), "");
  EXPECT_EQ(Base64Decode("YQ=="), "a");
  EXPECT_EQ(Base64Decode("YQ"), "a");
  EXPECT_EQ(Base64Decode("YWJj"), "abc");
  EXPECT_EQ(Base64Decode("//79"), "\xff\xfe\xfd");
  EXPECT_EQ(Base64Decode("Y"), std::nullopt);
  EXPECT_EQ(Base64Decode("Y!=="), std::nullopt);
}

}  // namespace
}  // namespace gpumem::client
