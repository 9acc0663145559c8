// daemon/keeper/keeper_wire.h: the frames of keeper.sock, byte by byte. Std only.
//
// keeper.sock is SOCK_SEQPACKET. Frames are those of base/fixed_frame.h: a 24-byte header, then the fixed body of the
// type. `request` is chosen by the front; an answer repeats it. Answers may come out of order: a Del is answered when
// its close(2) has returned, which can take long.
//
//   front                                    keeper
//   Hello (versions, instance)           ──►
//                                        ◄── HelloIs (the version spoken from now on, how much is held)
//   Put (name, device, bytes) + 1 fd     ──►
//                                        ◄── Done (the fd is kept)
//   Get (name)                           ──►
//                                        ◄── Got + 1 fd, or why not
//   Del (name)                           ──►
//                                        ◄── Done (the keeper's fd is closed: close(2) has returned)
//   List (after a name)                  ──►
//                                        ◄── Listed (a page of entries, in the order of names)
//
// One front at a time: the Hello of a new connection ends the one before. An fd that is being closed is still listed
// and cannot be got; a second Del of it is answered with the first. Results are numbers of proto/gpumem/v1/reasons.def,
// 0 for OK; HANDLE_LOST: nothing is held under that name; DESCRIPTORS: the keeper is full, the fd was not kept.
//
// The keeper outlives fronts of other versions, so Hello and HelloIs keep header version 1 and their size for ever; the
// other frames are those of the version agreed on. Growing: a new version, a new type, or a new EntryKind (what else
// may be kept: the keeper gives every kind back as it got it and treats none specially). A keeper refuses a kind that
// it does not know.
#ifndef GPUMEM_DAEMON_KEEPER_KEEPER_WIRE_H_
#define GPUMEM_DAEMON_KEEPER_KEEPER_WIRE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/fixed_frame.h"

namespace gpumem::keeper {

inline constexpr std::uint32_t kKeeperMagic = 0x4b4d5047;  // "GPMK" in memory on little-endian machines
inline constexpr std::uint16_t kKeeperVersion = 1;
inline constexpr std::uint32_t kEntriesPerPage = 64;

enum class KeeperFrame : std::uint16_t {
  kHello = 1,
  kHelloIs = 2,
  kPut = 3,
  kGet = 4,
  kDel = 5,
  kList = 6,
  kDone = 7,
  kGot = 8,
  kListed = 9,
};

enum class EntryKind : std::uint32_t { kChunk = 1 };  // the fd of an exported chunk

struct KeeperHelloBody {
  std::uint32_t min_version = kKeeperVersion;  // byte 0
  std::uint32_t max_version = kKeeperVersion;  // byte 4
  std::uint8_t instance[16] = {};              // byte 8: the front's daemon instance, for the keeper's log
};
static_assert(sizeof(KeeperHelloBody) == 24);

struct HelloIsBody {
  std::uint32_t reason = 0;    // byte 0: 0, or VERSION_MISMATCH, after which the keeper closes
  std::uint32_t version = 0;   // byte 4: the version spoken from now on; with a reason: the one it speaks
  std::uint64_t held = 0;      // byte 8: entries held
  std::uint64_t most = 0;      // byte 16: entries it can hold
  std::uint32_t pid = 0;       // byte 24: for displays
  std::uint32_t reserved = 0;  // byte 28
};
static_assert(sizeof(HelloIsBody) == 32);

struct WireName {
  std::uint8_t ledger[16] = {};  // byte 0: the nonce of the ledger that gave the id
  std::uint64_t id = 0;          // byte 16: never reused in that ledger
};
static_assert(sizeof(WireName) == 24);

struct WireEntry {
  WireName name;                       // byte 0
  std::uint8_t device_raw[16] = {};    // byte 24: the UUID's bytes
  std::uint32_t device_kind = 0;       // byte 40: DeviceUuid::Kind
  EntryKind kind = EntryKind::kChunk;  // byte 44
  std::uint64_t bytes = 0;             // byte 48: of the memory behind the fd, as the front said
  std::uint64_t reserved = 0;          // byte 56
};
static_assert(sizeof(WireEntry) == 64);

struct PutBody {
  WireEntry entry;
};
struct NameBody {  // Get, Del
  WireName name;
};
struct ListBody {
  WireName after;                // byte 0: entries behind this name, itself excluded
  std::uint32_t from_start = 0;  // byte 24: 1: from the first entry on; `after` is not looked at
  std::uint32_t reserved = 0;    // byte 28
};
static_assert(sizeof(ListBody) == 32);

struct ResultBody {            // Done, Got
  std::uint32_t reason = 0;    // byte 0
  std::uint32_t reserved = 0;  // byte 4
  char message[504] = {};      // byte 8: NUL-terminated
};
static_assert(sizeof(ResultBody) == 512);

struct ListedBody {
  std::uint32_t count = 0;             // byte 0: entries used
  std::uint32_t more = 0;              // byte 4: 1 when entries follow behind the last one
  WireEntry entries[kEntriesPerPage];  // byte 8
};
static_assert(sizeof(ListedBody) == 8 + 64 * kEntriesPerPage);

constexpr std::size_t KeeperBodyBytes(std::uint16_t type) {
  switch (static_cast<KeeperFrame>(type)) {
    case KeeperFrame::kHello:
      return sizeof(KeeperHelloBody);
    case KeeperFrame::kHelloIs:
      return sizeof(HelloIsBody);
    case KeeperFrame::kPut:
      return sizeof(PutBody);
    case KeeperFrame::kGet:
    case KeeperFrame::kDel:
      return sizeof(NameBody);
    case KeeperFrame::kList:
      return sizeof(ListBody);
    case KeeperFrame::kDone:
    case KeeperFrame::kGot:
      return sizeof(ResultBody);
    case KeeperFrame::kListed:
      return sizeof(ListedBody);
  }
  return 0;
}

inline constexpr FrameFormat kKeeperFormat{kKeeperMagic, kKeeperVersion, &KeeperBodyBytes};
inline constexpr std::size_t kMaxKeeperFrameBytes = sizeof(FixedHeader) + sizeof(ListedBody);

template <typename Body>
std::vector<std::byte> Encode(KeeperFrame type, std::uint64_t request, std::uint32_t fd_count, const Body& body) {
  return EncodeFrame(kKeeperFormat, static_cast<std::uint16_t>(type), request, fd_count, body);
}

// What the sizes cannot show: counts that lie, and numbers that name nothing.
inline bool Plausible(const WireEntry& entry) { return entry.name.id != 0 && entry.device_kind <= 1; }
inline bool Plausible(const ListedBody& body) {
  return body.count <= kEntriesPerPage && (body.count > 0 || body.more == 0) &&
         std::all_of(body.entries, body.entries + body.count, [](const WireEntry& entry) { return Plausible(entry); });
}

}  // namespace gpumem::keeper

#endif  // GPUMEM_DAEMON_KEEPER_KEEPER_WIRE_H_
