// The books' rows as messages. That enum numbers are equal is asserted at compile time in convert.cc; here: the words.
#include "daemon/service/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace gpumem::service {
namespace {

// "kv-cache" for ROLE_KV_CACHE: the words that people see are the wire's names.
template <typename CoreEnum>
void ExpectSameWords(const google::protobuf::EnumDescriptor* wire, const std::string& prefix) {
  ASSERT_GT(wire->value_count(), 1);
  for (int i = 0; i < wire->value_count(); ++i) {
    const auto* value = wire->value(i);
    if (value->number() == 0) continue;
    std::string word = value->name().substr(prefix.size());
    std::transform(word.begin(), word.end(), word.begin(),
                   [](char c) { return c == '_' ? '-' : static_cast<char>(std::tolower(c)); });
    EXPECT_EQ(core::ToString(static_cast<CoreEnum>(value->number())), word) << value->name();
  }
}

TEST(Convert, TheWordsOfTheCoreAreTheNamesOnTheWire) {
  ExpectSameWords<core::Role>(v1::Role_descriptor(), "ROLE_");
  ExpectSameWords<core::DeviceState>(v1::DeviceState_descriptor(), "DEVICE_STATE_");
  ExpectSameWords<core::SessionState>(v1::SessionState_descriptor(), "SESSION_STATE_");
  ExpectSameWords<core::LeaseKind>(v1::LeaseKind_descriptor(), "LEASE_KIND_");
  ExpectSameWords<core::ChunkState>(v1::ChunkState_descriptor(), "CHUNK_STATE_");
  ExpectSameWords<core::Outcome>(v1::Outcome_descriptor(), "OUTCOME_");
  ExpectSameWords<core::SegmentState>(v1::SegmentState_descriptor(), "SEGMENT_STATE_");
  ExpectSameWords<core::QuarantineReason>(v1::QuarantineReason_descriptor(), "QUARANTINE_REASON_");
  ExpectSameWords<core::Evidence>(v1::Evidence_descriptor(), "EVIDENCE_");
}

TEST(Convert, ADeviceKeepsItsByteCountsApart) {
  core::DeviceRow row;
  row.device = *DeviceUuid::Parse("GPU-00112233-4455-6677-8899-aabbccddeeff");
  row.state = core::DeviceState::kHealthy;
  row.generation = core::Generation(3);
  row.granularity = core::Bytes(1);
  row.capacity = core::Bytes(2);
  row.headroom = core::Bytes(4);
  row.charged = core::Bytes(5);
  row.physical = core::Bytes(6);
  row.mapped_read_only = core::Bytes(7);
  row.mapped_read_write = core::Bytes(8);
  row.unattributed = core::Bytes(9);
  row.quarantined = core::Bytes(10);
  row.draining = core::Bytes(11);
  row.available = core::Bytes(12);
  v1::Device out;
  ToProto(row, &out);
  EXPECT_EQ(out.uuid(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
  EXPECT_EQ(out.state(), v1::DEVICE_STATE_HEALTHY);
  EXPECT_EQ(out.generation(), 3u);
  EXPECT_EQ(out.granularity_bytes(), 1u);
  EXPECT_EQ(out.capacity_bytes(), 2u);
  EXPECT_EQ(out.headroom_bytes(), 4u);
  EXPECT_EQ(out.charged_bytes(), 5u);
  EXPECT_EQ(out.physical_bytes(), 6u);
  EXPECT_EQ(out.mapped_read_only_bytes(), 7u);
  EXPECT_EQ(out.mapped_read_write_bytes(), 8u);
  EXPECT_EQ(out.unattributed_bytes(), 9u);
  EXPECT_EQ(out.quarantined_bytes(), 10u);
  EXPECT_EQ(out.draining_bytes(), 11u);
  EXPECT_EQ(out.available_bytes(), 12u);
}

TEST(Convert, AProcessNameThatIsNoUtf8StillMakesAValidMessage) {
  core::SessionRow row;
  row.identity.comm = "wor\xffker";
  v1::Session out;
  ToProto(row, &out);
  EXPECT_EQ(out.comm(), "wor?ker");
  v1::Session again;
  EXPECT_TRUE(again.ParseFromString(out.SerializeAsString()));
}

TEST(Convert, EvidenceAndTimesOfAQuarantineRecord) {
  core::QuarantineRow row;
  row.since = absl::FromUnixMillis(1500);
  row.evidence.Add(core::Evidence::kSocketClosed);
  row.waiting_for = {core::Evidence::kPidfdReadable, core::Evidence::kWitnessClosed};
  v1::QuarantineRecord out;
  ToProto(row, &out);
  EXPECT_EQ(out.since().seconds(), 1);
  EXPECT_EQ(out.since().nanos(), 500'000'000);
  ASSERT_EQ(out.evidence_size(), 1);
  EXPECT_EQ(out.evidence(0), v1::EVIDENCE_SOCKET_CLOSED);
  ASSERT_EQ(out.waiting_for_size(), 2);
  EXPECT_EQ(out.waiting_for(0), v1::EVIDENCE_PIDFD_READABLE);
  EXPECT_EQ(out.waiting_for(1), v1::EVIDENCE_WITNESS_CLOSED);
}

TEST(Convert, ASegmentThatIsNotSealedHasNoSealingTime) {
  v1::Segment building;
  ToProto(core::SegmentRow{}, &building);
  EXPECT_FALSE(building.has_sealed_at());
  core::SegmentRow row;
  row.state = core::SegmentState::kSealed;
  row.sealed_at = absl::FromUnixSeconds(7);
  v1::Segment sealed;
  ToProto(row, &sealed);
  EXPECT_EQ(sealed.sealed_at().seconds(), 7);
}

TEST(Convert, ATenantWithoutALimitHasNone) {
  v1::Tenant out;
  ToProto(core::TenantRow{}, &out);
  EXPECT_FALSE(out.has_limit_bytes());
}

TEST(Convert, EachKindOfEvent) {
  const auto wire = [](auto kind) {
    v1::Event out;
    ToProto(manager::Event{5, absl::FromUnixSeconds(1), kind}, &out);
    EXPECT_EQ(out.sequence(), 5u);
    return out;
  };
  EXPECT_EQ(
      wire(manager::SessionFencedEvent{core::SessionId(1), core::QuarantineReason::kWriterDied, core::Bytes(2), "d"})
          .session_fenced()
          .reason(),
      v1::QUARANTINE_REASON_WRITER_DIED);
  EXPECT_EQ(wire(manager::SessionEndedEvent{core::SessionId(1), core::Bytes(9)}).session_ended().settled_bytes(), 9u);
  EXPECT_EQ(wire(manager::DeviceChangedEvent{{}, core::DeviceState::kLost, {}, ""}).device_changed().state(),
            v1::DEVICE_STATE_LOST);
  EXPECT_TRUE(wire(manager::SegmentChangedEvent{"a@1", core::SegmentState::kSealed, true}).segment_changed().removed());
  EXPECT_EQ(wire(manager::DaemonStoppingEvent{absl::Milliseconds(2500)}).daemon_stopping().grace().nanos(),
            500'000'000);
}

TEST(Convert, TheInstanceIsItsHexForm) {
  std::array<std::uint8_t, 16> instance{};
  instance[0] = 0x0a;
  instance[15] = 0xff;
  EXPECT_EQ(InstanceText(instance), "0a0000000000000000000000000000ff");
}

}  // namespace
}  // namespace gpumem::service
