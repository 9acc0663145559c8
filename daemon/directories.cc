// daemon/directories.cc: see directories.h.
#include "daemon/directories.h"

#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "daemon/text.h"

namespace gpumem {
namespace {

absl::Status Failed(std::string_view setting, const std::string& path, std::string_view what, int error) {
  return absl::FailedPreconditionError(Cat(setting, ": ", what, " ", path, ": ", std::strerror(error),
                                           "; make it by hand, or choose another directory with ", setting));
}

absl::Status CheckExisting(const std::string& path, std::string_view setting) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return Failed(setting, path, "cannot look at", errno);
  if (!S_ISDIR(found.st_mode)) return Failed(setting, path, "cannot use", ENOTDIR);
  if ((found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(Cat(setting, ": everyone may write in ", path,
                                             ", so anyone could put another socket in place of the daemon's; take that "
                                             "right away (chmod o-w ",
                                             path, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareDirectory(const std::string& path, mode_t mode, std::optional<gid_t> group,
                              std::string_view setting) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(parent, error);
  if (error) return Failed(setting, parent.string(), "cannot make", error.value());
  if (::mkdir(path.c_str(), 0700) != 0) {
    return errno == EEXIST ? CheckExisting(path, setting) : Failed(setting, path, "cannot make", errno);
  }
  if (group && ::chown(path.c_str(), static_cast<uid_t>(-1), *group) != 0) {
    return Failed(setting, path, "cannot give its group to", errno);
  }
  // After the owner, and by chmod: mkdir's mode is cut by the umask.
  if (::chmod(path.c_str(), mode) != 0) return Failed(setting, path, "cannot set the mode of", errno);
  return absl::OkStatus();
}

absl::StatusOr<gid_t> FindGroup(const std::string& name, std::string_view setting) {
  std::vector<char> buffer(16384);
  struct group entry {};
  struct group* found = nullptr;
  int error = 0;
  while ((error = ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found)) == ERANGE) {
    buffer.resize(buffer.size() * 2);
  }
  if (found != nullptr) return found->gr_gid;
  return absl::NotFoundError(Cat(setting, ": there is no group '", name, "'",
                                 error == 0 ? "" : Cat(" (", std::strerror(error), ")"),
                                 "; make it (groupadd --system ", name, "), or name another"));
}

}  // namespace gpumem
