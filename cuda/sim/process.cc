// cuda/sim/process.cc: see the header.
#include "cuda/sim/process.h"

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cuda/sim/breaks.h"
#include "cuda/sim/control.h"
#include "cuda/sim/faults.h"

namespace simcuda {
namespace {

std::atomic<Process*> g_process{nullptr};
std::atomic<bool> g_forked{false};  // this process is a child of one that had called cuInit

void MarkForked() {
  if (SIMCUDA_BREAK("fork-goes-on")) return;
  if (g_process.load(std::memory_order_relaxed) != nullptr) g_forked.store(true, std::memory_order_relaxed);
}

}  // namespace

CUresult Process::Make(Process** out) {
  const char* const dir = std::getenv(kDirVariable);
  if (dir == nullptr || dir[0] == 0) {
    std::fprintf(stderr,
                 "simcuda: %s is not set, so this simulated CUDA driver has no device; make a machine with "
                 "'simgpu init --dir DIR' and set %s=DIR\n",
                 kDirVariable, kDirVariable);
    return CUDA_ERROR_NO_DEVICE;
  }
  Config config;
  std::string error;
  if (!ReadConfig(dir, &config, &error)) {
    std::fprintf(stderr, "simcuda: %s\n", error.c_str());
    return CUDA_ERROR_NO_DEVICE;
  }
  if (Control::OfProcess() == nullptr) {
    Control::Open(dir, &error);
    std::fprintf(stderr, "simcuda: %s; a process that takes part must be able to write there\n", error.c_str());
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const std::vector<int> visible = SelectVisible(config, std::getenv("CUDA_VISIBLE_DEVICES"));
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  std::unique_ptr<Process> process(new Process);
  for (const DeviceConfig& device : config.devices) {
    process->stores_.push_back(DeviceStore::Open(dir, device, &error));
    if (process->stores_.back() == nullptr) {
      std::fprintf(stderr, "simcuda: %s\n", error.c_str());
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
  }
  std::vector<DeviceStore*> shown;
  std::vector<DeviceStore*> hidden;
  for (const int index : visible) {
    DeviceStore* const store = process->stores_[static_cast<std::size_t>(index)].get();
    const DeviceSettings settings = CurrentSettings()->DeviceOf(store->config().uuid);
    gpumem::UniqueFd node;
    if (store->OpenNode(settings.persistence, &node) != DeviceStore::Outcome::kOk) return CUDA_ERROR_OPERATING_SYSTEM;
    process->nodes_.push_back(std::move(node));
    process->devices_.push_back(VisibleDevice{store, index, settings.life});
    shown.push_back(store);
  }
  for (const auto& store : process->stores_) {
    if (std::find(shown.begin(), shown.end(), store.get()) == shown.end()) hidden.push_back(store.get());
  }
  process->vmm_ = std::make_unique<Vmm>(std::move(shown), std::move(hidden));
  *out = process.release();  // lives as long as the operating system process
  return CUDA_SUCCESS;
}

CUresult Process::Init() {
  static gpumem::Mutex* const mutex = new gpumem::Mutex;
  if (g_forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  const gpumem::MutexLock lock(mutex);
  if (g_process.load(std::memory_order_acquire) != nullptr) return CUDA_SUCCESS;
  static const int once = pthread_atfork(nullptr, nullptr, MarkForked);
  (void)once;
  Process* made = nullptr;
  const CUresult result = Make(&made);
  if (result == CUDA_SUCCESS) g_process.store(made, std::memory_order_release);
  return result;
}

Process* Process::IfInitialised() { return g_process.load(std::memory_order_acquire); }
bool Process::IsForkedChild() { return g_forked.load(std::memory_order_relaxed); }

bool Process::IsOfEarlierLife(const VisibleDevice& device) const {
  if (SIMCUDA_BREAK("recovered-for-all")) return false;
  return CurrentSettings()->DeviceOf(device.store->config().uuid).life != device.life;
}

Process* Process::EnterForQuery(CUresult* result) {
  if (g_process.load(std::memory_order_acquire) == nullptr && SIMCUDA_BREAK("init-not-needed")) Init();
  Process* const process = g_process.load(std::memory_order_acquire);
  if (process == nullptr || g_forked.load(std::memory_order_relaxed)) {
    *result = CUDA_ERROR_NOT_INITIALIZED;
    return nullptr;
  }
  return process;
}

Process* Process::Enter(CUresult* result) {
  Process* const process = EnterForQuery(result);
  if (process == nullptr) return nullptr;
  const CUresult sticky = process->sticky();
  if (sticky == CUDA_SUCCESS) return process;
  if (SIMCUDA_BREAK("error-told-once")) process->sticky_ = CUDA_SUCCESS;
  *result = sticky;
  return nullptr;
}

Process* Process::EnterForVmm(CUresult* result) {
  Process* const process = EnterForQuery(result);
  if (process == nullptr || process->sticky() == CUDA_SUCCESS) return process;
  const int answer = AnswerTo(Question::kStickyVmm);
  if (answer == 0) return process;
  *result = answer < 0 ? process->sticky() : static_cast<CUresult>(answer);
  return nullptr;
}

void Process::ReportXid(int ordinal, std::uint32_t code) {
  Control* const control = Control::OfProcess();
  if (control != nullptr && !SIMCUDA_BREAK("fault-without-xid"))
    control->PostXid(devices_[static_cast<std::size_t>(ordinal)].store->config().uuid, code);
}

void Process::Poison(CUresult error) {
  if (SIMCUDA_BREAK("fault-ignored")) return;
  CUresult none = CUDA_SUCCESS;
  sticky_.compare_exchange_strong(none, error, std::memory_order_acq_rel);
}

}  // namespace simcuda
