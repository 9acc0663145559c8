// gpumem-demo: the main job on a simulated GPU or a real one, with every claim checked.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "client/demo/cleanup.h"
#include "client/demo/messages.h"
#include "client/demo/story.h"
#include "client/demo/worker.h"

namespace gpumem::demo {
namespace {

// The simulated library of a build, or of an installation, beside this program. Empty when there is none.
std::string FindSimLibrary(const std::string& programs) {
  for (const char* place : {"/../lib/gpumem-sim", "/../lib/x86_64-linux-gnu/gpumem-sim", "/../lib64/gpumem-sim"}) {
    const std::string path = programs + place + "/libcuda.so.1";
    std::error_code error;
    if (std::filesystem::exists(path, error)) return std::filesystem::canonical(path, error).string();
  }
  return "";
}

int Usage(const std::string& what) {
  std::fprintf(stderr, "gpumem-demo: %s\n", what.c_str());
  return 2;
}

int Main(int argc, char** argv) {
  std::error_code error;
  StoryOptions story;
  story.self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  story.programs = story.self.substr(0, story.self.rfind('/'));

  CLI::App app(
      "gpumem-demo: starts gpumemd, publishes a model, lets a worker fault, kills and replaces it, and checks that\n"
      "nothing was lost. Exit code 0 when every check held.",
      "gpumem-demo");
  app.add_option("--model", story.model, "A safetensors file (default: one of 256 MiB that the demo writes)");
  app.add_option("--report", story.report, "Write what was found to this file, as JSON");
  app.add_option("--driver", story.driver, "sim: simulated GPUs; cuda: the real driver")
      ->check(CLI::IsMember({"sim", "cuda"}))
      ->capture_default_str();
  app.add_option("--dir", story.directory, "Where to make the private directory (default: a tmpfs with 1 GiB free)");

  // The demo's own processes.
  WorkerOptions worker;
  std::string janitor_directory;
  CLI::App* loader_role = app.add_subcommand("loader")->group("");
  CLI::App* worker_role = app.add_subcommand("worker")->group("");
  for (CLI::App* role : {loader_role, worker_role}) {
    role->add_option("--name", worker.name);
    role->add_option("--socket-dir", worker.socket_dir);
    role->add_option("--libcuda", worker.libcuda);
    role->add_option("--model", worker.model);
    role->add_option("--segment", worker.segment);
    role->add_option("--device", worker.weights_device);
    role->add_option("--kv-device", worker.kv_device);
  }
  CLI::App* janitor_role = app.add_subcommand("janitor")->group("");
  janitor_role->add_option("directory", janitor_directory)->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    const int code = app.exit(parse_error);
    return code == 0 ? 0 : 2;
  }
  if (janitor_role->parsed()) return RunJanitor(kMessageFd, janitor_directory);
  if (loader_role->parsed()) return RunLoader(worker);
  if (worker_role->parsed()) return RunWorker(worker);

  if (story.driver == "sim") {
    story.sim_library = FindSimLibrary(story.programs);
    if (story.sim_library.empty()) {
      return Usage("the simulated driver is not beside " + story.self + "; build the target gpumem_sim_cuda");
    }
  }
  if (!story.model.empty() && ::access(story.model.c_str(), R_OK) != 0) {
    return Usage("--model " + story.model + " cannot be read");
  }
  if (!story.model.empty()) story.model = std::filesystem::absolute(story.model, error).string();
  return Tell(story);
}

}  // namespace
}  // namespace gpumem::demo

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return gpumem::demo::Main(argc, argv);
}
