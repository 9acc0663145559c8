// daemon/arena/arena_process.h: the program `gpumemd arena`.
//
//   gpumemd arena --device=UUID [--driver=auto|cuda|sim] [--libcuda=PATH]     ArenaMain: serves one device
//   gpumemd arena --probe [--driver=…] [--libcuda=PATH]                       ProbeMain: lists all devices
//
// ArenaMain is started by the front (arena_supervisor.h) with its socket as descriptor 3 and CUDA_VISIBLE_DEVICES set.
// It creates no CUDA context, maps nothing and launches nothing. It ends when the front's end of the socket closes,
// however the front ended; every chunk it still holds then loses this reference. Signals: SIGINT and SIGHUP, which a
// terminal sends to the whole group, are ignored, because the front's own stop ends the arena in order; SIGTERM ends it
// at once, and a front that lives starts another.
#ifndef GPUMEM_DAEMON_ARENA_ARENA_PROCESS_H_
#define GPUMEM_DAEMON_ARENA_ARENA_PROCESS_H_

#include <string>

namespace gpumem::arena {

struct ArenaFlags {
  std::string device;           // text form of the UUID; not for ProbeMain
  std::string driver = "auto";  // auto: whatever kind the library is; cuda, sim: only that kind
  std::string libcuda;          // path of the driver; empty: libcuda.so.1 by the usual search
};

// Both return the process's exit code: 0, or 1 after one line on stderr that says what failed.
int ArenaMain(const ArenaFlags& flags);

// Prints one JSON object on stdout:
//   {"driver": {"kind": "sim", "version": 12080, "path": "…"},
//    "devices": [{"uuid": "GPU-…", "name": "…", "pci_bus_id": "…", "total_bytes": n, "granularity_bytes": n,
//                 "vmm_supported": true, "posix_fd_supported": true}, …]}
int ProbeMain(const ArenaFlags& flags);

}  // namespace gpumem::arena

#endif  // GPUMEM_DAEMON_ARENA_ARENA_PROCESS_H_
