#include "base/reap_later.h"

#include <memory>
#include <string>
#include <utility>

#include "base/process.h"

namespace gpumem {

std::string Reap(EventLoop* loop, UniqueFd pidfd) {
  std::string how;
  if (TryReap(pidfd.get(), &how)) return how;
  ReapLater(loop, std::move(pidfd));
  return "ended";
}

void ReapLater(EventLoop* loop, UniqueFd pidfd, std::chrono::milliseconds interval) {
  if (!pidfd.valid()) return;
  auto shared = std::make_shared<UniqueFd>(std::move(pidfd));
  loop->After(interval, [loop, shared, interval] {
    std::string how;
    if (!TryReap(shared->get(), &how)) ReapLater(loop, std::move(*shared), interval);
  });
}

}  // namespace gpumem
