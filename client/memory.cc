#include "client/memory.h"

#include <list>
#include <utility>

#include "base/checked.h"
#include "base/mutex.h"
#include "cuda/fault.h"

namespace gpumem::client {
namespace {

// What an error of a call says about the process. CUDA_ERROR_UNKNOWN and its like may come from a bad descriptor alone,
// so only codes that name a dead context end the client here.
bool IsFatal(CUresult result) {
  const cuda::FaultClass fault = cuda::Classify(result);
  return fault == cuda::FaultClass::kProcess || fault == cuda::FaultClass::kEcc;
}

bool IsCaptureError(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

Status Capturing() {
  return Error(Reason::CAPTURING,
               "a stream is capturing, so its work cannot be waited for; end the capture, then give the memory back");
}

std::string ChunkName(std::size_t index, std::uint64_t bytes) {
  return "chunk " + std::to_string(index) + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace

Status DriverError(const cuda::Driver& driver, const std::string& call, CUresult result) {
  const bool fatal = IsFatal(result);
  Status status =
      Error(fatal ? Reason::CUDA_FATAL : Reason::CUDA,
            call + " failed: " + driver.DescribeError(result) + (fatal ? "; this process must be replaced" : ""));
  status.cuda_error = static_cast<std::int32_t>(result);
  return status;
}

RelaxedCapture::RelaxedCapture(const cuda::Driver& driver) : driver_(driver) {
  if (driver_.ThreadExchangeStreamCaptureMode != nullptr) driver_.ThreadExchangeStreamCaptureMode(&mode_);
}

RelaxedCapture::~RelaxedCapture() {
  if (driver_.ThreadExchangeStreamCaptureMode != nullptr) driver_.ThreadExchangeStreamCaptureMode(&mode_);
}

Status WaitForStreams(const cuda::Driver& driver, const std::vector<CUstream>& streams) {
  // Waiting on one stream ends a global capture of another one, unless this thread is relaxed.
  const RelaxedCapture relaxed(driver);
  for (const CUstream stream : streams) {
    if (driver.StreamIsCapturing == nullptr) break;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver.StreamIsCapturing(stream, &capture);
    if (IsCaptureError(result)) return Capturing();
    if (result != CUDA_SUCCESS) return DriverError(driver, "cuStreamIsCapturing", result);
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE) return Capturing();
  }
  for (const CUstream stream : streams) {
    const CUresult result = driver.StreamSynchronize(stream);
    if (IsCaptureError(result)) return Capturing();
    if (result != CUDA_SUCCESS) return DriverError(driver, "cuStreamSynchronize", result);
  }
  return {};
}

Status Memory::Make(const cuda::Driver* driver, const std::vector<Place>& places, Memory* memory) {
  Memory made;
  made.driver_ = driver;
  made.chunks_.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    made.chunks_[i].device = places[i].device;
    made.chunks_[i].bytes = places[i].bytes;
    const auto sum = CheckedAdd(made.bytes_, places[i].bytes);
    if (!sum.has_value() || places[i].bytes == 0) {
      return Error(Reason::PROTOCOL, "gpumemd granted chunks of impossible sizes: " + ChunkName(i, places[i].bytes));
    }
    made.bytes_ = *sum;
  }
  *memory = std::move(made);
  return {};
}

Memory::~Memory() {
  if (driver_ == nullptr || chunks_.empty()) return;
  const RelaxedCapture relaxed(*driver_);
  for (Chunk& chunk : chunks_) (void)chunk.mapping.Unmap();
  (void)range_.Free();
  for (Chunk& chunk : chunks_) (void)chunk.handle.Release();
}

bool Memory::all_imported() const {
  for (const Chunk& chunk : chunks_) {
    if (!chunk.handle.valid()) return false;
  }
  return true;
}

Status Memory::Import(std::size_t index, int fd) {
  const RelaxedCapture relaxed(*driver_);
  Chunk& chunk = chunks_[index];
  const CUresult result = cuda::PhysicalHandle::Import(*driver_, fd, chunk.bytes, &chunk.handle);
  if (result == CUDA_SUCCESS) return {};
  return DriverError(*driver_, "cuMemImportFromShareableHandle of " + ChunkName(index, chunk.bytes), result);
}

Status Memory::MapChunk(std::size_t index, CUdeviceptr address, CUmemAccess_flags access) {
  Chunk& chunk = chunks_[index];
  CUresult result = cuda::Mapping::Map(*driver_, address, chunk.handle, &chunk.mapping);
  if (result != CUDA_SUCCESS) return DriverError(*driver_, "cuMemMap of " + ChunkName(index, chunk.bytes), result);
  result = chunk.mapping.SetAccess(chunk.device, access);
  if (result == CUDA_SUCCESS) return {};
  return DriverError(*driver_, "cuMemSetAccess of " + ChunkName(index, chunk.bytes), result);
}

Status Memory::Map(CUdeviceptr wanted, CUmemAccess_flags access, CUdeviceptr* address) {
  const RelaxedCapture relaxed(*driver_);
  const CUresult reserved = cuda::AddressRange::Reserve(*driver_, bytes_, 0, wanted, &range_);
  if (reserved != CUDA_SUCCESS) {
    return DriverError(*driver_, "cuMemAddressReserve of " + std::to_string(bytes_) + " bytes", reserved);
  }
  Status status;
  if (wanted != 0 && range_.address() != wanted) {
    status =
        Error(Reason::ADDRESS_TAKEN, "the driver has no " + std::to_string(bytes_) +
                                         " free bytes of addresses at the wanted address; ask for another, or for 0");
  }
  CUdeviceptr next = range_.address();
  for (std::size_t i = 0; status.ok() && i < chunks_.size(); ++i) {
    status = MapChunk(i, next, access);
    next += chunks_[i].bytes;
  }
  if (status.ok()) {
    *address = range_.address();
    return {};
  }
  // A dead context takes no more calls; the process's end undoes it.
  if (status.reason != Reason::CUDA_FATAL) (void)Unmap();
  return status;
}

Status Memory::Unmap() {
  const RelaxedCapture relaxed(*driver_);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const CUresult result = chunks_[i].mapping.Unmap();
    if (result != CUDA_SUCCESS) {
      return DriverError(*driver_, "cuMemUnmap of " + ChunkName(i, chunks_[i].bytes), result);
    }
  }
  const CUresult result = range_.Free();
  if (result == CUDA_SUCCESS) return {};
  return DriverError(*driver_, "cuMemAddressFree of " + std::to_string(bytes_) + " bytes", result);
}

std::vector<Outcome> Memory::LetGo() {
  const RelaxedCapture relaxed(*driver_);
  std::vector<Outcome> outcomes;
  outcomes.reserve(chunks_.size());
  for (Chunk& chunk : chunks_) {
    outcomes.push_back(chunk.handle.Release() == CUDA_SUCCESS ? Outcome::kUnmapped : Outcome::kUnknown);
  }
  return outcomes;
}

void Memory::Abandon() {
  // The values' destructors would call the driver, so they are never destroyed.
  struct Abandoned {
    Mutex mu;
    std::list<Memory> memories GPUMEM_GUARDED_BY(mu);
  };
  static Abandoned* const abandoned = new Abandoned;
  std::list<Memory> one(1);
  std::swap(one.front().chunks_, chunks_);
  std::swap(one.front().range_, range_);
  driver_ = nullptr;
  bytes_ = 0;
  MutexLock lock(&abandoned->mu);
  abandoned->memories.splice(abandoned->memories.end(), one);
}

}  // namespace gpumem::client
