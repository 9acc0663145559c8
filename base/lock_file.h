// base/lock_file.h: a file that one process at a time holds locked. The kernel drops the lock with the process, however
// that ends (flock(2)); the file stays, because removing it would let two processes lock two files of one name.
#ifndef GPUMEM_BASE_LOCK_FILE_H_
#define GPUMEM_BASE_LOCK_FILE_H_

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <string>

#include "base/unique_fd.h"

namespace gpumem {

// Locks the file of that path, made if it is not there, without waiting. 0: held as long as `*lock` lives. EWOULDBLOCK:
// somebody else holds it. Another errno: of open(2) when `*lock` is not valid, else of flock(2).
inline int TakeLockFile(const std::string& path, UniqueFd* lock) {
  lock->reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  return lock->valid() && ::flock(lock->get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

}  // namespace gpumem

#endif  // GPUMEM_BASE_LOCK_FILE_H_
