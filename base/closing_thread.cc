#include "base/closing_thread.h"

#include <system_error>
#include <utility>

namespace gpumem {

ClosingThread::ClosingThread() : thread_([this] { Run(); }) {}

std::unique_ptr<ClosingThread> ClosingThread::TryStart() {
  try {
    return std::make_unique<ClosingThread>();
  } catch (const std::system_error&) {
    return nullptr;
  }
}

ClosingThread::~ClosingThread() {
  {
    MutexLock lock(&mu_);
    stop_ = true;
  }
  changed_.NotifyOne();
  thread_.join();
}

void ClosingThread::Close(UniqueFd fd, std::function<void()> done) {
  {
    MutexLock lock(&mu_);
    jobs_.push_back(Job{std::move(fd), std::move(done)});
  }
  changed_.NotifyOne();
}

void ClosingThread::Run() {
  for (;;) {
    Job job;
    {
      MutexLock lock(&mu_);
      while (jobs_.empty() && !stop_) changed_.Wait(&mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.fd.reset();
    if (job.done) job.done();
  }
}

}  // namespace gpumem
