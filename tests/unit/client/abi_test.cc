// The C surface: sizes of structs, errors without a daemon, tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "gpumem/gpumem.hpp"
#include "tests/unit/client/fake_daemon.h"

extern "C" int gpumem_header_c11(void);  // header_c11.c

namespace gpumem::client_test {
namespace {

using testing::HasSubstr;

TEST(AbiTest, VersionAndReasonNames) {
  EXPECT_STREQ(gpumem_version(), "0.1.0");
  EXPECT_STREQ(gpumem_reason_name(0), "OK");
  EXPECT_STREQ(gpumem_reason_name(GPUMEM_QUOTA), "QUOTA");
  EXPECT_STREQ(gpumem_reason_name(GPUMEM_OUT_OF_HOST_MEMORY), "OUT_OF_HOST_MEMORY");
  EXPECT_STREQ(gpumem_reason_name(-1), "UNKNOWN");
  EXPECT_STREQ(gpumem_reason_name(99), "UNKNOWN");
}

TEST(AbiTest, TheHeaderIsC) { EXPECT_EQ(gpumem_header_c11(), GPUMEM_OK); }

TEST(AbiTest, ClassifiesErrors) {
  EXPECT_EQ(ClassifyError(0), Fault::kNone);
  EXPECT_EQ(ClassifyError(2), Fault::kNone);
  EXPECT_EQ(ClassifyError(600), Fault::kNone);
  EXPECT_EQ(ClassifyError(700), Fault::kProcess);
  EXPECT_EQ(ClassifyError(719), Fault::kProcess);
  EXPECT_EQ(ClassifyError(214), Fault::kEcc);
  EXPECT_EQ(ClassifyError(46), Fault::kDevice);
  EXPECT_EQ(ClassifyError(12345678), Fault::kNone);
}

TEST(AbiTest, NullArgumentsAreErrors) {
  gpumem_status status = GPUMEM_STATUS_INIT;
  EXPECT_EQ(gpumem_connect(nullptr, nullptr, &status), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(status.code, 3);
  EXPECT_EQ(status.retry, GPUMEM_RETRY_NO);
  EXPECT_THAT(status.message, HasSubstr("NULL"));
  EXPECT_EQ(gpumem_session(nullptr, nullptr, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_lease_release(nullptr, nullptr, 0, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_segment_detach(nullptr, nullptr, 0, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_device_count(nullptr), 0u);
  EXPECT_EQ(gpumem_segment_name(nullptr), nullptr);
  EXPECT_LT(gpumem_event_fd(nullptr, nullptr), 0);
  gpumem_close(nullptr);
}

TEST(AbiTest, NobodyThereAndNoDriver) {
  ConnectOptions options;
  options.socket_dir = "/tmp/gpumem-no-such-directory";
  options.libcuda_path = Machine::Get().library;
  auto client = Client::Connect(options);
  EXPECT_EQ(client.status().reason(), GPUMEM_NOT_RUNNING);
  EXPECT_EQ(client.status().retry(), Retry::kLater);
  EXPECT_THAT(client.status().message(), HasSubstr("/tmp/gpumem-no-such-directory/handles.sock"));
  options.libcuda_path = "/no/such/libcuda.so.1";
  client = Client::Connect(options);
  EXPECT_EQ(client.status().reason(), GPUMEM_NO_DRIVER);
  EXPECT_THAT(client.status().message(), HasSubstr("/no/such/libcuda.so.1"));
}

TEST(AbiTest, EnvironmentNamesTheSocketsAndTheDriver) {
  FakeDaemon daemon;
  ::setenv("GPUMEM_SOCKET_DIR", daemon.socket_dir().c_str(), 1);
  ::setenv("GPUMEM_LIBCUDA", Machine::Get().library.c_str(), 1);
  gpumem_client* client = nullptr;
  EXPECT_EQ(gpumem_connect(nullptr, &client, nullptr), GPUMEM_OK);
  gpumem_close(client);
  ::unsetenv("GPUMEM_SOCKET_DIR");
  ::unsetenv("GPUMEM_LIBCUDA");
}

class StructSizeTest : public testing::Test {
 protected:
  StructSizeTest() {
    ConnectOptions options;
    options.socket_dir = daemon_.socket_dir();
    options.libcuda_path = Machine::Get().library;
    client_ = *Client::Connect(options);
  }
  FakeDaemon daemon_;
  Client client_;
};

TEST_F(StructSizeTest, TooSmallAndTooLargeAreNamed) {
  gpumem_status status = GPUMEM_STATUS_INIT;
  gpumem_session_info info = GPUMEM_SESSION_INFO_INIT;
  info.struct_size = 8;
  EXPECT_EQ(gpumem_session(client_.get(), &info, &status), GPUMEM_INVALID_ARGUMENT);
  EXPECT_THAT(status.message, HasSubstr("gpumem_session_info"));
  info.struct_size = sizeof(info) + 8;
  EXPECT_EQ(gpumem_session(client_.get(), &info, &status), GPUMEM_VERSION_MISMATCH);
  EXPECT_THAT(status.message, HasSubstr("gpumem_session_info"));
  gpumem_options options = GPUMEM_OPTIONS_INIT;
  options.struct_size = 0;
  gpumem_client* client = nullptr;
  EXPECT_EQ(gpumem_connect(&options, &client, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(client, nullptr);
  gpumem_event event = {};
  std::int32_t got = 0;
  EXPECT_EQ(gpumem_next_event(client_.get(), &event, &got, nullptr), GPUMEM_INVALID_ARGUMENT);
}

TEST_F(StructSizeTest, AShorterStatusIsFilledAsFarAsItGoes) {
  gpumem_status status = GPUMEM_STATUS_INIT;
  std::memset(status.message, 'z', sizeof(status.message));
  status.struct_size = offsetof(gpumem_status, message);
  EXPECT_EQ(gpumem_session(nullptr, nullptr, &status), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(status.reason, GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(status.message[0], 'z');
  EXPECT_EQ(status.struct_size, offsetof(gpumem_status, message));
}

TEST_F(StructSizeTest, ANameNeedsItsWholeRoomAndSuccessIsNoFault) {
  EXPECT_EQ(gpumem_report_fault(client_.get(), 0, "", nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_TRUE(daemon_.faults().empty());
  const auto holder = client_.RegisterHolder("h", Role::kWeights);
  auto lease = client_.BuildSegment(*holder, "m", {{daemon_.device_uuid(), FakeDaemon::kChunkBytes, 1}});
  ASSERT_TRUE(lease.ok());
  char name[256] = {};
  EXPECT_EQ(gpumem_segment_seal(lease->get(), nullptr, 0, nullptr, 0, name, 255, nullptr), GPUMEM_INVALID_ARGUMENT);
  EXPECT_TRUE(lease->Seal({}).ok()) << "nothing was done";
}

TEST_F(StructSizeTest, OutputsAreUntouchedOnFailure) {
  std::uint64_t holder = 7;
  EXPECT_NE(gpumem_register_holder(client_.get(), "", 1, &holder, nullptr), GPUMEM_OK);
  EXPECT_EQ(holder, 7u);
  gpumem_device_info info = GPUMEM_DEVICE_INFO_INIT;
  info.ordinal = 55;
  EXPECT_EQ(gpumem_device(client_.get(), 99, &info, nullptr), GPUMEM_UNKNOWN_DEVICE);
  EXPECT_EQ(info.ordinal, 55);
}

TEST_F(StructSizeTest, ALongMessageIsCutBetweenCharacters) {
  gpumem_status status = GPUMEM_STATUS_INIT;
  gpumem_client* client = nullptr;
  gpumem_options options = GPUMEM_OPTIONS_INIT;
  std::string path = "/";
  while (path.size() < 1000) path += "ü";
  options.socket_dir = path.c_str();
  options.libcuda_path = Machine::Get().library.c_str();
  EXPECT_EQ(gpumem_connect(&options, &client, &status), GPUMEM_INVALID_ARGUMENT);
  const std::size_t size = std::strlen(status.message);
  EXPECT_GE(size, 509u);
  EXPECT_NE(static_cast<unsigned char>(status.message[size - 1]), 0xc3);
}

}  // namespace
}  // namespace gpumem::client_test
