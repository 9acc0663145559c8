// daemon/directories.h: the directories of the daemon's sockets.
#ifndef GPUMEM_DAEMON_DIRECTORIES_H_
#define GPUMEM_DAEMON_DIRECTORIES_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gpumem {

// Makes sure that `path` is a directory; one that has to be made gets exactly `mode`, and `group` when given; its
// missing parents get 0755. One that is there stays as it is, but is refused when others may replace files in it
// (writable for others without the sticky bit). `setting` is named in errors.
absl::Status PrepareDirectory(const std::string& path, mode_t mode, std::optional<gid_t> group,
                              std::string_view setting);

// The group's number. NotFound names the setting.
absl::StatusOr<gid_t> FindGroup(const std::string& name, std::string_view setting);

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_DIRECTORIES_H_
