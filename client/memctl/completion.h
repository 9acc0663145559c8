// client/memctl/completion.h: client/memctl/memctl.bash, built into the program.
#ifndef GPUMEM_CLIENT_MEMCTL_COMPLETION_H_
#define GPUMEM_CLIENT_MEMCTL_COMPLETION_H_

namespace gpumem::memctl {

extern const char kCompletionBash[];

}  // namespace gpumem::memctl

#endif  // GPUMEM_CLIENT_MEMCTL_COMPLETION_H_
