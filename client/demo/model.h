// client/demo/model.h: the model that the demo writes when it is given none: a small transformer, 256 MiB in 75 tensors
// whose bytes are a function of their position, so that every run writes the same file. Calls client/loader.
#ifndef GPUMEM_CLIENT_DEMO_MODEL_H_
#define GPUMEM_CLIENT_DEMO_MODEL_H_

#include <string>

namespace gpumem::demo {

// "" or why it could not be written.
std::string WriteDefaultModel(const std::string& path);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_MODEL_H_
