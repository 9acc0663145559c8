// The border: what a peer sent is checked before anything else sees it. Each limit is tested at it and one above.
#include "daemon/service/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "daemon/core/reasons.h"
#include "daemon/service/event_stream.h"

namespace gpumem::service {
namespace {

using core::Reason;
using ::testing::HasSubstr;

constexpr char kUuid[] = "GPU-00112233-4455-6677-8899-aabbccddeeff";

core::Limits SmallLimits() {
  core::Limits limits;
  limits.name_bytes = 8;
  limits.specs_per_request = 2;
  limits.chunks_per_lease = 3;
  limits.tensors_per_manifest = 2;
  return limits;
}

template <typename Result>
void ExpectRefused(const absl::StatusOr<Result>& result, Reason reason, const std::string& words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(core::ReasonOf(result.status()), reason) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(words));
}

v1::AllocateRequest ValidAllocate() {
  v1::AllocateRequest request;
  request.set_request_id(1);
  request.set_holder_id(2);
  auto* spec = request.add_specs();
  spec->set_device_uuid(kUuid);
  spec->set_chunk_bytes(1 << 20);
  spec->set_count(3);
  return request;
}

TEST(DecodeAllocate, GivesPlainValues) {
  const auto call = Decode(ValidAllocate(), SmallLimits());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request_id, 1u);
  EXPECT_EQ(call->holder, core::HolderId(2));
  ASSERT_EQ(call->specs.size(), 1u);
  EXPECT_EQ(call->specs[0].device.ToString(), kUuid);
  EXPECT_EQ(call->specs[0].chunk_bytes, core::Bytes(1 << 20));
  EXPECT_EQ(call->specs[0].count, 3u);
}

TEST(DecodeAllocate, NeedsARequestId) {
  auto request = ValidAllocate();
  request.set_request_id(0);
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "request_id");
}

TEST(DecodeAllocate, NeedsASpec) {
  auto request = ValidAllocate();
  request.clear_specs();
  ExpectRefused(Decode(request, SmallLimits()), Reason::SIZE_ZERO, "specs is empty");
}

TEST(DecodeAllocate, BoundsTheSpecs) {
  auto request = ValidAllocate();
  *request.add_specs() = request.specs(0);
  EXPECT_TRUE(Decode(request, SmallLimits()).ok());
  *request.add_specs() = request.specs(0);
  ExpectRefused(Decode(request, SmallLimits()), Reason::LIMIT, "specs has 3 entries; at most 2");
}

TEST(DecodeAllocate, ADeviceIsAUuid) {
  auto request = ValidAllocate();
  request.mutable_specs(0)->set_device_uuid("0");
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "specs[0].device_uuid is '0'");
}

TEST(DecodeBuildSegment, BoundsTheName) {
  v1::BuildSegmentRequest request;
  request.set_request_id(1);
  *request.add_specs() = ValidAllocate().specs(0);
  request.set_name("12345678");
  const auto call = Decode(request, SmallLimits());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->segment_name, "12345678");
  request.set_name("123456789");
  ExpectRefused(Decode(request, SmallLimits()), Reason::NAME_INVALID, "9 bytes; at most 8");
}

TEST(DecodeNames, AreBoundedInEveryRequest) {
  const std::string fits(8, 'n');
  const std::string too_long(9, 'n');
  v1::AttachSegmentRequest attach;
  attach.set_request_id(1);
  attach.set_name(fits);
  EXPECT_TRUE(Decode(attach, SmallLimits()).ok());
  attach.set_name(too_long);
  ExpectRefused(Decode(attach, SmallLimits()), Reason::NAME_INVALID, "9 bytes; at most 8");
  v1::RemoveSegmentRequest remove;
  remove.set_name(fits);
  EXPECT_TRUE(Decode(remove, SmallLimits()).ok());
  remove.set_name(too_long);
  ExpectRefused(Decode(remove, SmallLimits()), Reason::NAME_INVALID, "9 bytes; at most 8");
  EXPECT_TRUE(DecodePrefix(fits, SmallLimits()).ok());
  ExpectRefused(DecodePrefix(too_long, SmallLimits()), Reason::NAME_INVALID, "9 bytes; at most 8");
}

TEST(DecodeHolder, NeedsAKnownRole) {
  v1::RegisterHolderRequest request;
  request.set_request_id(1);
  request.set_name("h");
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "role is 0");
  request.set_role(static_cast<v1::Role>(77));
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "role is 77");
  request.set_role(v1::ROLE_KV_CACHE);
  EXPECT_EQ(Decode(request, SmallLimits())->role, core::Role::kKvCache);
  request.set_name(std::string(9, 'h'));
  ExpectRefused(Decode(request, SmallLimits()), Reason::NAME_INVALID, "holder's name");
}

TEST(DecodeRelease, ChecksTheOutcomes) {
  v1::ReleaseRequest request;
  request.set_request_id(1);
  request.set_lease_id(9);
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "outcomes is empty");
  for (int i = 0; i < 3; ++i) request.add_outcomes(v1::OUTCOME_UNMAPPED);
  const auto call = Decode(request, SmallLimits());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->lease, core::LeaseId(9));
  EXPECT_EQ(call->outcomes, std::vector<core::Outcome>(3, core::Outcome::kUnmapped));
  request.set_outcomes(1, v1::OUTCOME_UNSPECIFIED);
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "outcomes[1] is 0");
  request.set_outcomes(1, static_cast<v1::Outcome>(4));
  ExpectRefused(Decode(request, SmallLimits()), Reason::INVALID_ARGUMENT, "outcomes[1] is 4");
  request.set_outcomes(1, v1::OUTCOME_UNKNOWN);
  request.add_outcomes(v1::OUTCOME_UNMAPPED);
  ExpectRefused(Decode(request, SmallLimits()), Reason::TOO_MANY_CHUNKS, "4 entries");
}

class DecodeSealTest : public ::testing::Test {
 protected:
  DecodeSealTest() {
    request_.set_request_id(1);
    request_.set_lease_id(1);
    request_.add_outcomes(v1::OUTCOME_UNMAPPED);
    auto* tensor = request_.mutable_manifest()->add_tensors();
    tensor->set_name("t");
    tensor->set_dtype("F32");
    tensor->add_shape(2);
    tensor->set_offset_bytes(8);
    tensor->set_size_bytes(8);
  }
  v1::Tensor* tensor() { return request_.mutable_manifest()->mutable_tensors(0); }
  absl::StatusOr<SealCall> Seal() { return Decode(request_, SmallLimits()); }
  v1::SealSegmentRequest request_;
};

TEST_F(DecodeSealTest, GivesTheManifest) {
  const auto call = Seal();
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_EQ(call->manifest.size(), 1u);
  EXPECT_EQ(call->manifest[0].name, "t");
  EXPECT_EQ(call->manifest[0].shape, std::vector<std::uint64_t>{2});
  EXPECT_EQ(call->manifest[0].offset, core::Bytes(8));
}

TEST_F(DecodeSealTest, BoundsTheTensors) {
  *request_.mutable_manifest()->add_tensors() = *tensor();
  EXPECT_TRUE(Seal().ok());
  *request_.mutable_manifest()->add_tensors() = *tensor();
  ExpectRefused(Seal(), Reason::MANIFEST_INVALID, "3 tensors; at most 2");
}

TEST_F(DecodeSealTest, BoundsATensor) {
  for (int i = 1; i < kMaxTensorDimensions; ++i) tensor()->add_shape(1);
  tensor()->set_name(std::string(kMaxTensorNameBytes, 'n'));
  tensor()->set_dtype(std::string(kMaxDtypeBytes, 'd'));
  EXPECT_TRUE(Seal().ok());
  const v1::Tensor largest = *tensor();
  tensor()->add_shape(1);
  ExpectRefused(Seal(), Reason::MANIFEST_INVALID, "33 dimensions");
  *tensor() = largest;
  tensor()->mutable_name()->push_back('n');
  ExpectRefused(Seal(), Reason::MANIFEST_INVALID, "1025 bytes");
  *tensor() = largest;
  tensor()->mutable_dtype()->push_back('d');
  ExpectRefused(Seal(), Reason::MANIFEST_INVALID, "dtype");
}

TEST_F(DecodeSealTest, BoundsTheManifestAsAWhole) {
  tensor()->set_name(std::string(kMaxManifestBytes, 'n'));
  ExpectRefused(Seal(), Reason::MANIFEST_INVALID, "Split the model");
}

TEST(DecodeFault, CutsLongTextsInsteadOfRefusing) {
  v1::ReportFaultRequest request;
  request.set_request_id(1);
  request.set_cuda_error(700);
  request.set_cuda_error_name(std::string(10'000, 'n'));
  request.set_detail(std::string(10'000, 'd'));
  request.set_device_uuid(std::string(10'000, 'u'));
  const auto call = Decode(request);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->report.cuda_error, 700);
  EXPECT_EQ(call->report.cuda_error_name.size(), kMaxFaultNameBytes);
  EXPECT_EQ(call->report.detail.size(), kMaxFaultDetailBytes);
  request.set_cuda_error(0);
  ExpectRefused(Decode(request), Reason::INVALID_ARGUMENT, "cuda_error is 0");
}

TEST(CheckHello, RefusesAnotherProtocolAndAnotherDriver) {
  v1::HelloRequest request;
  request.set_protocol_major(kProtocolMajor);
  request.set_driver(v1::DRIVER_KIND_SIM);
  request.set_client_version("9.9.9");
  EXPECT_TRUE(CheckHello(request, v1::DRIVER_KIND_SIM).ok());
  const absl::Status driver = CheckHello(request, v1::DRIVER_KIND_CUDA);
  EXPECT_EQ(core::ReasonOf(driver), Reason::DRIVER_MISMATCH);
  EXPECT_THAT(std::string(driver.message()), testing::AllOf(HasSubstr("'sim'"), HasSubstr("'cuda'")));
  request.set_protocol_major(kProtocolMajor + 1);
  const absl::Status version = CheckHello(request, v1::DRIVER_KIND_SIM);
  EXPECT_EQ(core::ReasonOf(version), Reason::VERSION_MISMATCH);
  EXPECT_THAT(std::string(version.message()), testing::AllOf(HasSubstr("9.9.9"), HasSubstr("protocol 2")));
}

TEST(PageSize, HasADefaultAndACap) {
  EXPECT_EQ(PageSize(0), kDefaultPageSize);
  EXPECT_EQ(PageSize(1), 1u);
  EXPECT_EQ(PageSize(kMaxPageSize), kMaxPageSize);
  EXPECT_EQ(PageSize(kMaxPageSize + 1), kMaxPageSize);
}

TEST(WorkerFilter, ShowsOnlyItsOwnFence) {
  const EventFilter filter = WorkerFilter(core::SessionId(7));
  const auto sees = [&](auto kind) { return filter(manager::Event{1, {}, kind}); };
  EXPECT_TRUE(sees(manager::SessionFencedEvent{core::SessionId(7), {}, {}, ""}));
  EXPECT_FALSE(sees(manager::SessionFencedEvent{core::SessionId(8), {}, {}, ""}));
  EXPECT_TRUE(sees(manager::SessionEndedEvent{core::SessionId(8), {}}));
  EXPECT_TRUE(sees(manager::DeviceChangedEvent{}));
  EXPECT_TRUE(sees(manager::SegmentChangedEvent{}));
  EXPECT_TRUE(sees(manager::DaemonStoppingEvent{}));
}

}  // namespace
}  // namespace gpumem::service
