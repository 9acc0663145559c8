// tests/e2e/node.h: a whole node for one test: a simulated machine, gpumemd with its arenas and keeper, and workers.
//
// All are the production binaries of the build under test, in a private directory; everything is killed and removed at
// the end, whatever happened. What the daemon says is read through `memctl --json`; what the hardware says through
// `simgpu ls --json`, which keeps no count of its own: it asks the kernel which memory is still referenced.
#ifndef GPUMEM_TESTS_E2E_NODE_H_
#define GPUMEM_TESTS_E2E_NODE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/e2e/process.h"

namespace gpumem::e2e {

inline constexpr std::uint64_t kMiB = 1ull << 20;
inline constexpr std::uint64_t kGiB = 1ull << 30;

// One worker process driven by lines (tests/e2e/worker.cc).
class Worker {
 public:
  explicit Worker(Process process) : process_(std::move(process)) {}

  // Sends a command and returns its answer: "ok …" or "err REASON message".
  std::string Ask(const std::string& command);
  // The value of `key` in "ok key=value …"; fails the test when the answer is an error.
  std::string Get(const std::string& command, const std::string& key);
  // Fails the test unless the answer is ok.
  void Do(const std::string& command);
  // Fails the test unless the answer is an error of that reason, whose message contains each of `words`.
  void Refused(const std::string& command, const std::string& reason, const std::vector<std::string>& words = {});
  // Sends without waiting.
  void Send(const std::string& command) { process_.WriteLine(command); }
  // Whether an answer comes within a moment; it is left for ReadLine.
  bool HasAnswer() { return process_.HasOutput(std::chrono::milliseconds(50)); }

  Process& process() { return process_; }
  pid_t pid() const { return process_.pid(); }

 private:
  Process process_;
};

class Node {
 public:
  struct Options {
    int gpus = 2;
    std::string memory = "8GiB";
    std::string config;             // TOML, written to the config file
    std::vector<std::string> args;  // more flags for gpumemd
  };
  Node() : Node(Options{}) {}
  explicit Node(const Options& options);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Starts gpumemd and waits until it serves.
  void Start();
  // The command that Start runs, for tests that expect it to fail.
  Command DaemonCommand() const;
  Command WorkerCommand() const;
  Command MemctlCommand(const std::vector<std::string>& args) const;

  std::unique_ptr<Worker> NewWorker();
  // A worker that is connected and has the holder `name` of `role`.
  std::unique_ptr<Worker> NewWorker(const std::string& holder, const std::string& role);

  nlohmann::json Memctl(const std::string& what);  // `memctl WHAT --json`
  nlohmann::json Truth();                          // `simgpu ls --json`
  const std::vector<std::string>& uuids() const { return uuids_; }

  // Waits until `condition` holds, or fails the test naming `what` and showing the last state.
  void Eventually(const std::string& what, const std::function<bool()>& condition);
  // Waits for a quiet moment at which, device by device, the books' physical bytes are the hardware's.
  void ExpectBooksMatchHardware();
  // The same, and nothing is charged, quarantined or held any more.
  void ExpectNothingLeft();

  std::uint64_t Sum(const nlohmann::json& rows, const std::string& field);
  std::uint64_t PhysicalTruth();

  // The pid of the arena of device `index`, or of the keeper: found among the daemon's processes.
  pid_t ArenaPid(int index);
  pid_t KeeperPid();

  Process& daemon() { return daemon_; }
  const std::string& dir() const { return dir_; }
  std::string socket_dir() const { return dir_ + "/run"; }
  std::string admin_socket() const { return dir_ + "/admin/admin.sock"; }

 private:
  std::map<std::string, std::string> Environment() const;

  Options options_;
  std::string dir_;
  std::vector<std::string> uuids_;
  Process daemon_;
};

}  // namespace gpumem::e2e

#endif  // GPUMEM_TESTS_E2E_NODE_H_
