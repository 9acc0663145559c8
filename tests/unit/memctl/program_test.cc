// The program itself: its exit codes and lines, against no daemon and against a small server with its service.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gpumem/v1/admin.grpc.pb.h"

namespace gpumem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Ran {
  int exit = -1;
  std::string output;  // stdout and stderr
};

Ran Memctl(const std::string& arguments) {
  const std::string command = "env -u GPUMEM_ADMIN_SOCKET " TEST_BIN_DIR "/memctl " + arguments + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return {};
  Ran ran;
  char block[4096];
  for (std::size_t n; (n = std::fread(block, 1, sizeof block, pipe)) > 0;) ran.output.append(block, n);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) ran.exit = WEXITSTATUS(status);
  return ran;
}

long Lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

grpc::Status Refusal(grpc::StatusCode code, const std::string& reason, const std::string& retry,
                     const std::string& message) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("gpumem");
  (*info.mutable_metadata())["retry"] = retry;
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  return grpc::Status(code, message, details.SerializeAsString());
}

// Enough of a daemon for each way in which a call can end.
class Service : public v1::AdminService::Service {
 public:
  grpc::Status ListHolders(grpc::ServerContext*, const v1::ListHoldersRequest* request,
                           v1::ListHoldersResponse* response) override {
    // Three pages of two.
    response->set_instance("i");
    const std::uint64_t first = request->page_token();
    for (std::uint64_t id = first + 1; id <= first + 2; ++id) response->add_holders()->set_holder_id(id);
    if (first < 4) response->set_next_page_token(first + 2);
    return grpc::Status::OK;
  }
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest*,
                            v1::ListSessionsResponse* response) override {
    response->set_next_page_token(1);  // never ends
    return grpc::Status::OK;
  }
  grpc::Status RemoveSegment(grpc::ServerContext*, const v1::RemoveSegmentRequest* request,
                             v1::RemoveSegmentResponse* response) override {
    if (request->name() == "used@1") {
      return Refusal(grpc::StatusCode::FAILED_PRECONDITION, "SEGMENT_IN_USE", "later", "used@1 has 2 readers");
    }
    response->set_released_bytes(1 << 20);
    return grpc::Status::OK;
  }
  grpc::Status ListAllSegments(grpc::ServerContext*, const v1::ListAllSegmentsRequest* request,
                               v1::ListAllSegmentsResponse* response) override {
    if (request->prefix() == "auth") return Refusal(grpc::StatusCode::UNAUTHENTICATED, "UNKNOWN_SESSION", "no", "who");
    if (request->prefix() == "foreign") {
      google::rpc::ErrorInfo info;
      info.set_reason("SOMEBODY_ELSES");
      info.set_domain("example.com");
      google::rpc::Status details;
      details.add_details()->PackFrom(info);
      return grpc::Status(grpc::StatusCode::INTERNAL, "x", details.SerializeAsString());
    }
    response->add_segments()->set_name(request->prefix() + "/m@1");
    return grpc::Status::OK;
  }
  grpc::Status ListQuarantine(grpc::ServerContext*, const v1::ListQuarantineRequest*,
                              v1::ListQuarantineResponse*) override {
    return Refusal(grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE", "later", "the keeper does not answer");
  }
  grpc::Status ListDevices(grpc::ServerContext*, const v1::ListDevicesRequest*, v1::ListDevicesResponse*) override {
    return Refusal(grpc::StatusCode::PERMISSION_DENIED, "NOT_AN_OPERATOR", "no", "uid 1000 is no operator");
  }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*, v1::GetStatusResponse*) override {
    return Refusal(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later", "the daemon is stopping");
  }
  grpc::Status WatchAllEvents(grpc::ServerContext*, const v1::WatchAllEventsRequest*,
                              grpc::ServerWriter<v1::Event>* writer) override {
    v1::Event event;
    event.set_sequence(1);
    event.mutable_segment_changed()->set_name("m@1");
    event.mutable_segment_changed()->set_state(v1::SEGMENT_STATE_SEALED);
    writer->Write(event);
    return grpc::Status::OK;
  }
};

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/gpumem-memctl-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    dir_ = pattern;
    socket_ = dir_ + "/admin.sock";
  }
  void TearDown() override { EXPECT_EQ(std::system(("rm -rf " + dir_).c_str()), 0); }
  void StartServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  Ran Run(const std::string& arguments) { return Memctl("--socket " + socket_ + " " + arguments); }

  std::string dir_, socket_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ProgramTest, HelpSaysWhatEachExitCodeMeans) {
  const Ran ran = Memctl("--help");
  EXPECT_EQ(ran.exit, 0);
  for (const char* text : {"status", "devices", "sessions", "holders", "leases", "segments", "quarantine", "events",
                           "completion", "--socket", "--timeout", "--json", "GPUMEM_ADMIN_SOCKET", "  0  ", "  1  ",
                           "  2  ", "  3  ", "  4  ", "  5  "}) {
    EXPECT_THAT(ran.output, HasSubstr(text));
  }
  EXPECT_EQ(Memctl("segments rm --help").exit, 0);
  const Ran version = Memctl("--version");
  EXPECT_EQ(version.exit, 0);
  EXPECT_THAT(version.output, StartsWith("memctl "));
}

TEST_F(ProgramTest, AWrongCommandLineExitsWith2AndOneLine) {
  for (const char* wrong :
       {"", "frob", "--frob", "devices --frob", "devices extra", "segments rm", "completion", "completion zsh",
        "--timeout 0 status", "--timeout x status", "--timeout 1e9 status", "--socket"}) {
    const Ran ran = Memctl(wrong);
    EXPECT_EQ(ran.exit, 2) << wrong;
    EXPECT_EQ(Lines(ran.output), 1) << ran.output;
    EXPECT_THAT(ran.output, AllOf(StartsWith("memctl: "), HasSubstr("memctl --help"))) << wrong;
  }
  EXPECT_THAT(Memctl("frob").output, HasSubstr("'frob'"));
  EXPECT_EQ(Memctl("--socket " + std::string(200, 'x') + " status").exit, 2);
}

TEST_F(ProgramTest, WithoutADaemonItSaysWhichSocketAndHowToStart) {
  for (const char* command : {"status", "devices --json", "segments rm m@1", "events"}) {
    const Ran ran = Run(command);
    EXPECT_EQ(ran.exit, 3) << command;
    EXPECT_EQ(Lines(ran.output), 1) << ran.output;
    EXPECT_THAT(ran.output, AllOf(HasSubstr(socket_), HasSubstr("No such file"), HasSubstr("systemctl start gpumemd")));
  }
  const Ran by_default = Memctl("status");
  if (::access("/run/gpumemd-admin/admin.sock", F_OK) != 0) {
    EXPECT_EQ(by_default.exit, 3);
    EXPECT_THAT(by_default.output, HasSubstr("/run/gpumemd-admin/admin.sock"));
  }
}

TEST_F(ProgramTest, TheEnvironmentNamesTheSocketAndTheFlagWins) {
  FILE* pipe = ::popen(("GPUMEM_ADMIN_SOCKET=" + dir_ + "/env.sock " TEST_BIN_DIR "/memctl status 2>&1").c_str(), "re");
  ASSERT_NE(pipe, nullptr);
  char line[1024] = {};
  EXPECT_NE(std::fgets(line, sizeof line, pipe), nullptr);
  ::pclose(pipe);
  EXPECT_THAT(line, HasSubstr(dir_ + "/env.sock"));
}

TEST_F(ProgramTest, ASocketThatNobodyListensAtIsNoDaemon) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_.c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const Ran refused = Run("status");
  EXPECT_EQ(refused.exit, 3);
  EXPECT_THAT(refused.output, HasSubstr("Connection refused"));

  // Listening, but nobody answers: a stopped daemon.
  ASSERT_EQ(::listen(socket.get(), 8), 0);
  const Ran silent = Run("--timeout 0.2 status");
  EXPECT_EQ(silent.exit, 5);
  EXPECT_EQ(Lines(silent.output), 1) << silent.output;
  EXPECT_THAT(silent.output, AllOf(HasSubstr(socket_), HasSubstr("200 ms")));
}

TEST_F(ProgramTest, TheDaemonsRefusalsHaveTheirExitCodesAndReasons) {
  StartServer();
  const Ran used = Run("segments rm used@1");
  EXPECT_EQ(used.exit, 1);
  EXPECT_EQ(used.output, "memctl: used@1 has 2 readers [SEGMENT_IN_USE]; the same command may succeed later\n");
  const Ran draining = Run("status");
  EXPECT_EQ(draining.exit, 1);
  EXPECT_THAT(draining.output, HasSubstr("[DRAINING]"));
  const Ran forbidden = Run("devices");
  EXPECT_EQ(forbidden.exit, 4);
  EXPECT_THAT(forbidden.output, HasSubstr("uid 1000 is no operator [NOT_AN_OPERATOR]"));
  EXPECT_EQ(Run("leases").exit, 1);  // not implemented there
  const Ran late = Run("quarantine");
  EXPECT_EQ(late.exit, 5);
  EXPECT_THAT(late.output, HasSubstr("the keeper does not answer [DEADLINE]"));
  EXPECT_EQ(Run("segments --prefix auth").exit, 4);
  const Ran foreign = Run("segments --prefix foreign");
  EXPECT_EQ(foreign.exit, 1);
  EXPECT_EQ(foreign.output, "memctl: x\n") << "only the daemon's own details are reasons";
}

TEST_F(ProgramTest, APrefixIsTheDaemonsToApply) {
  StartServer();
  EXPECT_THAT(Run("segments --prefix llm").output, HasSubstr("llm/m@1"));
}

TEST_F(ProgramTest, WhoMayNotOpenTheSocketIsNotPermitted) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  StartServer();  // in a directory for its owner only
  FILE* pipe = ::popen(("setpriv --reuid=65534 --regid=65534 --clear-groups " TEST_BIN_DIR "/memctl --socket " +
                        socket_ + " status 2>&1")
                           .c_str(),
                       "re");
  ASSERT_NE(pipe, nullptr);
  char line[1024] = {};
  (void)std::fgets(line, sizeof line, pipe);
  const int status = ::pclose(pipe);
  if (WEXITSTATUS(status) > 5) GTEST_SKIP() << "nobody cannot run memctl here: " << line;
  EXPECT_EQ(WEXITSTATUS(status), 4) << line;
  EXPECT_THAT(line, HasSubstr(socket_));
}

TEST_F(ProgramTest, RemovesASegment) {
  StartServer();
  EXPECT_EQ(Run("segments rm free@1").output, "free@1 removed, 1 MiB released\n");
  EXPECT_EQ(Run("segments rm free@1 --json").output, "{\n  \"instance\": \"\",\n  \"released_bytes\": 1048576\n}\n");
}

TEST_F(ProgramTest, PagesAreJoinedAndAListThatDoesNotEndIsADefect) {
  StartServer();
  const Ran ran = Run("holders");
  EXPECT_EQ(ran.exit, 0);
  EXPECT_EQ(Lines(ran.output), 1 + 6) << ran.output;
  const Ran endless = Run("sessions");
  EXPECT_EQ(endless.exit, 1);
  EXPECT_THAT(endless.output, HasSubstr("does not advance"));
}

TEST_F(ProgramTest, EventsStreamUntilTheDaemonEndsThem) {
  StartServer();
  const Ran ran = Run("events --json");
  EXPECT_EQ(ran.exit, 3);
  EXPECT_THAT(ran.output,
              StartsWith(R"({"sequence":1,"at":null,"segment_changed":{"name":"m@1","state":"sealed","removed":false}})"
                         "\n"));
}

TEST_F(ProgramTest, AFullStdoutIsAnError) {
  StartServer();
  EXPECT_EQ(Run("holders >/dev/full").exit, 1);
  EXPECT_EQ(Run("events >/dev/full").exit, 1);
}

TEST_F(ProgramTest, CompletionKnowsEveryCommand) {
  const Ran ran = Memctl("completion bash");
  EXPECT_EQ(ran.exit, 0);
  const std::string script = dir_ + "/c.bash";
  FILE* file = std::fopen(script.c_str(), "we");
  ASSERT_NE(file, nullptr);
  std::fwrite(ran.output.data(), 1, ran.output.size(), file);
  std::fclose(file);
  const auto complete = [&](const std::string& words, int at) {
    const std::string command = "bash -c 'source " + script + "; COMP_WORDS=(" + words +
                                "); COMP_CWORD=" + std::to_string(at) + "; _memctl; echo \"${COMPREPLY[*]}\"' 2>&1";
    FILE* pipe = ::popen(command.c_str(), "re");
    char line[1024] = {};
    if (pipe == nullptr || std::fgets(line, sizeof line, pipe) == nullptr) return std::string("failed");
    ::pclose(pipe);
    return std::string(line);
  };
  EXPECT_EQ(complete("memctl \"\"", 1),
            "status devices sessions holders leases segments quarantine events completion --socket --timeout --json "
            "--help --version\n");
  EXPECT_EQ(complete("memctl --json se", 2), "sessions segments\n");
  EXPECT_EQ(complete("memctl segments r", 2), "rm\n");
  EXPECT_EQ(complete("memctl completion \"\"", 2), "bash\n");
}

}  // namespace
}  // namespace gpumem
