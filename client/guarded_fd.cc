#include "client/guarded_fd.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "base/mutex.h"

namespace gpumem::client {
namespace {

struct Table {
  Mutex mu;
  std::map<std::uint64_t, int> fds GPUMEM_GUARDED_BY(mu);
  std::uint64_t next_id GPUMEM_GUARDED_BY(mu) = 1;
};

// Never destroyed: objects of the application may be freed after the library's static destructors.
Table& TheTable() {
  static Table* const table = new Table;
  return *table;
}

// fork(2) happens with the table locked by the forking thread, in parent and child.
void BeforeFork() GPUMEM_NO_THREAD_SAFETY_ANALYSIS { TheTable().mu.Lock(); }
void AfterForkInParent() GPUMEM_NO_THREAD_SAFETY_ANALYSIS { TheTable().mu.Unlock(); }
void AfterForkInChild() GPUMEM_NO_THREAD_SAFETY_ANALYSIS {
  Table& table = TheTable();
  for (const auto& [id, fd] : table.fds) ::close(fd);
  table.fds.clear();
  table.mu.Unlock();
}

void InstallForkHandlers() {
  // A failure (ENOMEM) leaves the pid check of every entry point, which needs no handler.
  static const int installed = ::pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)installed;
}

}  // namespace

template <typename Make>
GuardedFd GuardedFd::MakeWith(Make make) {
  InstallForkHandlers();
  Table& table = TheTable();
  MutexLock lock(&table.mu);
  const auto slot = table.fds.emplace(table.next_id++, -1).first;
  const int fd = make();
  if (fd < 0) {
    const int error = errno;
    table.fds.erase(slot);
    errno = error;
    return {};
  }
  slot->second = fd;
  return {fd, slot->first};
}

GuardedFd GuardedFd::Socket(int type) {
  return MakeWith([type] { return ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0); });
}
GuardedFd GuardedFd::Epoll() {
  return MakeWith([] { return ::epoll_create1(EPOLL_CLOEXEC); });
}
GuardedFd GuardedFd::Event() {
  return MakeWith([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
}
GuardedFd GuardedFd::Adopt(int fd) {
  return MakeWith([fd] { return fd; });
}

void GuardedFd::Reset() {
  if (fd_ < 0) return;
  Table& table = TheTable();
  MutexLock lock(&table.mu);
  // A child's table is empty: the number may be another file's by now.
  if (table.fds.erase(id_) > 0) ::close(fd_);
  fd_ = -1;
  id_ = 0;
}

}  // namespace gpumem::client
