// Each message of the client's own coding, held against the code that protoc generates.
#include "client/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "gpumem/v1/memory.pb.h"

namespace gpumem::client {
namespace {

namespace pb = gpumem::v1;
using testing::ElementsAre;

constexpr std::uint64_t kBig = 0xfedcba9876543210;

template <typename Generated, typename Own>
Generated Parsed(const Own& own) {
  Generated generated;
  EXPECT_TRUE(generated.ParseFromString(Encode(own)));
  return generated;
}

template <typename Own, typename Generated>
Own Decoded(const Generated& generated) {
  Own own;
  EXPECT_TRUE(Decode(generated.SerializeAsString(), &own));
  return own;
}

TEST(EncodeTest, Hello) {
  const auto parsed = Parsed<pb::HelloRequest>(HelloRequest{kBig, DriverKind::kSim, "12.4"});
  EXPECT_EQ(parsed.session_id(), kBig);
  EXPECT_EQ(parsed.driver(), pb::DRIVER_KIND_SIM);
  EXPECT_EQ(parsed.client_version(), kVersion);
  EXPECT_EQ(parsed.protocol_major(), kProtocolMajor);
  EXPECT_EQ(parsed.driver_version(), "12.4");
}

TEST(EncodeTest, RegisterHolder) {
  const auto parsed = Parsed<pb::RegisterHolderRequest>(RegisterHolderRequest{1, kBig, "kv", 2});
  EXPECT_EQ(parsed.session_id(), 1u);
  EXPECT_EQ(parsed.request_id(), kBig);
  EXPECT_EQ(parsed.name(), "kv");
  EXPECT_EQ(parsed.role(), pb::ROLE_KV_CACHE);
}

TEST(EncodeTest, RoleThatNobodyKnowsStaysANumber) {
  EXPECT_EQ(Parsed<pb::RegisterHolderRequest>(RegisterHolderRequest{1, 2, "kv", -7}).role(), -7);
}

TEST(EncodeTest, Allocate) {
  const auto parsed = Parsed<pb::AllocateRequest>(AllocateRequest{1, 2, 3, {{"GPU-a", kBig, 4}, {"", 0, 0}}});
  EXPECT_EQ(parsed.session_id(), 1u);
  EXPECT_EQ(parsed.request_id(), 2u);
  EXPECT_EQ(parsed.holder_id(), 3u);
  ASSERT_EQ(parsed.specs_size(), 2);
  EXPECT_EQ(parsed.specs(0).device_uuid(), "GPU-a");
  EXPECT_EQ(parsed.specs(0).chunk_bytes(), kBig);
  EXPECT_EQ(parsed.specs(0).count(), 4u);
  EXPECT_EQ(parsed.specs(1).count(), 0u);
}

TEST(EncodeTest, ReleaseAndDetach) {
  const auto release = Parsed<pb::ReleaseRequest>(ReleaseRequest{1, 2, 3, {Outcome::kUnmapped, Outcome::kUnknown}});
  EXPECT_EQ(release.lease_id(), 3u);
  EXPECT_THAT(release.outcomes(), ElementsAre(pb::OUTCOME_UNMAPPED, pb::OUTCOME_UNKNOWN));
  const auto detach = Parsed<pb::DetachSegmentRequest>(DetachSegmentRequest{1, 2, 9, {Outcome::kUnmapped}});
  EXPECT_EQ(detach.attachment_id(), 9u);
  EXPECT_THAT(detach.outcomes(), ElementsAre(pb::OUTCOME_UNMAPPED));
}

TEST(EncodeTest, BuildAndSeal) {
  const auto build = Parsed<pb::BuildSegmentRequest>(BuildSegmentRequest{1, 2, 3, "a/b", {{"GPU-a", 5, 6}}});
  EXPECT_EQ(build.holder_id(), 3u);
  EXPECT_EQ(build.name(), "a/b");
  EXPECT_EQ(build.specs(0).count(), 6u);
  SealSegmentRequest request{1, 2, 3, {Outcome::kUnmapped}, {}};
  request.tensors.push_back({"w", "BF16", {4, kBig}, 8, 16});
  request.tensors.push_back({"scalar", "F32", {}, 0, 4});
  const auto seal = Parsed<pb::SealSegmentRequest>(request);
  EXPECT_EQ(seal.lease_id(), 3u);
  EXPECT_THAT(seal.outcomes(), ElementsAre(pb::OUTCOME_UNMAPPED));
  ASSERT_EQ(seal.manifest().tensors_size(), 2);
  EXPECT_EQ(seal.manifest().tensors(0).name(), "w");
  EXPECT_EQ(seal.manifest().tensors(0).dtype(), "BF16");
  EXPECT_THAT(seal.manifest().tensors(0).shape(), ElementsAre(4u, kBig));
  EXPECT_EQ(seal.manifest().tensors(0).offset_bytes(), 8u);
  EXPECT_EQ(seal.manifest().tensors(0).size_bytes(), 16u);
  EXPECT_EQ(seal.manifest().tensors(1).shape_size(), 0);
}

TEST(EncodeTest, AttachListFaultAndWatch) {
  const auto attach = Parsed<pb::AttachSegmentRequest>(AttachSegmentRequest{1, 2, 3, "a@1"});
  EXPECT_EQ(attach.holder_id(), 3u);
  EXPECT_EQ(attach.name(), "a@1");
  const auto list = Parsed<pb::ListSegmentsRequest>(ListSegmentsRequest{7, "pre"});
  EXPECT_EQ(list.session_id(), 7u);
  EXPECT_EQ(list.prefix(), "pre");
  const auto fault = Parsed<pb::ReportFaultRequest>(ReportFaultRequest{1, 2, 700, "CUDA_ERROR", "here"});
  EXPECT_EQ(fault.cuda_error(), 700);
  EXPECT_EQ(fault.cuda_error_name(), "CUDA_ERROR");
  EXPECT_EQ(fault.detail(), "here");
  EXPECT_EQ(Parsed<pb::WatchEventsRequest>(WatchEventsRequest{8}).session_id(), 8u);
}

TEST(DecodeTest, Hello) {
  pb::HelloResponse generated;
  generated.set_instance("abc");
  generated.set_daemon_version("1.2.3");
  generated.set_protocol_major(1);
  generated.set_driver(pb::DRIVER_KIND_CUDA);
  generated.set_tenant("default");
  generated.mutable_limits()->set_chunks_per_lease(10);
  generated.mutable_limits()->set_chunks_per_frame(11);
  generated.mutable_limits()->set_unacknowledged_frames(12);
  generated.mutable_limits()->set_tenant_limit_bytes(0);
  for (const char* uuid : {"GPU-a", "GPU-b"}) {
    pb::Device* const device = generated.add_devices();
    device->set_uuid(uuid);
    device->set_name("H200");
    device->set_state(pb::DEVICE_STATE_HEALTHY);
    device->set_generation(4);
    device->set_granularity_bytes(2 << 20);
    device->set_capacity_bytes(kBig);
    device->set_available_bytes(5);
    device->set_detail("not read here");
  }
  const auto own = Decoded<HelloResponse>(generated);
  EXPECT_EQ(own.instance, "abc");
  EXPECT_EQ(own.daemon_version, "1.2.3");
  EXPECT_EQ(own.protocol_major, 1u);
  EXPECT_EQ(own.driver, 1);
  EXPECT_EQ(own.tenant, "default");
  EXPECT_EQ(own.limits.chunks_per_lease, 10u);
  EXPECT_EQ(own.limits.chunks_per_frame, 11u);
  EXPECT_EQ(own.limits.unacknowledged_frames, 12u);
  ASSERT_EQ(own.devices.size(), 2u);
  EXPECT_EQ(own.devices[1].uuid, "GPU-b");
  EXPECT_EQ(own.devices[0].name, "H200");
  EXPECT_EQ(own.devices[0].state, 2u);
  EXPECT_EQ(own.devices[0].generation, 4u);
  EXPECT_EQ(own.devices[0].granularity_bytes, 2u << 20);
  EXPECT_EQ(own.devices[0].capacity_bytes, kBig);
  EXPECT_EQ(own.devices[0].available_bytes, 5u);
}

template <typename Generated>
void CheckGrant() {
  Generated generated;
  generated.set_instance("i");
  generated.set_lease_id(2);
  generated.set_asked_bytes(3);
  generated.set_charged_bytes(4);
  generated.set_pushed_chunks(5);
  pb::Chunk* const chunk = generated.add_chunks();
  chunk->set_chunk_id(kBig);
  chunk->set_generation(7);
  chunk->set_device_uuid("GPU-a");
  chunk->set_bytes(8);
  const auto own = Decoded<GrantResponse>(generated);
  EXPECT_EQ(own.instance, "i");
  EXPECT_EQ(own.lease_id, 2u);
  EXPECT_EQ(own.asked_bytes, 3u);
  EXPECT_EQ(own.charged_bytes, 4u);
  EXPECT_EQ(own.pushed_chunks, 5u);
  ASSERT_EQ(own.chunks.size(), 1u);
  EXPECT_EQ(own.chunks[0].chunk_id, kBig);
  EXPECT_EQ(own.chunks[0].generation, 7u);
  EXPECT_EQ(own.chunks[0].device_uuid, "GPU-a");
  EXPECT_EQ(own.chunks[0].bytes, 8u);
}

TEST(DecodeTest, Grants) {
  CheckGrant<pb::AllocateResponse>();
  CheckGrant<pb::BuildSegmentResponse>();
}

TEST(DecodeTest, SmallResponses) {
  pb::RegisterHolderResponse holder;
  holder.set_instance("i");
  holder.set_holder_id(kBig);
  EXPECT_EQ(Decoded<RegisterHolderResponse>(holder).holder_id, kBig);
  pb::ReleaseResponse release;
  release.set_instance("i");
  release.set_released_bytes(1);
  release.set_quarantined_bytes(2);
  EXPECT_EQ(Decoded<ReleaseResponse>(release).released_bytes, 1u);
  EXPECT_EQ(Decoded<ReleaseResponse>(release).quarantined_bytes, 2u);
  pb::SealSegmentResponse seal;
  seal.set_instance("i");
  seal.set_name("a@1");
  EXPECT_EQ(Decoded<SealSegmentResponse>(seal).name, "a@1");
  pb::DetachSegmentResponse detach;
  detach.set_instance("i");
  EXPECT_EQ(Decoded<DetachSegmentResponse>(detach).instance, "i");
  pb::ReportFaultResponse fault;
  fault.set_instance("i");
  fault.set_quarantined_bytes(3);
  EXPECT_EQ(Decoded<ReportFaultResponse>(fault).quarantined_bytes, 3u);
}

TEST(DecodeTest, AttachAndList) {
  pb::AttachSegmentResponse generated;
  generated.set_instance("i");
  generated.set_attachment_id(2);
  pb::Segment* const segment = generated.mutable_segment();
  segment->set_name("a@1");
  segment->set_state(pb::SEGMENT_STATE_SEALED);
  segment->set_lease_id(3);
  segment->set_generation(4);
  segment->set_bytes(5);
  segment->set_chunks(6);
  segment->set_tensors(7);
  segment->set_readers(8);
  segment->mutable_sealed_at()->set_seconds(9);
  generated.add_chunks()->set_chunk_id(10);
  pb::Tensor* const tensor = generated.mutable_manifest()->add_tensors();
  tensor->set_name("w");
  tensor->set_dtype("F32");
  tensor->add_shape(11);
  tensor->add_shape(kBig);
  tensor->set_offset_bytes(12);
  tensor->set_size_bytes(13);
  const auto own = Decoded<AttachSegmentResponse>(generated);
  EXPECT_EQ(own.attachment_id, 2u);
  EXPECT_EQ(own.segment.name, "a@1");
  EXPECT_EQ(own.segment.state, 2u);
  EXPECT_EQ(own.segment.lease_id, 3u);
  EXPECT_EQ(own.segment.generation, 4u);
  EXPECT_EQ(own.segment.bytes, 5u);
  EXPECT_EQ(own.segment.chunks, 6u);
  EXPECT_EQ(own.segment.tensors, 7u);
  EXPECT_EQ(own.segment.readers, 8u);
  ASSERT_EQ(own.chunks.size(), 1u);
  ASSERT_EQ(own.tensors.size(), 1u);
  EXPECT_EQ(own.tensors[0].name, "w");
  EXPECT_EQ(own.tensors[0].dtype, "F32");
  EXPECT_THAT(own.tensors[0].shape, ElementsAre(11u, kBig));
  EXPECT_EQ(own.tensors[0].offset_bytes, 12u);
  EXPECT_EQ(own.tensors[0].size_bytes, 13u);
  pb::ListSegmentsResponse list;
  list.set_instance("i");
  *list.add_segments() = generated.segment();
  EXPECT_EQ(Decoded<ListSegmentsResponse>(list).segments.at(0).name, "a@1");
}

TEST(DecodeTest, Events) {
  pb::Event generated;
  generated.set_sequence(kBig);
  generated.mutable_at()->set_seconds(1);
  generated.mutable_session_fenced()->set_session_id(2);
  generated.mutable_session_fenced()->set_reason(pb::QUARANTINE_REASON_WRITER_FAULTED);
  generated.mutable_session_fenced()->set_quarantined_bytes(3);
  generated.mutable_session_fenced()->set_detail("why");
  auto own = Decoded<Event>(generated);
  EXPECT_EQ(own.kind, Event::Kind::kSessionFenced);
  EXPECT_EQ(own.sequence, kBig);
  EXPECT_EQ(own.session_id, 2u);
  EXPECT_EQ(own.state, 2u);
  EXPECT_EQ(own.bytes, 3u);
  EXPECT_EQ(own.detail, "why");
  generated.mutable_session_ended()->set_session_id(4);
  generated.mutable_session_ended()->set_settled_bytes(5);
  own = Decoded<Event>(generated);
  EXPECT_EQ(own.kind, Event::Kind::kSessionEnded);
  EXPECT_EQ(own.session_id, 4u);
  EXPECT_EQ(own.bytes, 5u);
  generated.mutable_device_changed()->set_device_uuid("GPU-a");
  generated.mutable_device_changed()->set_state(pb::DEVICE_STATE_LOST);
  generated.mutable_device_changed()->set_detail("gone");
  own = Decoded<Event>(generated);
  EXPECT_EQ(own.kind, Event::Kind::kDeviceChanged);
  EXPECT_EQ(own.name, "GPU-a");
  EXPECT_EQ(own.state, 4u);
  EXPECT_EQ(own.detail, "gone");
  generated.mutable_segment_changed()->set_name("a@1");
  generated.mutable_segment_changed()->set_state(pb::SEGMENT_STATE_LOST);
  generated.mutable_segment_changed()->set_removed(true);
  own = Decoded<Event>(generated);
  EXPECT_EQ(own.kind, Event::Kind::kSegmentChanged);
  EXPECT_EQ(own.name, "a@1");
  EXPECT_EQ(own.state, 3u);
  EXPECT_TRUE(own.removed);
  generated.mutable_daemon_stopping()->mutable_grace()->set_seconds(6);
  own = Decoded<Event>(generated);
  EXPECT_EQ(own.kind, Event::Kind::kDaemonStopping);
  EXPECT_THAT(own.detail, testing::HasSubstr("6 s"));
}

TEST(DecodeTest, ErrorInfo) {
  google::rpc::ErrorInfo info;
  info.set_reason("QUOTA");
  info.set_domain("gpumem");
  (*info.mutable_metadata())["asked_bytes"] = "7";
  google::rpc::Status status;
  status.set_code(8);
  status.add_details()->PackFrom(google::rpc::Status());  // some other detail before it
  status.add_details()->PackFrom(info);
  ErrorInfo own;
  ASSERT_TRUE(DecodeErrorInfo(status.SerializeAsString(), &own));
  EXPECT_EQ(own.reason, "QUOTA");
  EXPECT_EQ(own.domain, "gpumem");
  EXPECT_THAT(own.metadata, ElementsAre(testing::Pair("asked_bytes", "7")));
  status.clear_details();
  EXPECT_FALSE(DecodeErrorInfo(status.SerializeAsString(), &own));
}

TEST(DecodeTest, EveryPrefixOfAMessageIsRefusedOrRead) {
  pb::AttachSegmentResponse generated;
  generated.set_instance("0123456789abcdef");
  generated.mutable_segment()->set_name("a@1");
  generated.mutable_manifest()->add_tensors()->add_shape(kBig);
  const std::string bytes = generated.SerializeAsString();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    AttachSegmentResponse own;
    (void)Decode(std::string_view(bytes).substr(0, size), &own);
  }
  AttachSegmentResponse own;
  EXPECT_FALSE(Decode(std::string_view(bytes).substr(0, bytes.size() - 1), &own));
  EXPECT_FALSE(Decode("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", &own));
}

TEST(DecodeTest, FieldOfAnotherWireTypeIsSkipped) {
  pb::SealSegmentResponse text_in_field_two;
  text_in_field_two.set_name("a@1");
  RegisterHolderResponse own;
  EXPECT_TRUE(Decode(text_in_field_two.SerializeAsString(), &own));
  EXPECT_EQ(own.holder_id, 0u);
}

TEST(Utf8Test, TellsWellFormedFromOther) {
  EXPECT_TRUE(ValidUtf8(""));
  EXPECT_TRUE(ValidUtf8("größe/\xe2\x82\xac/\xf0\x9f\x98\x80"));
  for (const char* bad : {"\x80", "\xc0\xaf", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(ValidUtf8(bad)) << testing::PrintToString(bad);
  }
  EXPECT_EQ(CleanUtf8("a\xff\xc3\xbc\xc3"), "a?\xc3\xbc?");
}

}  // namespace
}  // namespace gpumem::client
