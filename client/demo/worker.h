// client/demo/worker.h: the demo's own workers: the loader, and the workers that serve. Each runs in a process of its
// own and speaks client/demo/messages.h on descriptor 3. They use libgpumem as any worker does.
#ifndef GPUMEM_CLIENT_DEMO_WORKER_H_
#define GPUMEM_CLIENT_DEMO_WORKER_H_

#include <string>

namespace gpumem::demo {

struct WorkerOptions {
  std::string name;            // "A", "B"; the first part of its holders' names
  std::string socket_dir;      // of the daemon
  std::string libcuda;         // empty: libcuda.so.1 by the loader's search
  std::string model;           // the safetensors file
  std::string segment;         // to publish as, or to attach
  std::string weights_device;  // UUID
  std::string kv_device;       // UUID; not for the loader
};

// Publish the file as a segment, and exit. The result is the exit code.
int RunLoader(const WorkerOptions& options);

// Attach, verify, serve, until told to fault or to finish.
int RunWorker(const WorkerOptions& options);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_WORKER_H_
