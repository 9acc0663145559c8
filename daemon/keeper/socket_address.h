// daemon/keeper/socket_address.h: a Unix socket path as an address. Libc only.
#ifndef GPUMEM_DAEMON_KEEPER_SOCKET_ADDRESS_H_
#define GPUMEM_DAEMON_KEEPER_SOCKET_ADDRESS_H_

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>
#include <string>

namespace gpumem::keeper {

inline constexpr std::size_t kMaxSocketPathBytes = sizeof(sockaddr_un::sun_path) - 1;

// False when the path is empty or too long for the kernel (unix(7)).
inline bool SocketAddress(const std::string& path, sockaddr_un* address) {
  if (path.empty() || path.size() > kMaxSocketPathBytes) return false;
  std::memset(address, 0, sizeof(*address));
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, path.data(), path.size());
  return true;
}

}  // namespace gpumem::keeper

#endif  // GPUMEM_DAEMON_KEEPER_SOCKET_ADDRESS_H_
