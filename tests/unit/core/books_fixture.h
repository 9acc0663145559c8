// tests/unit/core/books_fixture.h: books with two devices, and a picture of everything that they say.
#ifndef GPUMEM_TESTS_UNIT_CORE_BOOKS_FIXTURE_H_
#define GPUMEM_TESTS_UNIT_CORE_BOOKS_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "daemon/core/books.h"
#include "daemon/core/reasons.h"

namespace gpumem::core {

inline DeviceUuid Uuid(std::uint8_t n) { return DeviceUuid(DeviceUuid::Kind::kGpu, {n}); }
inline constexpr std::uint64_t kMiB = 1 << 20;
inline absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

inline std::string Words(EvidenceSet set) {
  std::string words;
  for (const Evidence e : set.ToVector()) words += std::string(words.empty() ? "" : " ") + ToString(e);
  return words;
}

// Every row and every list as text, so that two pictures are equal only when nothing changed.
inline std::string Picture(const Books& books) {
  constexpr std::uint32_t kAll = 1u << 30;
  std::ostringstream out;
  for (const DeviceRow& d : books.Devices()) {
    out << "device " << d.device.ToString() << ' ' << d.name << ' ' << ToString(d.state) << ' ' << d.generation << ' '
        << d.granularity << ' ' << d.capacity << ' ' << d.headroom << ' ' << d.charged << ' ' << d.physical << ' '
        << d.mapped_read_only << ' ' << d.mapped_read_write << ' ' << d.unattributed << ' ' << d.quarantined << ' '
        << d.draining << ' ' << d.available << ' ' << d.detail << " arena:";
    for (const ChunkId id : books.ReferencedByArena(d.device)) out << ' ' << id;
    out << '\n';
  }
  out << "kept:";
  for (const ChunkId id : books.ReferencedByKeeper()) out << ' ' << id;
  for (const TenantRow& t : books.Tenants()) {
    out << "\ntenant " << t.name << ' ' << (t.limit ? t.limit->value() : 0) << (t.limit ? " limited" : " unlimited");
    for (const TenantUse& use : t.uses) out << ' ' << use.charged;
  }
  const Counts c = books.Count();
  out << "\ncounts " << c.sessions_live << ' ' << c.sessions_fenced << ' ' << c.leases << ' ' << c.segments << ' '
      << c.quarantine_records << ' ' << c.quarantined << '\n';
  for (const SessionRow& s : books.Sessions(SessionId(), kAll)) {
    out << "session " << s.session << ' ' << ToString(s.state) << ' ' << s.identity.pid << ' ' << s.identity.uid << ' '
        << s.identity.gid << ' ' << s.identity.comm << ' ' << s.tenant << ' ' << s.holders << ' ' << s.leases << ' '
        << s.attachments << ' ' << s.charged << ' ' << s.mapped_read_only << ' ' << s.mapped_read_write << ' '
        << s.fence_detail << " [" << Words(s.evidence) << "] [" << Words(s.waiting_for) << "]\n";
  }
  for (const HolderRow& h : books.Holders(HolderId(), kAll)) {
    out << "holder " << h.holder << ' ' << h.session << ' ' << h.name << ' ' << ToString(h.role) << ' ' << h.leases
        << ' ' << h.attachments << ' ' << h.charged << ' ' << h.mapped_read_only << ' ' << h.mapped_read_write << ' '
        << h.pid << '\n';
  }
  for (const LeaseRow& l : books.Leases(LeaseId(), kAll)) {
    out << "lease " << l.lease << ' ' << ToString(l.kind) << ' ' << l.session << ' ' << l.holder << ' ' << l.holder_name
        << ' ' << l.segment << ' ' << l.asked << ' ' << l.charged << ' ' << l.since;
    const std::vector<ChunkView> views = books.LeaseChunks(l.lease).value();
    for (const ChunkView& v : views) {
      out << "\n  chunk " << v.chunk << ' ' << v.generation << ' ' << v.index << ' ' << v.device.ToString() << ' '
          << v.bytes << ' ' << ToString(v.state) << ' ' << v.at_arena << v.at_keeper << v.at_worker;
    }
    out << '\n';
  }
  for (const QuarantineRow& q : books.Quarantine(QuarantineId(), kAll)) {
    out << "record " << q.record << ' ' << q.generation << ' ' << ToString(q.reason) << ' ' << q.lease << ' '
        << q.device.ToString() << ' ' << q.bytes << ' ' << q.chunks << ' ' << q.session << ' ' << q.pid << ' '
        << q.holder << ' ' << ToString(q.role) << ' ' << q.segment << ' ' << q.detail << ' ' << q.since << " ["
        << Words(q.evidence) << "] [" << Words(q.waiting_for) << "]\n";
  }
  for (const SegmentRow& s : books.Segments("")) {
    out << "segment " << s.name << ' ' << ToString(s.state) << ' ' << s.lease << ' ' << s.generation << ' ' << s.bytes
        << ' ' << s.chunks << ' ' << s.tensors << ' ' << s.readers << ' ' << s.sealed_at << '\n';
  }
  return out.str();
}

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// What a refused call said.
struct Refusal {
  std::string message;
  ErrorDetails details;
};

class BooksTest : public ::testing::Test {
 protected:
  explicit BooksTest(const Limits& limits = {}, std::uint64_t first_id = 1) : books(limits, first_id) {
    AddDevice(kDevice, 1024 * kMiB, 64 * kMiB);
    AddDevice(kOther, 512 * kMiB, 0);
  }

  void AddDevice(const DeviceUuid& uuid, std::uint64_t capacity, std::uint64_t headroom) {
    ASSERT_TRUE(books.AddAuthority({uuid, "sim", Bytes(capacity), Bytes(headroom), Bytes(2 * kMiB)}).ok());
    ASSERT_TRUE(books.SetDeviceState(uuid, DeviceState::kHealthy, "").ok());
  }

  SessionId Open(std::int64_t pid = 100) {
    const SessionId session = books.OpenSession({pid, 1000, 1000, "worker"}, At(1)).value();
    holder = books.RegisterHolder(session, "engine", Role::kKvCache).value();
    holders[session.value()] = holder;
    return session;
  }

  static std::vector<ChunkSpec> Specs(std::uint32_t count = 1, std::uint64_t bytes = 2 * kMiB,
                                      DeviceUuid device = Uuid(1)) {
    return {{device, Bytes(bytes), count}};
  }

  Reservation Reserve(SessionId session, const std::vector<ChunkSpec>& specs, std::string_view segment = "") {
    const LeaseKind kind = segment.empty() ? LeaseKind::kPrivate : LeaseKind::kSegment;
    auto reserved = books.Reserve(session, holders.at(session.value()), kind, segment, specs, At(2), &moves);
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    return *reserved;
  }

  // Everything up to the worker's acknowledgement; the arena still has its fd.
  Reservation Grant(SessionId session, const std::vector<ChunkSpec>& specs, std::string_view segment = "") {
    Reservation lease = Reserve(session, specs, segment);
    for (const PlannedChunk& chunk : lease.chunks) {
      Ok(books.Created(chunk.chunk, &moves));
      if (!segment.empty()) Ok(books.Kept(chunk.chunk));
      Ok(books.Sent(chunk.chunk));
      Ok(books.Acknowledge(session, chunk.chunk, Access::kReadWrite, &moves));
    }
    return lease;
  }
  // A private lease as it is for most of its life: only the worker references it.
  Reservation GrantAndClose(SessionId session, const std::vector<ChunkSpec>& specs = Specs()) {
    Reservation lease = Grant(session, specs);
    for (const PlannedChunk& chunk : lease.chunks) {
      Ok(books.DropArenaReference(chunk.chunk, Evidence::kArenaClosed, At(3), &moves));
    }
    return lease;
  }
  // A sealed segment that only the keeper references.
  Reservation Publish(SessionId session, std::string_view name, const std::vector<ChunkSpec>& specs = Specs()) {
    Reservation lease = Grant(session, specs, name);
    auto sealed = books.Seal(session, lease.lease, {Outcome::kUnmapped}, {}, At(4), &moves);
    EXPECT_TRUE(sealed.ok()) << sealed.status();
    for (const ChunkId chunk : sealed->work.close_at_arena) {
      Ok(books.DropArenaReference(chunk, Evidence::kArenaClosed, At(4), &moves));
    }
    return lease;
  }
  Attached Attach(SessionId session, std::string_view name) {
    auto attached = books.Attach(session, holders.at(session.value()), name);
    EXPECT_TRUE(attached.ok()) << attached.status();
    return *attached;
  }
  // Both proofs of a process's end.
  Books::EndResult End(SessionId session) {
    auto first = books.Observe(session, Evidence::kPidfdReadable, At(9), &moves);
    EXPECT_TRUE(first.ok()) << first.status();
    EXPECT_FALSE(first->ended);
    auto second = books.Observe(session, Evidence::kWitnessClosed, At(9), &moves);
    EXPECT_TRUE(second.ok()) << second.status();
    EXPECT_TRUE(second->ended);
    return *second;
  }

  static void Ok(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

  // The call fails for that reason and no row of the books changes.
  template <typename Call>
  Refusal Refused(Reason reason, Call call) {
    const std::string before = Picture(books);
    Transitions none;
    const absl::Status status = StatusOf(call(&none));
    EXPECT_FALSE(status.ok());
    EXPECT_STREQ(ToString(ReasonOf(status)), ToString(reason)) << status;
    EXPECT_TRUE(none.empty());
    EXPECT_EQ(Picture(books), before);
    Ok(books.Verify());
    return {std::string(status.message()), DetailsOf(status)};
  }
  Refusal RefusedReserve(Reason reason, SessionId session, const std::vector<ChunkSpec>& specs,
                         std::string_view segment = "") {
    return Refused(reason, [&](Transitions* none) {
      return books.Reserve(session, holders.at(session.value()),
                           segment.empty() ? LeaseKind::kPrivate : LeaseKind::kSegment, segment, specs, At(2), none);
    });
  }

  ChunkState StateOf(ChunkId chunk) {
    const auto view = books.Chunk(chunk);
    return view.ok() ? view->state : ChunkState::kReleased;
  }
  DeviceRow Row(const DeviceUuid& device = Uuid(1)) { return *books.Device(device); }
  std::vector<QuarantineRow> Records() { return books.Quarantine(QuarantineId(), 1000); }
  SessionRow SessionOf(SessionId id) { return books.Sessions(SessionId(id.value() - 1), 1).at(0); }
  // The moves of one chunk so far, e.g. "released>reserved reserved>undelivered:driver-created".
  std::string Story(ChunkId chunk) {
    std::string story;
    for (const Transition& move : moves) {
      if (move.chunk != chunk) continue;
      if (!story.empty()) story += ' ';
      story += std::string(ToString(move.from)) + '>' + ToString(move.to);
      if (move.evidence != Evidence{}) story += std::string(":") + ToString(move.evidence);
    }
    return story;
  }
  void TearDown() override { Ok(books.Verify()); }

  const DeviceUuid kDevice = Uuid(1);
  const DeviceUuid kOther = Uuid(2);
  Books books;
  HolderId holder;
  std::map<std::uint64_t, HolderId> holders;  // by session
  Transitions moves;
};

}  // namespace gpumem::core

#endif  // GPUMEM_TESTS_UNIT_CORE_BOOKS_FIXTURE_H_
