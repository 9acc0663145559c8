// base/event_loop.h: one epoll loop on one thread. Std and Linux only.
//
// In the front process this is the front thread: it owns sockets, pidfds and timers, and the manager's strand runs on
// it. Handlers never block. Level-triggered: a handler that leaves data behind is called again.
#ifndef GPUMEM_BASE_EVENT_LOOP_H_
#define GPUMEM_BASE_EVENT_LOOP_H_

#include <sys/epoll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace gpumem {

class EventLoop {
 public:
  using Handler = std::function<void(std::uint32_t events)>;  // EPOLLIN, EPOLLHUP, …

  // Aborts when the kernel refuses the loop's own two descriptors: nothing works without them.
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Watches `fd` (not owned) for `events` (EPOLLERR and EPOLLHUP always come). Loop thread only, or before Run.
  // Returns 0 or an errno of epoll_ctl(2).
  int Watch(int fd, std::uint32_t events, Handler handler);
  int Modify(int fd, std::uint32_t events);
  // Must be called before the fd is closed. No handler of it runs afterwards, not even for events already collected.
  void Unwatch(int fd);

  // Runs `fn` on the loop thread, in order. Thread-safe; the only thread-safe call besides Stop.
  void Post(std::function<void()> fn) GPUMEM_EXCLUDES(mu_);

  // Runs `fn` on the loop thread once, after `delay`. Loop thread only, or before Run.
  void After(std::chrono::nanoseconds delay, std::function<void()> fn);

  // Until Stop. What was posted before the stop is run.
  void Run();
  void Stop() GPUMEM_EXCLUDES(mu_);

  // Runs what is ready now, waiting at most `timeout` for something: for tests.
  void RunOnce(std::chrono::milliseconds timeout);

 private:
  struct Watched {
    std::shared_ptr<Handler> handler;
    std::uint64_t serial;  // tells a reused fd number from the one that an event was collected for
  };
  void RunPosted() GPUMEM_EXCLUDES(mu_);
  void RunTimers();
  int TimeoutMs(std::chrono::milliseconds longest) const;

  UniqueFd epoll_;
  UniqueFd wake_;
  std::unordered_map<int, Watched> watched_;
  std::uint64_t next_serial_ = 1;
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>> timers_;
  std::atomic<bool> stop_{false};

  Mutex mu_;
  std::vector<std::function<void()>> posted_ GPUMEM_GUARDED_BY(mu_);
};

}  // namespace gpumem

#endif  // GPUMEM_BASE_EVENT_LOOP_H_
