// client/demo/stage.h: the processes of the demo, and the one loop in which it waits for them. Calls base/.
//
// Single-threaded. Nothing here blocks but Wait, which watches every child's messages, output and end, and the
// signals of the user. After an interrupt every wait fails at once.
#ifndef GPUMEM_CLIENT_DEMO_STAGE_H_
#define GPUMEM_CLIENT_DEMO_STAGE_H_

#include <chrono>
#include <functional>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/unique_fd.h"
#include "client/demo/messages.h"

namespace gpumem::demo {

struct Child {
  std::string name;
  ChildProcess process;
  UniqueFd messages;   // our end of its message socket
  UniqueFd output;     // our end of its stdout, when that is read
  std::string text;    // what came from it and is not taken yet
  std::string log;     // the file with its stderr (and stdout, when that is not read)
  bool ended = false;  // and reaped
  std::string how;     // "exit code 0", "killed by signal 9 (Killed)"
  std::function<void(const Json&)> on_message;
  std::function<void(std::string_view)> on_line;  // set: lines are taken from `text` as they come

  pid_t pid() const { return process.pid; }
  bool exited_well() const { return ended && how == "exit code 0"; }
};

class Stage {
 public:
  enum class Reads { kMessages, kOutput, kNeither };

  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  // Ends every process and removes the directory, and waits until that is done.
  ~Stage();

  // Makes the private directory under `parent` and starts the janitor, and takes over SIGINT, SIGTERM and SIGHUP.
  // `self` is this program's path. "" or why not.
  std::string Open(const std::string& parent, const std::string& self);
  const std::string& directory() const { return directory_; }

  // Added to the environment of every child started from now on.
  void SetEnvironment(std::string name, std::string value);

  // Starts `path`. Null, with `error()` set, when it cannot be started. The Child lives as long as the Stage.
  Child* Start(const std::string& name, const std::string& path, std::vector<std::string> arguments, Reads reads);
  const std::string& error() const { return error_; }

  // Handles what happens until `done` says true. False when `within` passed first, or the user interrupted.
  bool Wait(std::chrono::milliseconds within, const std::function<bool()>& done);
  bool interrupted() const { return interrupted_; }

  struct Ran {
    bool good = false;  // exit code 0
    std::string output;
    std::string errors;
  };
  // Runs a command to its end.
  Ran Run(const std::string& path, std::vector<std::string> arguments, std::chrono::milliseconds within);

  // The last lines of a child's log, for a person who asks why it failed.
  static std::string LogTail(const Child& child);

 private:
  void HandleSignals();
  void HandleMessages(Child* child);
  void HandleOutput(Child* child);

  std::string directory_;
  UniqueFd signals_;
  UniqueFd janitor_pipe_;
  ChildProcess janitor_;
  std::vector<std::pair<std::string, std::string>> environment_;
  std::list<Child> children_;
  std::string error_;
  bool interrupted_ = false;
};

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_STAGE_H_
