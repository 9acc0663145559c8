#include "client/demo/worker.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/demo/gpu.h"
#include "client/demo/messages.h"
#include "client/loader/safetensors.h"
#include "cuda/checksum.h"
#include "cuda/driver.h"
#include "gpumem/gpumem.hpp"

namespace gpumem::demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kWeightsChunkBytes = 16 * kMiB;
constexpr std::uint64_t kTensorAlignmentBytes = 256;  // what kernels may expect of an allocation's start
constexpr std::uint64_t kBlockBytes = 8 * kMiB;       // of one copy; a multiple of 8 for the checksum's words

constexpr std::uint64_t kKvChunkBytes = 16 * kMiB;
constexpr std::uint32_t kKvChunks = 4;
constexpr std::uint64_t kSlotBytes = 256 << 10;  // what one step of the work loop writes
constexpr std::chrono::milliseconds kStepEvery(10);
constexpr std::uint64_t kStepsPerMessage = 10;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int Fail(const std::string& what) {
  Send(kMessageFd, {{"event", "failed"}, {"what", what}});
  return 1;
}

// A worker's driver, session and devices. The driver is loaded once here and once more, as the same library, by
// libgpumem.
struct Session {
  std::unique_ptr<cuda::Driver> driver;
  Client client;
  std::vector<gpumem_device_info> devices;

  // "" or why not.
  std::string Open(const WorkerOptions& options) {
    std::string error;
    driver = cuda::Driver::Load(options.libcuda.c_str(), &error);
    if (driver == nullptr) return error;
    const CUresult result = driver->Init(0);
    if (result != CUDA_SUCCESS) return "cuInit failed: " + driver->DescribeError(result);
    ConnectOptions connect;
    connect.socket_dir = options.socket_dir;
    connect.client_name = "demo " + options.name;
    connect.libcuda_path = options.libcuda;
    Result<Client> connected = Client::Connect(connect);
    if (!connected.ok()) return connected.status().ToString();
    client = std::move(connected).value();
    Result<std::vector<gpumem_device_info>> listed = client.Devices();
    if (!listed.ok()) return listed.status().ToString();
    devices = std::move(listed).value();
    return "";
  }

  const gpumem_device_info* Find(const std::string& uuid) const {
    for (const gpumem_device_info& device : devices) {
      if (uuid == device.uuid && device.ordinal >= 0) return &device;
    }
    return nullptr;
  }

  std::string Describe(CUresult result) const { return driver->DescribeError(result); }
};

// --- the loader -----------------------------------------------------------------------------------------------------

// Copies every tensor to its place.
std::string CopyTensors(const loader::File& file, const loader::Placement& placement, const Session& session, Gpu* gpu,
                        DevicePtr base) {
  std::vector<std::byte> block(kBlockBytes);
  const std::vector<loader::Tensor>& tensors = file.header().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::uint64_t from = 0; from < tensors[i].size_bytes; from += kBlockBytes) {
      const std::span<std::byte> part = std::span(block).first(std::min(kBlockBytes, tensors[i].size_bytes - from));
      if (const auto error = file.Read(tensors[i], from, part)) return error->message;
      const CUresult result = gpu->CopyIn(base + placement.offset_bytes[i] + from, part);
      if (result != CUDA_SUCCESS) return "cuMemcpyHtoD failed: " + session.Describe(result);
    }
  }
  return "";
}

}  // namespace

int RunLoader(const WorkerOptions& options) {
  const loader::Result<loader::File> file = loader::File::Open(options.model);
  if (!file) return Fail(file.error());
  const std::optional<loader::Placement> placement = loader::Place(file->header(), kTensorAlignmentBytes);
  if (!placement || placement->total_bytes == 0) return Fail(options.model + ": has no data to publish");

  Session session;
  std::string error = session.Open(options);
  if (!error.empty()) return Fail(error);
  const gpumem_device_info* device = session.Find(options.weights_device);
  if (device == nullptr) return Fail("device " + options.weights_device + " is not visible here");
  const std::unique_ptr<Gpu> gpu = Gpu::Open(*session.driver, device->ordinal, &error);
  if (gpu == nullptr) return Fail(error);

  const Result<std::uint64_t> holder = session.client.RegisterHolder(options.name, Role::kWeights);
  if (!holder.ok()) return Fail(holder.status().ToString());
  ChunkSpec spec{options.weights_device, std::min(kWeightsChunkBytes, placement->total_bytes), 1};
  spec.count = static_cast<std::uint32_t>((placement->total_bytes - 1) / spec.chunk_bytes + 1);
  Result<Lease> lease = session.client.BuildSegment(*holder, options.segment, {spec});
  if (!lease.ok()) return Fail(lease.status().ToString());
  const Result<DevicePtr> base = lease->Map();
  if (!base.ok()) return Fail(base.status().ToString());
  error = CopyTensors(*file, *placement, session, gpu.get(), *base);
  if (!error.empty()) return Fail(error);

  std::vector<Tensor> manifest;
  for (std::size_t i = 0; i < file->header().tensors.size(); ++i) {
    const loader::Tensor& tensor = file->header().tensors[i];
    manifest.push_back({tensor.name, tensor.dtype, tensor.shape, placement->offset_bytes[i], tensor.size_bytes});
  }
  const Result<gpumem_memory_info> info = lease->Info();
  const Result<std::string> name = lease->Seal(manifest);
  if (!name.ok()) return Fail(name.status().ToString());
  Send(kMessageFd, {{"event", "published"},
                    {"segment", *name},
                    {"tensors", manifest.size()},
                    {"model_bytes", file->header().data_bytes},
                    {"bytes", info.ok() ? info->bytes : 0}});
  return 0;
}

namespace {

// --- a worker that serves -----------------------------------------------------------------------------------------

class Worker {
 public:
  explicit Worker(const WorkerOptions& options) : options_(options) {}

  int Run() {
    std::string error = Open();
    if (error.empty()) error = Attach();
    if (error.empty()) error = Verify();
    if (error.empty()) error = AllocateCache();
    if (!error.empty()) return Fail(error);
    return Serve();
  }

 private:
  std::string Open() {
    std::string error = session_.Open(options_);
    if (!error.empty()) return error;
    const gpumem_device_info* weights = session_.Find(options_.weights_device);
    const gpumem_device_info* kv = session_.Find(options_.kv_device);
    if (weights == nullptr || kv == nullptr) return "the devices of the demo are not visible here";
    weights_gpu_ = Gpu::Open(*session_.driver, weights->ordinal, &error);
    if (weights_gpu_ == nullptr) return error;
    if (kv->ordinal == weights->ordinal) {
      kv_gpu_ = weights_gpu_.get();
      return "";
    }
    other_gpu_ = Gpu::Open(*session_.driver, kv->ordinal, &error);
    kv_gpu_ = other_gpu_.get();
    return error;
  }

  std::string Attach() {
    const Clock::time_point start = Clock::now();
    const Result<std::uint64_t> holder = session_.client.RegisterHolder(options_.name + "/weights", Role::kWeights);
    if (!holder.ok()) return holder.status().ToString();
    Result<Segment> segment = session_.client.AttachSegment(*holder, options_.segment);
    if (!segment.ok()) return segment.status().ToString();
    segment_ = std::move(segment).value();
    const Result<DevicePtr> address = segment_.Map();
    if (!address.ok()) return address.status().ToString();
    weights_ = *address;
    attach_ms_ = MsSince(start);

    // The device needs a few bytes that it may write, to return checksums in.
    const Result<std::uint64_t> scratch = session_.client.RegisterHolder(options_.name + "/scratch", Role::kWorkspace);
    if (!scratch.ok()) return scratch.status().ToString();
    return AllocateAndMap(*scratch, {options_.weights_device, sizeof(std::uint64_t), 1}, &scratch_lease_, &scratch_);
  }

  std::string AllocateAndMap(std::uint64_t holder, const ChunkSpec& spec, Lease* lease, DevicePtr* address) {
    Result<Lease> allocated = session_.client.Allocate(holder, {spec});
    if (!allocated.ok()) return allocated.status().ToString();
    *lease = std::move(allocated).value();
    const Result<DevicePtr> mapped = lease->Map();
    if (!mapped.ok()) return mapped.status().ToString();
    const Result<gpumem_memory_info> info = lease->Info();
    if (!info.ok()) return info.status().ToString();
    charged_bytes_ += info->bytes;
    *address = *mapped;
    return "";
  }

  // Every tensor of the file against the segment: what the manifest says of it, its checksum as the device computes
  // it, and its bytes as they come back.
  std::string Verify() {
    const Clock::time_point start = Clock::now();
    const loader::Result<loader::File> file = loader::File::Open(options_.model);
    if (!file) return file.error();
    const Result<std::vector<Tensor>> manifest = segment_.Tensors();
    if (!manifest.ok()) return manifest.status().ToString();
    std::uint64_t verified = 0, bytes = 0;
    std::string wrong;
    for (const loader::Tensor& tensor : file->header().tensors) {
      const auto at = std::find_if(manifest->begin(), manifest->end(),
                                   [&](const Tensor& candidate) { return candidate.name == tensor.name; });
      std::string why = at == manifest->end() ? "is not in the segment's manifest" : Compare(*file, tensor, *at);
      if (why.empty()) {
        ++verified;
        bytes += tensor.size_bytes;
      } else if (wrong.empty()) {
        wrong = "tensor " + tensor.name + " " + why;
      }
    }
    Send(kMessageFd, {{"event", "verified"},
                      {"segment", segment_.Name()},
                      {"tensors", file->header().tensors.size()},
                      {"verified", verified},
                      {"bytes", bytes},
                      {"wrong", wrong},
                      {"attach_ms", attach_ms_},
                      {"verify_ms", MsSince(start)}});
    return wrong;
  }

  std::string Compare(const loader::File& file, const loader::Tensor& tensor, const Tensor& published) {
    if (published.dtype != tensor.dtype || published.shape != tensor.shape ||
        published.size_bytes != tensor.size_bytes) {
      return "has another dtype, shape or size in the manifest";
    }
    if (tensor.size_bytes == 0) return "";
    const DevicePtr base = weights_ + published.offset_bytes;
    std::uint64_t on_device = 0, in_file = 0;
    CUresult result = weights_gpu_->Checksum(base, tensor.size_bytes, scratch_, &on_device);
    std::vector<std::byte> from_file(std::min(kBlockBytes, tensor.size_bytes)), from_device(from_file.size());
    for (std::uint64_t from = 0; result == CUDA_SUCCESS && from < tensor.size_bytes; from += kBlockBytes) {
      const std::uint64_t size = std::min(kBlockBytes, tensor.size_bytes - from);
      if (const auto error = file.Read(tensor, from, std::span(from_file).first(size))) return error->message;
      result = weights_gpu_->CopyOut(std::span(from_device).first(size), base + from);
      if (result != CUDA_SUCCESS) break;
      in_file += cuda::Checksum(from_file.data(), size, from / 8);
      if (std::memcmp(from_file.data(), from_device.data(), size) != 0) {
        return "differs in the block at byte " + std::to_string(from);
      }
    }
    if (result != CUDA_SUCCESS) return "cannot be read: " + session_.Describe(result);
    return on_device == in_file ? "" : "has another checksum on the device";
  }

  std::string AllocateCache() {
    const Result<std::uint64_t> holder = session_.client.RegisterHolder(options_.name + "/kv", Role::kKvCache);
    if (!holder.ok()) return holder.status().ToString();
    const std::string error = AllocateAndMap(*holder, {options_.kv_device, kKvChunkBytes, kKvChunks}, &kv_lease_, &kv_);
    if (!error.empty()) return error;
    const Result<gpumem_memory_info> info = kv_lease_.Info();
    if (!info.ok()) return info.status().ToString();
    // The last slot is where the device returns checksums.
    slots_ = info->bytes / kSlotBytes - 1;
    kv_scratch_ = kv_ + slots_ * kSlotBytes;
    kv_bytes_ = info->bytes;
    return "";
  }

  // The work loop: step n finds what step n-1 left in its slot of the kv-cache, then writes the next slot and finds
  // that too.
  int Serve() {
    Send(kMessageFd, {{"event", "serving"}, {"kv_bytes", kv_bytes_}, {"charged_bytes", charged_bytes_}});
    Clock::time_point next = Clock::now();
    Clock::time_point last = next;
    for (;;) {
      Json command;
      switch (WaitForCommand(next, &command)) {
        case Received::kMessage:
          if (TextOf(command, "command") == "fault") return FaultAndHang();
          if (TextOf(command, "command") == "finish") return Finish();
          break;
        case Received::kEnd:
          return 1;
        default:
          break;
      }
      if (Clock::now() < next) continue;
      Step();
      longest_pause_ms_ = std::max(longest_pause_ms_, MsSince(last));
      last = Clock::now();
      next = std::max(next + kStepEvery, last);
    }
  }

  static Received WaitForCommand(Clock::time_point until, Json* command) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    pollfd watched{kMessageFd, POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    return ready > 0 ? Receive(kMessageFd, /*blocking=*/false, command) : Received::kNothing;
  }

  bool SlotHolds(std::uint64_t step) {
    const auto value = static_cast<std::uint32_t>(step);
    std::vector<std::uint32_t> want(kSlotBytes / sizeof value, value);
    std::uint64_t sum = 0;
    return kv_gpu_->Checksum(Slot(step), kSlotBytes, kv_scratch_, &sum) == CUDA_SUCCESS &&
           sum == cuda::Checksum(want.data(), kSlotBytes);
  }
  CUdeviceptr Slot(std::uint64_t step) const { return kv_ + step % slots_ * kSlotBytes; }

  void Step() {
    const bool kept = step_ == 0 || SlotHolds(step_);
    ++step_;
    const bool written = kv_gpu_->Fill(Slot(step_), kSlotBytes / sizeof(std::uint32_t),
                                       static_cast<std::uint32_t>(step_)) == CUDA_SUCCESS;
    if (!kept || !written || !SlotHolds(step_)) ++failed_;
    if (step_ - told_ >= kStepsPerMessage) TellSteps();
  }

  void TellSteps() {
    if (step_ == told_) return;
    Send(kMessageFd, {{"event", "steps"},
                      {"first", told_ + 1},
                      {"last", step_},
                      {"failed", failed_},
                      {"longest_pause_ms", longest_pause_ms_}});
    told_ = step_;
    failed_ = 0;
  }

  // The fault that the demo is about. Returns only when the demo ends first: a faulted process hangs until it is
  // killed.
  int FaultAndHang() {
    TellSteps();
    const CUresult result = weights_gpu_->Store(weights_, 0xdead);
    const CUresult again = weights_gpu_->Synchronize();
    const Status reported = session_.client.ReportFault(result, "a kernel stored through a read-only mapping");
    Send(kMessageFd, {{"event", "faulted"},
                      {"cuda_error", static_cast<std::uint64_t>(result)},
                      {"error", session_.Describe(result)},
                      {"sticky", again == result},
                      {"process_fatal", ClassifyError(result) == gpumem::Fault::kProcess},
                      {"reported", reported.ok() ? "" : reported.ToString()}});
    Json ignored;
    while (Receive(kMessageFd, /*blocking=*/true, &ignored) != Received::kEnd) {
    }
    ::_exit(1);
  }

  int Finish() {
    TellSteps();
    for (const Status& status : {kv_lease_.Release(), scratch_lease_.Release(), segment_.Detach()}) {
      if (!status.ok()) return Fail(status.ToString());
    }
    session_.client.Close();
    Send(kMessageFd, {{"event", "finished"}, {"steps", step_}});
    return 0;
  }

  const WorkerOptions& options_;
  Session session_;
  std::unique_ptr<Gpu> weights_gpu_, other_gpu_;
  Gpu* kv_gpu_ = nullptr;
  Segment segment_;
  Lease scratch_lease_, kv_lease_;
  DevicePtr weights_ = 0, scratch_ = 0, kv_ = 0, kv_scratch_ = 0;
  double attach_ms_ = 0, longest_pause_ms_ = 0;
  std::uint64_t charged_bytes_ = 0, kv_bytes_ = 0, slots_ = 0;
  std::uint64_t step_ = 0, told_ = 0, failed_ = 0;
};

}  // namespace

int RunWorker(const WorkerOptions& options) { return Worker(options).Run(); }

}  // namespace gpumem::demo
