// cuda/sim/api_truth.cc: the hardware truth in C (cuda/sim/simcuda.h).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/sim/simcuda.h"
#include "cuda/sim/store.h"

namespace {

void CopyText(const std::string& from, char* to, size_t size) { std::snprintf(to, size, "%s", from.c_str()); }

void FillDevice(const simcuda::DeviceTruth& from, simcuda_device* to) {
  CopyText(from.config.uuid.ToString(), to->uuid, sizeof to->uuid);
  CopyText(from.config.name, to->name, sizeof to->name);
  to->capacity_bytes = from.config.capacity_bytes;
  to->physical_bytes = from.physical_bytes;
  to->object_count = from.objects.size();
  to->objects = new simcuda_object[from.objects.size()]();
  for (size_t i = 0; i < from.objects.size(); ++i) {
    const simcuda::ObjectTruth& object = from.objects[i];
    to->objects[i] = simcuda_object{object.id, object.bytes, object.handle_held ? 1u : 0u, object.exported_fds};
  }
}

}  // namespace

extern "C" {

int simcuda_api_version(void) { return SIMCUDA_API_VERSION; }

int simcuda_hardware_truth(const char* dir, simcuda_truth** out, char* error, size_t error_size) {
  if (dir == nullptr) dir = std::getenv(simcuda::kDirVariable);
  std::string why;
  std::vector<simcuda::DeviceTruth> devices;
  if (dir == nullptr) why = std::string("no state directory is given, and ") + simcuda::kDirVariable + " is not set";
  if (dir == nullptr || out == nullptr || !simcuda::ReadTruth(dir, &devices, &why)) {
    if (error != nullptr && error_size > 0) CopyText(why, error, error_size);
    return 1;
  }
  auto* const truth = new simcuda_truth{};
  truth->device_count = devices.size();
  truth->devices = new simcuda_device[devices.size()]();
  for (size_t i = 0; i < devices.size(); ++i) FillDevice(devices[i], &truth->devices[i]);
  *out = truth;
  return 0;
}

void simcuda_truth_free(simcuda_truth* truth) {
  if (truth == nullptr) return;
  for (size_t i = 0; i < truth->device_count; ++i) delete[] truth->devices[i].objects;
  delete[] truth->devices;
  delete truth;
}

}  // extern "C"
