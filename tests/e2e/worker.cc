// tests/e2e/worker.cc: a worker that a test drives line by line. It links libgpumem as any worker would.
//
// Reads commands from stdin, one a line, and answers each with one line: "ok key=value …" or "err REASON message".
// Memory is named by a word of the script's choice. See `Commands()` for what there is.
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpumem/gpumem.h"
#include "tests/e2e/kill_points.h"
#include "tests/e2e/worker_gpu.h"

namespace gpumem::e2e {
namespace {

using Words = std::vector<std::string>;

struct Memory {
  gpumem_lease* lease = nullptr;
  gpumem_segment* segment = nullptr;
  gpumem_device_ptr address = 0;
  std::uint64_t bytes = 0;
};

class WorkerMain {
 public:
  // Answers one command.
  std::string Handle(const Words& words) {
    static const std::map<std::string, std::string (WorkerMain::*)(const Words&)> commands = {
        {"connect", &WorkerMain::Connect},   {"close", &WorkerMain::Close},         {"session", &WorkerMain::Session},
        {"holder", &WorkerMain::Holder},     {"alloc", &WorkerMain::Alloc},         {"build", &WorkerMain::Build},
        {"map", &WorkerMain::Map},           {"unmap", &WorkerMain::Unmap},         {"release", &WorkerMain::Release},
        {"seal", &WorkerMain::Seal},         {"attach", &WorkerMain::Attach},       {"detach", &WorkerMain::Detach},
        {"segments", &WorkerMain::Segments}, {"tensors", &WorkerMain::Tensors},     {"fill", &WorkerMain::Fill},
        {"check", &WorkerMain::Check},       {"store", &WorkerMain::Store},         {"report", &WorkerMain::Report},
        {"event", &WorkerMain::Event},       {"subscribe", &WorkerMain::Subscribe}, {"fork", &WorkerMain::Fork},
        {"forkexec", &WorkerMain::ForkExec}, {"inchild", &WorkerMain::InChild},     {"mark", &WorkerMain::Mark},
        {"fds", &WorkerMain::CountFds},
    };
    const auto found = commands.find(words[0]);
    if (found == commands.end()) return "err USAGE unknown command '" + words[0] + "'";
    status_ = GPUMEM_STATUS_INIT;
    try {
      return (this->*found->second)(words);
    } catch (const std::exception& error) {
      return std::string("err USAGE ") + words[0] + ": " + error.what();
    }
  }

 private:
  std::string Answer(gpumem_reason reason, const std::string& ok = "ok") {
    if (reason == GPUMEM_OK) return ok;
    return std::string("err ") + gpumem_reason_name(reason) + " " + status_.message;
  }
  Memory& Named(const std::string& name) {
    const auto found = memory_.find(name);
    if (found == memory_.end()) throw std::invalid_argument("no memory is called '" + name + "'");
    return found->second;
  }

  std::string Connect(const Words&) {
    gpumem_options options = GPUMEM_OPTIONS_INIT;
    options.client_name = "e2e";
    return Answer(gpumem_connect(&options, &client_, &status_));
  }
  std::string Close(const Words&) {
    gpumem_close(client_);
    client_ = nullptr;
    for (auto& [name, memory] : memory_) {
      if (memory.lease != nullptr) gpumem_lease_release(memory.lease, nullptr, 0, nullptr);
      if (memory.segment != nullptr) gpumem_segment_detach(memory.segment, nullptr, 0, nullptr);
    }
    memory_.clear();
    return "ok";
  }
  std::string Session(const Words&) {
    gpumem_session_info info = GPUMEM_SESSION_INFO_INIT;
    const gpumem_reason reason = gpumem_session(client_, &info, &status_);
    return Answer(reason,
                  "ok id=" + std::to_string(info.session_id) + " instance=" + info.instance + " driver=" + info.driver);
  }
  // holder NAME ROLE(number or word)
  std::string Holder(const Words& words) {
    static const std::map<std::string, int> roles = {{"weights", 1},       {"kv-cache", 2},    {"workspace", 3},
                                                     {"communication", 4}, {"draft-model", 5}, {"other", 6}};
    const auto role = roles.find(words.at(2));
    const gpumem_reason reason = gpumem_register_holder(
        client_, words.at(1).c_str(), role == roles.end() ? std::stoi(words[2]) : role->second, &holder_, &status_);
    return Answer(reason, "ok id=" + std::to_string(holder_));
  }
  // UUID BYTES COUNT, repeated, from words[from]
  static std::vector<gpumem_chunk_spec> Specs(const Words& words, std::size_t from) {
    std::vector<gpumem_chunk_spec> specs;
    for (std::size_t i = from; i + 2 < words.size(); i += 3) {
      specs.push_back(
          {words[i].c_str(), std::stoull(words[i + 1]), static_cast<std::uint32_t>(std::stoul(words[i + 2]))});
    }
    return specs;
  }
  std::string Granted(const std::string& name, gpumem_reason reason, gpumem_lease* lease) {
    if (reason != GPUMEM_OK) return Answer(reason);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    gpumem_lease_info(lease, &info, nullptr);
    Memory memory;
    memory.lease = lease;
    memory.bytes = info.bytes;
    memory_[name] = memory;
    return "ok lease=" + std::to_string(info.lease_id) + " bytes=" + std::to_string(info.bytes) +
           " chunks=" + std::to_string(info.chunk_count);
  }
  // alloc AS UUID BYTES COUNT [UUID BYTES COUNT]…
  std::string Alloc(const Words& words) {
    const auto specs = Specs(words, 2);
    gpumem_lease* lease = nullptr;
    const gpumem_reason reason = gpumem_allocate(client_, holder_, specs.data(), specs.size(), &lease, &status_);
    return Granted(words.at(1), reason, lease);
  }
  // build AS NAME UUID BYTES COUNT…
  std::string Build(const Words& words) {
    const auto specs = Specs(words, 3);
    gpumem_lease* lease = nullptr;
    const gpumem_reason reason =
        gpumem_segment_build(client_, holder_, words.at(2).c_str(), specs.data(), specs.size(), &lease, &status_);
    return Granted(words[1], reason, lease);
  }
  // map AS [ro|rw]
  std::string Map(const Words& words) {
    Memory& memory = Named(words.at(1));
    gpumem_reason reason;
    if (memory.segment != nullptr) {
      reason = gpumem_segment_map(memory.segment, 0, &memory.address, &status_);
    } else {
      const bool read_only = words.size() > 2 && words[2] == "ro";
      reason = gpumem_lease_map(memory.lease, 0, read_only ? GPUMEM_ACCESS_READ_ONLY : GPUMEM_ACCESS_READ_WRITE,
                                &memory.address, &status_);
    }
    return Answer(reason, "ok address=" + std::to_string(memory.address));
  }
  std::string Unmap(const Words& words) {
    Memory& memory = Named(words.at(1));
    const gpumem_reason reason = gpumem_lease_unmap(memory.lease, nullptr, 0, &status_);
    if (reason == GPUMEM_OK) memory.address = 0;
    return Answer(reason);
  }
  std::string Release(const Words& words) {
    const gpumem_reason reason = gpumem_lease_release(Named(words.at(1)).lease, nullptr, 0, &status_);
    if (IsFreed(reason)) memory_.erase(words[1]);
    return Answer(reason);
  }
  // seal AS [TENSOR DTYPE OFFSET SIZE]…: one-dimensional tensors
  std::string Seal(const Words& words) {
    std::vector<gpumem_tensor> tensors;
    static const std::map<std::string, std::uint64_t> dtypes = {{"F32", 4}, {"BF16", 2}, {"U8", 1}};
    std::vector<std::uint64_t> shapes(words.size());
    for (std::size_t i = 2; i + 3 < words.size(); i += 4) {
      gpumem_tensor tensor = GPUMEM_TENSOR_INIT;
      tensor.name = words[i].c_str();
      tensor.dtype = words[i + 1].c_str();
      tensor.offset_bytes = std::stoull(words[i + 2]);
      tensor.size_bytes = std::stoull(words[i + 3]);
      const auto dtype = dtypes.find(words[i + 1]);
      shapes[i] = tensor.size_bytes / (dtype == dtypes.end() ? 1 : dtype->second);
      tensor.shape = &shapes[i];
      tensor.shape_count = 1;
      tensors.push_back(tensor);
    }
    char name[256] = {};
    const gpumem_reason reason = gpumem_segment_seal(Named(words.at(1)).lease, tensors.data(), tensors.size(), nullptr,
                                                     0, name, sizeof(name), &status_);
    if (reason == GPUMEM_OK) memory_.erase(words[1]);
    return Answer(reason, std::string("ok name=") + name);
  }
  // attach AS NAME
  std::string Attach(const Words& words) {
    gpumem_segment* segment = nullptr;
    const gpumem_reason reason = gpumem_segment_attach(client_, holder_, words.at(2).c_str(), &segment, &status_);
    if (reason != GPUMEM_OK) return Answer(reason);
    gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
    gpumem_segment_info(segment, &info, nullptr);
    Memory memory;
    memory.segment = segment;
    memory.bytes = info.bytes;
    memory_[words.at(1)] = memory;
    return std::string("ok name=") + gpumem_segment_name(segment) + " bytes=" + std::to_string(info.bytes) +
           " tensors=" + std::to_string(gpumem_segment_tensor_count(segment));
  }
  std::string Detach(const Words& words) {
    const gpumem_reason reason = gpumem_segment_detach(Named(words.at(1)).segment, nullptr, 0, &status_);
    if (IsFreed(reason)) memory_.erase(words[1]);
    return Answer(reason);
  }
  // gpumem.h: with which answers a release or a detach has freed its object.
  static bool IsFreed(gpumem_reason reason) {
    return reason != GPUMEM_CAPTURING && reason != GPUMEM_CUDA && reason != GPUMEM_INVALID_ARGUMENT &&
           reason != GPUMEM_FORKED;
  }
  std::string Segments(const Words&) {
    std::string names;
    const gpumem_reason reason = gpumem_list_segments(
        client_, nullptr,
        [](const gpumem_segment_entry* entry, void* user) {
          *static_cast<std::string*>(user) += std::string(entry->name) + ",";
          return 0;
        },
        &names, &status_);
    return Answer(reason, "ok names=" + names);
  }
  std::string Tensors(const Words& words) {
    gpumem_segment* const segment = Named(words.at(1)).segment;
    std::string all;
    for (std::size_t i = 0; i < gpumem_segment_tensor_count(segment); ++i) {
      gpumem_tensor tensor = GPUMEM_TENSOR_INIT;
      const gpumem_reason reason = gpumem_segment_tensor(segment, i, &tensor, &status_);
      if (reason != GPUMEM_OK) return Answer(reason);
      all += std::string(tensor.name) + ":" + tensor.dtype + ":" + std::to_string(tensor.offset_bytes) + ":" +
             std::to_string(tensor.size_bytes) + ",";
    }
    return "ok tensors=" + all;
  }
  // fill AS VALUE: every 32-bit word
  std::string Fill(const Words& words) {
    const Memory& memory = Named(words.at(1));
    return gpu_.Fill(memory.address, memory.bytes, static_cast<std::uint32_t>(std::stoul(words.at(2))));
  }
  // check AS VALUE
  std::string Check(const Words& words) {
    const Memory& memory = Named(words.at(1));
    return gpu_.Check(memory.address, memory.bytes, static_cast<std::uint32_t>(std::stoul(words.at(2))));
  }
  // store AS VALUE: one word, by a kernel; answers the CUresult of the synchronisation that follows
  std::string Store(const Words& words) {
    last_error_ = gpu_.Store(Named(words.at(1)).address, static_cast<std::uint32_t>(std::stoul(words.at(2))));
    return "ok cuda=" + std::to_string(last_error_) + " class=" + std::to_string(gpumem_classify_error(last_error_));
  }
  std::string Report(const Words&) {
    return Answer(gpumem_report_fault(client_, last_error_, "stored through a read-only mapping", &status_));
  }
  std::string Subscribe(const Words&) {
    return gpumem_event_fd(client_, &status_) >= 0 ? "ok" : Answer(status_.reason);
  }
  // event KIND: waits for one of that kind on the event fd, as an application's loop would; DISCONNECTED ends the wait
  std::string Event(const Words& words) {
    const int wanted = std::stoi(words.at(1));
    const int fd = gpumem_event_fd(client_, &status_);
    if (fd < 0) return Answer(status_.reason);
    gpumem_event event{};
    event.struct_size = sizeof(event);
    std::int32_t got = 0;
    while (got == 0) {
      const gpumem_reason reason = gpumem_next_event(client_, &event, &got, &status_);
      if (reason != GPUMEM_OK) return Answer(reason);
      if (got == 0 && !WaitForInput(fd)) return "err DEADLINE no event came";
      if (got != 0 && event.kind != wanted && event.kind != GPUMEM_EVENT_DISCONNECTED) got = 0;
    }
    return "ok kind=" + std::to_string(event.kind) + " state=" + std::to_string(event.state) + " name=" + event.name;
  }
  // fork: a child that lives until it is killed
  std::string Fork(const Words&) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    return "ok pid=" + std::to_string(child);
  }
  std::string ForkExec(const Words&) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sleep", "sleep", "600", nullptr);
      ::_exit(127);
    }
    return "ok pid=" + std::to_string(child);
  }
  // inchild COMMAND…: runs a command in a forked child and answers what it answered there
  std::string InChild(const Words& words) {
    int fds[2];
    if (::pipe(fds) != 0) return "err USAGE pipe";
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string answer = Handle(Words(words.begin() + 1, words.end()));
      const ssize_t wrote = ::write(fds[1], answer.data(), answer.size());
      ::_exit(wrote < 0 ? 1 : 0);
    }
    ::close(fds[1]);
    std::string answer;
    char buffer[512];
    for (ssize_t got; (got = ::read(fds[0], buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(fds[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return answer.empty() ? "err GONE the child ended with status " + std::to_string(status) : answer;
  }
  std::string Mark(const Words& words) {
    ::syscall(SYS_getpgid, words.at(1) == "begin" ? kMarkBegin : kMarkEnd);
    return "ok";
  }
  std::string CountFds(const Words&) { return "ok fds=" + std::to_string(OpenDescriptors()); }

  gpumem_client* client_ = nullptr;
  std::uint64_t holder_ = 0;
  std::map<std::string, Memory> memory_;
  gpumem_status status_ = GPUMEM_STATUS_INIT;
  WorkerGpu gpu_;
  int last_error_ = 0;
};

}  // namespace
}  // namespace gpumem::e2e

int main() {
  gpumem::e2e::WorkerMain worker;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (words.empty()) continue;
    std::cout << worker.Handle(words) << std::endl;
  }
  // No clean-up on purpose: a worker that just ends must leave nothing behind either.
  ::_exit(0);
}
