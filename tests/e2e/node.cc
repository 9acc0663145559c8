#include "tests/e2e/node.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace gpumem::e2e {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::steady_clock;

const std::string kBin = TEST_BIN_DIR;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Every process whose environment or command line names this node's directory, but this one.
std::vector<pid_t> ProcessesOf(const std::string& dir) {
  std::vector<pid_t> pids;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t pid = static_cast<pid_t>(std::stol(name));
    if (pid == ::getpid()) continue;
    const std::string text = ReadFile(entry.path() / "cmdline") + ReadFile(entry.path() / "environ");
    if (text.find(dir) != std::string::npos) pids.push_back(pid);
  }
  return pids;
}

// The process of this node whose command line has all of `words`; 0 when there is none.
pid_t FindProcess(const std::string& dir, const std::vector<std::string>& words) {
  for (const pid_t pid : ProcessesOf(dir)) {
    std::string line = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
    for (char& c : line) {
      if (c == '\0') c = ' ';
    }
    bool all = true;
    for (const std::string& word : words) all = all && line.find(word) != std::string::npos;
    if (all) return pid;
  }
  return 0;
}

}  // namespace

std::string Worker::Ask(const std::string& command) {
  if (!process_.WriteLine(command)) return "err GONE the worker does not read";
  const auto line = process_.ReadLine();
  return line ? *line : "err GONE the worker did not answer: " + process_.errors();
}

std::string Worker::Get(const std::string& command, const std::string& key) {
  const std::string answer = Ask(command);
  const std::size_t at = answer.find(" " + key + "=");
  if (answer.rfind("ok", 0) != 0 || at == std::string::npos) {
    ADD_FAILURE() << "'" << command << "' answered '" << answer << "', wanted ok with " << key;
    return {};
  }
  const std::size_t begin = at + key.size() + 2;
  return answer.substr(begin, answer.find(' ', begin) - begin);
}

void Worker::Do(const std::string& command) {
  const std::string answer = Ask(command);
  EXPECT_EQ(answer.substr(0, 2), "ok") << "'" << command << "' answered '" << answer << "'";
}

void Worker::Refused(const std::string& command, const std::string& reason, const std::vector<std::string>& words) {
  const std::string answer = Ask(command);
  EXPECT_EQ(answer.rfind("err " + reason + " ", 0), 0u)
      << "'" << command << "' answered '" << answer << "', wanted err " << reason;
  for (const std::string& word : words) {
    EXPECT_NE(answer.find(word), std::string::npos) << "the refusal does not say '" << word << "': " << answer;
  }
}

Node::Node(const Options& options) : options_(options) {
  char path[] = "/dev/shm/gpumem-e2e-XXXXXX";
  if (::mkdtemp(path) == nullptr) {
    ADD_FAILURE() << "cannot make a directory in /dev/shm";
    return;
  }
  dir_ = path;
  const Finished made = RunCommand({{kBin + "/simgpu", "init", "--dir", dir_ + "/sim", "--gpus",
                                     std::to_string(options.gpus), "--memory", options.memory},
                                    {}});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  std::ofstream(dir_ + "/gpumemd.toml") << options.config;
  const json truth = Truth();
  for (const json& device : truth["devices"]) uuids_.push_back(device["uuid"]);
}

Node::~Node() {
  daemon_.Kill();
  if (dir_.empty()) return;
  for (int round = 0; round < 100; ++round) {
    const std::vector<pid_t> left = ProcessesOf(dir_);
    if (left.empty()) break;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::error_code ignored;
  fs::remove_all(dir_, ignored);
}

std::map<std::string, std::string> Node::Environment() const {
  return {{"SIMCUDA_DIR", dir_ + "/sim"},
          {"GPUMEM_SOCKET_DIR", socket_dir()},
          {"GPUMEM_ADMIN_SOCKET", admin_socket()},
          {"GPUMEM_LIBCUDA", std::string(TEST_LIB_DIR) + "/gpumem-sim/libcuda.so.1"}};
}

Command Node::DaemonCommand() const {
  Command command;
  command.argv = {
      kBin + "/gpumemd", "--config",    dir_ + "/gpumemd.toml", "--driver=sim",    "--socket-dir",
      socket_dir(),      "--admin-dir", dir_ + "/admin",        "--keeper-socket", dir_ + "/keeper/keeper.sock"};
  command.argv.insert(command.argv.end(), options_.args.begin(), options_.args.end());
  command.env = Environment();
  return command;
}

Command Node::WorkerCommand() const { return Command{{kBin + "/e2e-worker"}, Environment()}; }

Command Node::MemctlCommand(const std::vector<std::string>& args) const {
  Command command{{kBin + "/memctl"}, Environment()};
  command.argv.insert(command.argv.end(), args.begin(), args.end());
  return command;
}

void Node::Start() {
  daemon_ = Process::Spawn(DaemonCommand());
  Eventually("gpumemd serves and every device is healthy", [this] {
    if (!daemon_.running()) return false;
    const Finished answer = RunCommand(MemctlCommand({"devices", "--json"}));
    if (answer.exit_code != 0) return false;
    const json devices = json::parse(answer.out)["devices"];
    if (devices.size() != uuids_.size()) return false;
    for (const json& device : devices) {
      if (device["state"] != "healthy") return false;
    }
    return Memctl("status")["keeper_connected"].get<bool>();
  });
}

std::unique_ptr<Worker> Node::NewWorker() { return std::make_unique<Worker>(Process::Spawn(WorkerCommand())); }

std::unique_ptr<Worker> Node::NewWorker(const std::string& holder, const std::string& role) {
  auto worker = NewWorker();
  worker->Do("connect");
  worker->Do("holder " + holder + " " + role);
  return worker;
}

json Node::Memctl(const std::string& what) {
  const Finished answer = RunCommand(MemctlCommand({what, "--json"}));
  if (answer.exit_code != 0) return json::object();
  return json::parse(answer.out, nullptr, false);
}

json Node::Truth() {
  const Finished answer = RunCommand({{kBin + "/simgpu", "ls", "--dir", dir_ + "/sim", "--json"}, {}});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  return json::parse(answer.out, nullptr, false);
}

void Node::Eventually(const std::string& what, const std::function<bool()>& condition) {
  const auto deadline = steady_clock::now() + kPatience;
  while (!condition()) {
    if (steady_clock::now() > deadline || (daemon_.pid() > 0 && !daemon_.running())) {
      ADD_FAILURE() << "waited in vain: " << what << "\nbooks: " << Memctl("devices").dump(1)
                    << "\nquarantine: " << Memctl("quarantine").dump(1) << "\nhardware: " << Truth().dump(1)
                    << "\ndaemon's log:\n"
                    << daemon_.errors();
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void Node::ExpectBooksMatchHardware() {
  Eventually("the books' physical bytes are the hardware's, device by device", [this] {
    std::map<std::string, std::uint64_t> truth;
    const json hardware = Truth();
    for (const json& device : hardware["devices"]) truth[device["uuid"]] = device["physical_bytes"];
    const json books = Memctl("devices");
    if (!books.contains("devices") || books["devices"].size() != truth.size()) return false;
    for (const json& device : books["devices"]) {
      if (truth[device["uuid"]] != device["physical_bytes"].get<std::uint64_t>()) return false;
    }
    return true;
  });
}

void Node::ExpectNothingLeft() {
  // One call: under a sanitizer each start of memctl is dear.
  Eventually("nothing is charged, quarantined or held any more", [this] {
    const json status = Memctl("status");
    if (!status.contains("devices")) return false;
    for (const char* field : {"charged_bytes", "physical_bytes", "quarantined_bytes", "mapped_read_only_bytes",
                              "mapped_read_write_bytes"}) {
      if (Sum(status["devices"], field) != 0) return false;
    }
    for (const char* field : {"sessions_live", "sessions_fenced", "leases", "segments", "quarantine_records"}) {
      if (status[field] != 0) return false;
    }
    return PhysicalTruth() == 0;
  });
}

std::uint64_t Node::Sum(const json& rows, const std::string& field) {
  std::uint64_t sum = 0;
  for (const json& row : rows) sum += row[field].get<std::uint64_t>();
  return sum;
}

std::uint64_t Node::PhysicalTruth() { return Sum(Truth()["devices"], "physical_bytes"); }

pid_t Node::ArenaPid(int index) {
  pid_t pid = 0;
  Eventually("the arena of device " + std::to_string(index) + " runs", [&] {
    pid = FindProcess(dir_, {"arena", uuids_[static_cast<std::size_t>(index)]});
    return pid != 0;
  });
  return pid;
}

pid_t Node::KeeperPid() {
  pid_t pid = 0;
  Eventually("the keeper runs", [&] {
    pid = FindProcess(dir_, {"gpumemd keeper"});
    return pid != 0;
  });
  return pid;
}

}  // namespace gpumem::e2e
