// client/demo/cleanup.h: nothing of a demo outlives it, whatever ends it. Linux only; calls base/.
//
// Every process that the demo starts carries kMark in its environment, and so does each that those start (arenas, the
// keeper). A janitor process of the demo waits for the end of its standard pipe: the demo closed it, or is gone by any
// kind of death. Then it kills every process with the mark and removes the demo's directory.
#ifndef GPUMEM_CLIENT_DEMO_CLEANUP_H_
#define GPUMEM_CLIENT_DEMO_CLEANUP_H_

#include <string>

namespace gpumem::demo {

inline constexpr char kMark[] = "GPUMEM_DEMO_DIR";

// Kills every process whose initial environment says kMark=directory, this one excepted, until none is left.
void KillMarked(const std::string& directory);

// KillMarked, then the removal of `directory`. False when something of it stays.
bool CleanUp(const std::string& directory);

// The janitor: waits for the end of file of descriptor `fd`, then CleanUp. The exit code.
int RunJanitor(int fd, const std::string& directory);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_CLEANUP_H_
