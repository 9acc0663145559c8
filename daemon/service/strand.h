// daemon/service/strand.h: what both services need of the rest of the front, and how a call reaches the strand.
//
// Handlers run on gRPC's threads, translate and never block: identity and decoding there, then one event posted to the
// manager's strand, then the reactor is finished from the reply. May call: base's loop, manager, proto, grpc++.
#ifndef GPUMEM_DAEMON_SERVICE_STRAND_H_
#define GPUMEM_DAEMON_SERVICE_STRAND_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "daemon/core/reasons.h"
#include "daemon/service/node.h"
#include "daemon/service/status_map.h"
#include "daemon/text.h"

namespace gpumem::service {

// A call that its caller would let wait longer than this, or for ever, is ended here. Nothing that the daemon does
// takes this long unless a driver hangs.
inline constexpr std::chrono::seconds kLongestCall{120};

// The answer of one unary call, given once: by the strand's reply, by the caller's cancellation (its deadline
// included) or by kLongestCall, whichever is first; what comes later is dropped. Thread-safe. Outlives the reactor,
// which gRPC keeps until it is finished; so `response` may be written by whoever got the claim, and by no one else.
template <typename Response>
class Call {
 public:
  Call(grpc::ServerUnaryReactor* reactor, Response* response) : reactor_(reactor), response_(response) {}

  void Fail(const absl::Status& status) {
    if (Claim()) reactor_->Finish(ToGrpc(status));
  }
  // fill(Response*) writes the answer.
  template <typename Fill>
  void Succeed(Fill fill) {
    if (!Claim()) return;
    fill(response_);
    reactor_->Finish(grpc::Status::OK);
  }

 private:
  bool Claim() { return !answered_.exchange(true); }

  std::atomic<bool> answered_{false};
  grpc::ServerUnaryReactor* const reactor_;
  Response* const response_;
};

// Owns itself: gRPC calls OnDone exactly once, last.
template <typename Response>
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit UnaryReactor(Response* response) : call_(std::make_shared<Call<Response>>(this, response)) {}
  const std::shared_ptr<Call<Response>>& call() const { return call_; }

 private:
  void OnCancel() override {
    call_->Fail(core::Error(core::Reason::CANCELLED,
                            "the caller gave the call up, or its deadline passed. Whether it took effect is told by "
                            "repeating it with the same request_id"));
  }
  void OnDone() override { delete this; }

  const std::shared_ptr<Call<Response>> call_;
};

// Starts a call: `begin(call)` runs at once, on gRPC's thread, and posts what has to run on the strand.
template <typename Response, typename Begin>
grpc::ServerUnaryReactor* StartCall(const Node& node, grpc::CallbackServerContext* context, Response* response,
                                    Begin begin) {
  auto* reactor = new UnaryReactor<Response>(response);
  const std::shared_ptr<Call<Response>> call = reactor->call();
  if (context->deadline() > std::chrono::system_clock::now() + kLongestCall) {
    EventLoop* const loop = node.loop;
    loop->Post([loop, weak = std::weak_ptr<Call<Response>>(call)] {
      loop->After(kLongestCall, [weak] {
        const std::shared_ptr<Call<Response>> late = weak.lock();
        if (late == nullptr) return;
        late->Fail(core::Error(core::Reason::DEADLINE,
                               Cat("no answer within the daemon's own limit of ", kLongestCall.count(),
                                   " s; `memctl status` shows which device or keeper does not answer")));
      });
    });
  }
  begin(call);
  return reactor;
}

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_STRAND_H_
