// daemon/service/server.cc: see server.h.
#include "daemon/service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <grpcpp/support/server_interceptor.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/core/reasons.h"
#include "daemon/service/admin_service.h"
#include "daemon/service/memory_service.h"
#include "daemon/service/requests.h"

namespace gpumem::service {
namespace {

constexpr char kMemoryServiceName[] = "gpumem.v1.MemoryService";
constexpr char kAdminServiceName[] = "gpumem.v1.AdminService";

// Tells the session room of every call, those of gRPC's own health and reflection services included: they do not pass
// through our handlers.
class MarkUsed final : public grpc::experimental::Interceptor {
 public:
  MarkUsed(const Node* node, grpc::experimental::ServerRpcInfo* call) : node_(node), call_(call) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      node_->mark_used(call_->server_context()->peer());
    }
    methods->Proceed();
  }

 private:
  const Node* const node_;
  grpc::experimental::ServerRpcInfo* const call_;
};

class MarkUsedFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit MarkUsedFactory(const Node* node) : node_(node) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* call) override {
    return new MarkUsed(node_, call);
  }

 private:
  const Node* const node_;
};

std::unique_ptr<grpc::Server> Build(const Node* node, grpc::Service* service) {
  grpc::ServerBuilder builder;
  builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMaxMessageReceiveBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxCallsPerConnection);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<MarkUsedFactory>(node));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  return builder.BuildAndStart();
}

}  // namespace

class Servers::Impl {
 public:
  explicit Impl(Node node) : node_(std::move(node)), memory_(&node_, &clients_), admin_(&node_, &clients_) {}
  ~Impl() {
    if (stopper_.joinable()) stopper_.join();
  }

  absl::Status Start() {
    // Process-wide switches that take effect in BuildAndStart. The explicit call keeps the linker from dropping the
    // plugin's library.
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    control_ = Build(&node_, &memory_);
    operators_ = Build(&node_, &admin_);
    if (control_ == nullptr || operators_ == nullptr) {
      return core::Error(core::Reason::INTERNAL, "gRPC did not start a server; its own log lines above say why");
    }
    SetServing(false);
    return absl::OkStatus();
  }

  void SetServing(bool serving) {
    for (const auto& [server, name] :
         {std::pair(control_.get(), kMemoryServiceName), std::pair(operators_.get(), kAdminServiceName)}) {
      server->GetHealthCheckService()->SetServingStatus("", serving);
      server->GetHealthCheckService()->SetServingStatus(name, serving);
    }
  }

  void AdoptControl(int fd) { grpc::AddInsecureChannelFromFd(control_.get(), fd); }
  void AdoptAdmin(int fd) { grpc::AddInsecureChannelFromFd(operators_.get(), fd); }

  void Shutdown(std::chrono::milliseconds grace, std::function<void()> done) {
    stopper_ = std::thread([this, grace, done = std::move(done)] {
      const auto deadline = std::chrono::system_clock::now() + grace;
      // Workers first: an operator may watch the node until the end.
      control_->Shutdown(deadline);
      operators_->Shutdown(deadline);
      node_.loop->Post(done);
    });
  }

 private:
  const Node node_;
  ClientVersions clients_;
  MemoryServiceImpl memory_;
  AdminServiceImpl admin_;
  std::unique_ptr<grpc::Server> control_;
  std::unique_ptr<grpc::Server> operators_;
  std::thread stopper_;
};

Servers::Servers(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Servers::~Servers() = default;

absl::StatusOr<std::unique_ptr<Servers>> Servers::Start(Node node) {
  auto impl = std::make_unique<Impl>(std::move(node));
  if (absl::Status started = impl->Start(); !started.ok()) return started;
  return std::unique_ptr<Servers>(new Servers(std::move(impl)));
}

void Servers::AdoptControl(int fd) { impl_->AdoptControl(fd); }
void Servers::AdoptAdmin(int fd) { impl_->AdoptAdmin(fd); }
void Servers::SetServing(bool serving) { impl_->SetServing(serving); }
void Servers::Shutdown(std::chrono::milliseconds grace, std::function<void()> done) {
  impl_->Shutdown(grace, std::move(done));
}

}  // namespace gpumem::service
