// cuda/sim/streams.cc: see the header.
#include "cuda/sim/streams.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "cuda/sim/api_call.h"
#include "cuda/sim/breaks.h"

namespace simcuda {

using gpumem::MutexLock;

namespace {
constexpr std::uint32_t kXidMmuFault = 31;
}

bool Mark::Done() const { return stream == nullptr || stream->Done(ticket); }
void Mark::Wait() const {
  if (stream != nullptr) stream->Wait(ticket);
}

std::shared_ptr<Stream> Stream::Start(bool blocking, int priority) {
  std::shared_ptr<Stream> stream(new Stream(blocking, priority));
  bool started = true;
  // The application's signals are none of the worker's business.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([stream] { stream->Run(); }).detach();
  } catch (const std::system_error&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started ? stream : nullptr;
}

std::uint64_t Stream::Enqueue(std::vector<Mark> after, std::function<void()> work) {
  const MutexLock lock(&mu_);
  if (closed_) return 0;  // its thread may be gone already: nobody would ever run it
  queue_.push_back(Work{std::move(after), std::move(work)});
  changed_.NotifyAll();
  return ++enqueued_;
}

void Stream::Close() {
  const MutexLock lock(&mu_);
  closed_ = true;
  changed_.NotifyAll();
}

Mark Stream::Now() {
  const MutexLock lock(&mu_);
  return completed_ == enqueued_ ? Mark{} : Mark{shared_from_this(), enqueued_};
}

bool Stream::Done(std::uint64_t ticket) {
  const MutexLock lock(&mu_);
  return completed_ >= ticket;
}

void Stream::Wait(std::uint64_t ticket) {
  const MutexLock lock(&mu_);
  while (completed_ < ticket) changed_.Wait(&mu_);
}

void Stream::Run() {
  while (true) {
    Work work;
    {
      const MutexLock lock(&mu_);
      while (queue_.empty() && !closed_) changed_.Wait(&mu_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    // Marks are of work that was enqueued before this one: waiting for them cannot go in a circle.
    if (SIMCUDA_BREAK("streams-not-ordered")) work.after.clear();
    for (const Mark& mark : work.after) mark.Wait();
    work.run();
    work = Work{};  // what it referred to goes before it counts as done
    const MutexLock lock(&mu_);
    ++completed_;
    changed_.NotifyAll();
  }
}

std::shared_ptr<Stream> Context::AddStream(bool blocking, int priority) {
  std::shared_ptr<Stream> stream = Stream::Start(blocking, priority);
  if (stream == nullptr) return nullptr;
  const MutexLock lock(&mu_);
  streams_.push_back(stream);
  return stream;
}

void Context::RemoveStream(const std::shared_ptr<Stream>& stream) {
  const MutexLock lock(&mu_);
  streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
  stream->Close();
}

Mark Context::Enqueue(const std::shared_ptr<Stream>& stream, std::function<CUresult()> work, std::vector<Mark> after) {
  const MutexLock lock(&mu_);  // the order of two enqueueing threads is the order of the marks that they take
  const auto add = [&after](Mark mark) {
    if (mark.stream != nullptr) after.push_back(std::move(mark));
  };
  if (stream == default_stream_) {
    for (const auto& other : streams_) {
      if (other->blocking()) add(other->Now());
    }
  } else if (stream->blocking()) {
    add(default_stream_->Now());
  }
  Process* const process = &process_;
  const std::uint64_t ticket = stream->Enqueue(std::move(after), [process, device = device_, work = std::move(work)] {
    if (process->sticky() != CUDA_SUCCESS) return;
    CUresult result = PassWorkPoint("work", device);
    if (result == CUDA_SUCCESS) result = work();
    if (result == CUDA_SUCCESS) return;
    process->Poison(result);
    if (result == CUDA_ERROR_ILLEGAL_ADDRESS) process->ReportXid(device, kXidMmuFault);
  });
  return Mark{stream, ticket};
}

void Context::Synchronize() {
  std::vector<Mark> marks;
  {
    const MutexLock lock(&mu_);
    marks.push_back(default_stream_->Now());
    for (const auto& stream : streams_) marks.push_back(stream->Now());
  }
  for (const Mark& mark : marks) mark.Wait();
}

void Context::Destroy() {
  destroyed_.store(true, std::memory_order_release);
  Synchronize();
  std::unique_ptr<Presence> presence;
  const MutexLock lock(&mu_);
  presence = std::move(presence_);
  for (const auto& stream : streams_) stream->Close();
  default_stream_->Close();
}

// Never destroyed: worker threads may outlive the end of main.
Registry<CUcontext, Context>& Contexts() {
  static auto* const registry = new Registry<CUcontext, Context>(0x10001000);
  return *registry;
}
Registry<CUstream, StreamEntry>& Streams() {
  static auto* const registry = new Registry<CUstream, StreamEntry>(0x20001000);
  return *registry;
}
Registry<CUevent, Event>& Events() {
  static auto* const registry = new Registry<CUevent, Event>(0x30001000);
  return *registry;
}

}  // namespace simcuda
