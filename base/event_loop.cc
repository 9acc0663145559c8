#include "base/event_loop.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace gpumem {
namespace {

constexpr std::uint64_t kWakeSerial = 0;
constexpr int kEventsAtOnce = 64;

}  // namespace

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeSerial;
  if (!epoll_ || !wake_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    std::fprintf(stderr, "gpumem: cannot make an event loop: %s\n", std::strerror(errno));
    std::abort();
  }
}

EventLoop::~EventLoop() = default;

int EventLoop::Watch(int fd, std::uint32_t events, Handler handler) {
  const std::uint64_t serial = next_serial_++;
  epoll_event event{};
  event.events = events;
  // The fd finds the handler; the serial's low bits tell whether it is still the same watch.
  event.data.u64 = (serial << 32) | static_cast<std::uint32_t>(fd);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno;
  watched_[fd] = Watched{std::make_shared<Handler>(std::move(handler)), serial};
  return 0;
}

int EventLoop::Modify(int fd, std::uint32_t events) {
  const auto it = watched_.find(fd);
  if (it == watched_.end()) return ENOENT;
  epoll_event event{};
  event.events = events;
  event.data.u64 = (it->second.serial << 32) | static_cast<std::uint32_t>(fd);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0 ? 0 : errno;
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void EventLoop::Post(std::function<void()> fn) {
  bool wake;
  {
    MutexLock lock(&mu_);
    wake = posted_.empty();
    posted_.push_back(std::move(fn));
  }
  // A full counter still wakes the loop, so the result does not matter.
  const std::uint64_t one = 1;
  if (wake && ::write(wake_.get(), &one, sizeof(one)) < 0) return;
}

void EventLoop::After(std::chrono::nanoseconds delay, std::function<void()> fn) {
  timers_.emplace(std::chrono::steady_clock::now() + delay, std::move(fn));
}

void EventLoop::Run() {
  while (!stop_.load()) RunOnce(std::chrono::hours(1));
  RunPosted();
}

void EventLoop::Stop() {
  stop_.store(true);
  Post([] {});
}

void EventLoop::RunOnce(std::chrono::milliseconds timeout) {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, TimeoutMs(timeout));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    if (event.data.u64 == kWakeSerial) {
      std::uint64_t ignored;
      while (::read(wake_.get(), &ignored, sizeof(ignored)) > 0) {
      }
      continue;
    }
    const int fd = static_cast<int>(event.data.u64 & 0xffffffffu);
    const auto it = watched_.find(fd);
    if (it == watched_.end() || (it->second.serial & 0xffffffffu) != event.data.u64 >> 32) continue;
    const std::shared_ptr<Handler> handler = it->second.handler;  // it may unwatch itself
    (*handler)(event.events);
  }
  RunPosted();
  RunTimers();
}

void EventLoop::RunPosted() {
  std::vector<std::function<void()>> batch;
  {
    MutexLock lock(&mu_);
    batch.swap(posted_);
  }
  for (std::function<void()>& fn : batch) fn();
}

void EventLoop::RunTimers() {
  const auto now = std::chrono::steady_clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const std::function<void()> fn = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    fn();
  }
}

int EventLoop::TimeoutMs(std::chrono::milliseconds longest) const {
  if (timers_.empty()) return static_cast<int>(longest.count());
  const auto left = timers_.begin()->first - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left);
  return static_cast<int>(std::clamp(ms, std::chrono::milliseconds(0), longest).count());
}

}  // namespace gpumem
