// cuda/sim/breaks.h: deliberate breaks of the driver's rules, for the tests of the conformance suite.
//
// Where the simulation keeps a rule it asks SIMCUDA_BREAK("name"), which is the constant false in the library that is
// installed. In a second build of the same sources (gpumem_sim_cuda_broken) it is true for the one name that the
// environment variable SIMCUDA_BREAK gives; a check that still passes then sees nothing. Which check must fail for
// which break: tests/conformance/breaks.txt.
#ifndef GPUMEM_CUDA_SIM_BREAKS_H_
#define GPUMEM_CUDA_SIM_BREAKS_H_

#ifdef SIMCUDA_BREAKS

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace simcuda {

// Whether the rule `name` is to be broken. Leaves a file at SIMCUDA_BREAK_REACHED as the sign that it was asked.
inline bool BreakIs(const char* name) {
  const char* const chosen = std::getenv("SIMCUDA_BREAK");
  if (chosen == nullptr || std::strcmp(chosen, name) != 0) return false;
  if (const char* const sign = std::getenv("SIMCUDA_BREAK_REACHED")) {
    const int fd = ::open(sign, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd >= 0) ::close(fd);
  }
  return true;
}

}  // namespace simcuda

#define SIMCUDA_BREAK(name) (::simcuda::BreakIs(name))
#else
#define SIMCUDA_BREAK(name) false
#endif

#endif  // GPUMEM_CUDA_SIM_BREAKS_H_
