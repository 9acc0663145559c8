// cuda/sim/device_memory.cc: see the header.
#include "cuda/sim/device_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace simcuda {
namespace {

constexpr std::uint64_t kPage = 4096;
// How much is done between two looks at the mappings.
constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;
// Below this, looking for holes costs more than the few pages that it saves.
constexpr std::uint64_t kLookForHoles = std::uint64_t{64} << 10;

// Calls `visit(offset, bytes)` for the parts of the piece that are not holes.
template <typename Visit>
void ForEachExtent(const Vmm::Piece& piece, const Visit& visit) {
  const gpumem::UniqueFd file = piece.bytes >= kLookForHoles ? piece.object->OpenFile() : gpumem::UniqueFd();
  if (!file.valid()) {  // small, or no descriptor left: all of it, as if there were no hole
    visit(std::uint64_t{0}, piece.bytes);
    return;
  }
  const auto begin = static_cast<off_t>(piece.offset);
  const auto end = static_cast<off_t>(piece.offset + piece.bytes);
  for (off_t at = begin; at < end;) {
    const off_t data = ::lseek(file.get(), at, SEEK_DATA);
    if (data < 0 || data >= end) return;  // ENXIO: only a hole is left
    off_t hole = ::lseek(file.get(), data, SEEK_HOLE);
    if (hole < 0 || hole > end) hole = end;
    visit(static_cast<std::uint64_t>(data - begin), static_cast<std::uint64_t>(hole - data));
    at = hole;
  }
}

// Zeroes without filling: whole pages become holes.
void Zero(const Vmm::Piece& piece) {
  const std::uint64_t first = (piece.offset + kPage - 1) / kPage * kPage;
  const std::uint64_t last = (piece.offset + piece.bytes) / kPage * kPage;
  const gpumem::UniqueFd file = piece.bytes >= kLookForHoles ? piece.object->OpenFile() : gpumem::UniqueFd();
  if (file.valid() && ::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                                  static_cast<off_t>(last - first)) == 0) {
    std::memset(piece.data(), 0, first - piece.offset);
    std::memset(piece.object->data() + last, 0, piece.offset + piece.bytes - last);
    return;
  }
  std::memset(piece.data(), 0, piece.bytes);
}

template <typename Value>
void FillPiece(const Vmm::Piece& piece, Value value) {
  for (std::uint64_t i = 0; i + sizeof value <= piece.bytes; i += sizeof value) {
    std::memcpy(piece.data() + i, &value, sizeof value);
  }
}

}  // namespace

bool DeviceMemory::ForEachPiece(CUdeviceptr address, std::uint64_t bytes, Vmm::Need need,
                                const std::function<void(std::uint64_t offset, const Vmm::Piece& piece)>& visit) const {
  for (std::uint64_t done = 0; done < bytes;) {
    Vmm::Piece piece;
    if (!vmm_.Resolve(address + done, std::min(bytes - done, kPieceBytes), device_, need, &piece)) return false;
    visit(done, piece);
    done += piece.bytes;
  }
  return true;
}

bool DeviceMemory::Read(CUdeviceptr from, void* to, std::uint64_t bytes) const {
  auto* const out = static_cast<unsigned char*>(to);
  return ForEachPiece(from, bytes, Vmm::Need::kRead, [out](std::uint64_t offset, const Vmm::Piece& piece) {
    std::uint64_t filled = 0;
    ForEachExtent(piece, [&](std::uint64_t at, std::uint64_t size) {
      std::memset(out + offset + filled, 0, at - filled);
      std::memcpy(out + offset + at, piece.data() + at, size);
      filled = at + size;
    });
    std::memset(out + offset + filled, 0, piece.bytes - filled);
  });
}

bool DeviceMemory::Write(CUdeviceptr to, const void* from, std::uint64_t bytes) const {
  const auto* const in = static_cast<const unsigned char*>(from);
  return ForEachPiece(to, bytes, Vmm::Need::kWrite, [in](std::uint64_t offset, const Vmm::Piece& piece) {
    std::memcpy(piece.data(), in + offset, piece.bytes);
  });
}

bool DeviceMemory::Copy(CUdeviceptr to, CUdeviceptr from, std::uint64_t bytes) const {
  bool ok = true;
  const bool readable = ForEachPiece(from, bytes, Vmm::Need::kRead, [&](std::uint64_t offset, const Vmm::Piece& piece) {
    std::uint64_t filled = 0;
    ForEachExtent(piece, [&](std::uint64_t at, std::uint64_t size) {
      ok = ok && Fill8(to + offset + filled, 0, at - filled) && Write(to + offset + at, piece.data() + at, size);
      filled = at + size;
    });
    ok = ok && Fill8(to + offset + filled, 0, piece.bytes - filled);
  });
  return readable && ok;
}

bool DeviceMemory::Fill8(CUdeviceptr to, std::uint8_t value, std::uint64_t count) const {
  return ForEachPiece(to, count, Vmm::Need::kWrite, [value](std::uint64_t, const Vmm::Piece& piece) {
    value == 0 ? Zero(piece) : (void)std::memset(piece.data(), value, piece.bytes);
  });
}

template <typename Value>
bool DeviceMemory::FillValues(CUdeviceptr to, Value value, std::uint64_t count) const {
  if (count > UINT64_MAX / sizeof value) return false;
  return ForEachPiece(to, count * sizeof value, Vmm::Need::kWrite, [value](std::uint64_t, const Vmm::Piece& piece) {
    value == 0 ? Zero(piece) : FillPiece(piece, value);
  });
}

bool DeviceMemory::Fill16(CUdeviceptr to, std::uint16_t value, std::uint64_t count) const {
  return FillValues(to, value, count);
}

bool DeviceMemory::Fill32(CUdeviceptr to, std::uint32_t value, std::uint64_t count) const {
  return FillValues(to, value, count);
}

bool DeviceMemory::ForEachData(
    CUdeviceptr from, std::uint64_t bytes,
    const std::function<void(std::uint64_t, const unsigned char*, std::uint64_t)>& visit) const {
  return ForEachPiece(from, bytes, Vmm::Need::kRead, [&visit](std::uint64_t offset, const Vmm::Piece& piece) {
    ForEachExtent(piece, [&](std::uint64_t at, std::uint64_t size) { visit(offset + at, piece.data() + at, size); });
  });
}

}  // namespace simcuda
