// daemon/front.h: the front process: everything of daemon/ put together and run on one event loop.
//
// Owns the order of start and stop. Loads no driver: the devices are learnt from a child, and each is driven by one.
#ifndef GPUMEM_DAEMON_FRONT_H_
#define GPUMEM_DAEMON_FRONT_H_

#include "daemon/config.h"

namespace gpumem {

// Runs gpumemd until SIGTERM or SIGINT; blocks. To be called once, on the main thread, before any other thread exists.
// Start: sockets (a second daemon on the same ones is refused), driver and devices, then the loop; READY is told to
// systemd once the keeper and every arena are ready, or start_grace has passed. Stop, on the first signal: health says
// NOT_SERVING, new work is refused, watchers are told, calls in flight get stop_grace, the arenas end; durable memory
// stays with the keeper. A second signal ends the process at once.
// Returns the exit code: 0, or 1 after a line on standard error that says what failed.
int RunFront(const Config& config);

}  // namespace gpumem

#endif  // GPUMEM_DAEMON_FRONT_H_
