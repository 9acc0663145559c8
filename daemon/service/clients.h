// daemon/service/clients.h: what live sessions' workers said of themselves in Hello, for displays. On the strand only.
#ifndef GPUMEM_DAEMON_SERVICE_CLIENTS_H_
#define GPUMEM_DAEMON_SERVICE_CLIENTS_H_

#include <string>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "daemon/core/books.h"

namespace gpumem::service {

class ClientVersions {
 public:
  // Forgets the sessions that the books forgot whenever it holds twice as many as may live, so it is bounded.
  void Set(core::SessionId session, std::string version, const core::Books& books, std::uint32_t most_sessions) {
    if (versions_.size() >= 2 * static_cast<std::size_t>(most_sessions)) {
      for (auto it = versions_.begin(); it != versions_.end();) {
        it = books.Exists(it->first) ? std::next(it) : versions_.erase(it);
      }
    }
    versions_[session] = std::move(version);
  }
  // Empty when that session never said Hello.
  std::string Get(core::SessionId session) const {
    const auto it = versions_.find(session);
    return it == versions_.end() ? std::string() : it->second;
  }

 private:
  std::unordered_map<core::SessionId, std::string, absl::Hash<core::SessionId>> versions_;
};

}  // namespace gpumem::service

#endif  // GPUMEM_DAEMON_SERVICE_CLIENTS_H_
