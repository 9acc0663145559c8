// tests/unit/client/fake_daemon.h: a daemon of few words in the test's own process: real sockets, real gRPC, memory of
// the simulated driver, and no books. It does what a test says and remembers what it was told.
#ifndef GPUMEM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
#define GPUMEM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "cuda/devices.h"
#include "cuda/driver.h"
#include "gpumem/v1/memory.grpc.pb.h"
#include "tests/unit/client/peer.h"
#include "tests/unit/client/temp_dir.h"

namespace gpumem::client_test {

// The simulated driver of this test process, on a machine of its own; made at the first call.
struct Machine {
  std::string library;
  std::string state_dir;
  std::unique_ptr<cuda::Driver> driver;
  std::vector<cuda::DeviceInfo> devices;

  static Machine& Get();
  // Bytes that physically exist, as the simulated hardware counts them.
  std::uint64_t PhysicalBytes() const;

 private:
  Machine();
  TempDir dir_;
};

class FakeDaemon final : public v1::MemoryService::Service {
 public:
  static constexpr std::uint64_t kChunkBytes = 2 << 20;

  FakeDaemon();
  ~FakeDaemon() override;

  const std::string& socket_dir() const { return dir_.path(); }
  // All sockets and sessions end, as when the daemon is killed.
  void Kill();
  void Fence();

  // --- what the next calls do ---
  std::atomic<std::uint32_t> push_at_most{1000};
  std::atomic<int> bad_chunk{-1};       // this chunk's fd is /dev/null
  std::atomic<int> oversize_chunk{-1};  // this chunk's memory is twice as large as the daemon says: mapping it fails
  std::atomic<bool> hang{false};        // calls wait until they are cancelled
  std::atomic<int> refuse_seals{0};     // so many seals are refused with MANIFEST_INVALID
  std::atomic<int> drop_release{0};     // so many releases are not done and not answered
  std::atomic<bool> invisible{false};   // Hello lists a device that the process does not see
  // What pushed frames say of their chunks that the grant does not; kTwice: all are the first one.
  enum class Lie { kNone, kId, kGeneration, kBytes, kLease, kIndex, kTwice };
  std::atomic<Lie> lie{Lie::kNone};
  std::atomic<bool> deaf{false};       // frames are not read
  std::atomic<int> drop_detach{0};     // so many detaches are not done and not answered
  std::atomic<int> refuse_watches{0};  // so many watches are refused with LIMIT
  std::atomic<std::uint32_t> protocol{1};
  std::atomic<bool> other_driver{false};
  std::atomic<int> answer_as_other_instance{0};

  // --- what it was told ---
  std::uint64_t acknowledged() const;  // chunks imported
  std::vector<v1::ReleaseRequest> releases() const;
  std::vector<v1::DetachSegmentRequest> detaches() const;
  std::vector<wire::MappingBody> mappings() const;
  std::vector<v1::ReportFaultRequest> faults() const;
  std::set<std::uint64_t> request_ids() const;
  std::size_t sessions() const;
  std::size_t leases() const;
  std::size_t attachments() const;
  // The newest session's witness pipe has no write end left.
  bool WitnessClosed() const;
  std::string device_uuid(std::size_t index = 0) const;
  std::string other_uuid() const { return "GPU-00000000-0000-0000-0000-00000000dead"; }

  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest*, v1::HelloResponse*) override;
  grpc::Status RegisterHolder(grpc::ServerContext*, const v1::RegisterHolderRequest*,
                              v1::RegisterHolderResponse*) override;
  grpc::Status Allocate(grpc::ServerContext*, const v1::AllocateRequest*, v1::AllocateResponse*) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseResponse*) override;
  grpc::Status BuildSegment(grpc::ServerContext*, const v1::BuildSegmentRequest*, v1::BuildSegmentResponse*) override;
  grpc::Status SealSegment(grpc::ServerContext*, const v1::SealSegmentRequest*, v1::SealSegmentResponse*) override;
  grpc::Status AttachSegment(grpc::ServerContext*, const v1::AttachSegmentRequest*,
                             v1::AttachSegmentResponse*) override;
  grpc::Status DetachSegment(grpc::ServerContext*, const v1::DetachSegmentRequest*,
                             v1::DetachSegmentResponse*) override;
  grpc::Status ListSegments(grpc::ServerContext*, const v1::ListSegmentsRequest*, v1::ListSegmentsResponse*) override;
  grpc::Status ReportFault(grpc::ServerContext*, const v1::ReportFaultRequest*, v1::ReportFaultResponse*) override;
  grpc::Status WatchEvents(grpc::ServerContext*, const v1::WatchEventsRequest*,
                           grpc::ServerWriter<v1::Event>*) override;

 private:
  struct FakeChunk {
    v1::Chunk chunk;
    UniqueFd fd;
  };
  struct FakeLease {
    std::uint64_t session = 0;
    std::vector<FakeChunk> chunks;
    std::string segment;
    v1::Manifest manifest;
  };

  void Accept();
  void Serve(std::shared_ptr<Peer> peer);
  template <typename Request, typename Response>
  grpc::Status Grant(const Request& request, Response* response, const std::string& segment);
  void SendChunks(Peer* peer, std::uint64_t request_id, std::uint64_t lease_id, std::uint32_t first,
                  std::uint32_t count) GPUMEM_REQUIRES(mu_);
  std::string Instance();
  void Note(std::uint64_t request_id) GPUMEM_EXCLUDES(mu_);
  void WaitWhileHanging(grpc::ServerContext* context);

  TempDir dir_;
  UniqueFd listener_;
  std::unique_ptr<grpc::Server> server_;
  std::thread acceptor_;
  std::vector<std::thread> servers_;

  mutable Mutex mu_;
  std::map<std::uint64_t, std::shared_ptr<Peer>> peers_ GPUMEM_GUARDED_BY(mu_);
  std::map<std::uint64_t, FakeLease> leases_ GPUMEM_GUARDED_BY(mu_);
  std::map<std::uint64_t, std::uint64_t> attachments_ GPUMEM_GUARDED_BY(mu_);
  UniqueFd witness_ GPUMEM_GUARDED_BY(mu_);  // of the newest session
  std::uint64_t next_id_ GPUMEM_GUARDED_BY(mu_) = 1;
  std::uint64_t acknowledged_ GPUMEM_GUARDED_BY(mu_) = 0;
  std::vector<v1::ReleaseRequest> releases_ GPUMEM_GUARDED_BY(mu_);
  std::vector<v1::DetachSegmentRequest> detaches_ GPUMEM_GUARDED_BY(mu_);
  std::vector<wire::MappingBody> mappings_ GPUMEM_GUARDED_BY(mu_);
  std::vector<v1::ReportFaultRequest> faults_ GPUMEM_GUARDED_BY(mu_);
  std::set<std::uint64_t> request_ids_ GPUMEM_GUARDED_BY(mu_);
  std::map<std::uint64_t, std::string> answers_ GPUMEM_GUARDED_BY(mu_);  // to grants, by request id
  std::atomic<bool> stopping_{false};
};

}  // namespace gpumem::client_test

#endif  // GPUMEM_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
