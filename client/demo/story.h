// client/demo/story.h: the main job, told and checked: a worker faults, is killed and replaced, and nothing is lost.
#ifndef GPUMEM_CLIENT_DEMO_STORY_H_
#define GPUMEM_CLIENT_DEMO_STORY_H_

#include <string>

namespace gpumem::demo {

struct StoryOptions {
  std::string driver = "sim";  // or "cuda"
  std::string model;           // empty: the demo writes one
  std::string report;          // where the JSON goes; empty: nowhere
  std::string directory;       // where the private directory is made; empty: a place with enough room
  std::string self;            // this program
  std::string programs;        // directory of gpumemd, memctl and simgpu
  std::string sim_library;     // the simulated libcuda.so.1
};

// Exit code: 0 when every check held, 1 when not, 130 after an interrupt.
int Tell(const StoryOptions& options);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_STORY_H_
