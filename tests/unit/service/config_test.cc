// What gpumemd reads from its file and its flags, and how it refuses.
#include "daemon/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUuid[] = "GPU-00112233-4455-6677-8899-aabbccddeeff";

std::string ErrorOf(std::string_view toml) {
  Config config;
  return std::string(ApplyToml(toml, "test.toml", &config).message());
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char path[] = "/tmp/gpumem-config-XXXXXX";
    const int fd = ::mkstemp(path);
    EXPECT_GE(fd, 0);
    ::close(fd);
    path_ = path;
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ConfigFile, SetsWhatItNames) {
  Config config;
  const absl::Status status = ApplyToml(R"(
driver = "sim"
socket_dir = "/run/here/"
stop_grace = "500ms"
[log]
format = "json"
level = "debug"
[tenant]
limit = "64GiB"
[device]
headroom = 1048576
limit = "1 TiB"
[[devices]]
uuid = "GPU-00112233-4455-6677-8899-AABBCCDDEEFF"
headroom = "2GB"
)",
                                        "test.toml", &config);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.driver, "sim");
  EXPECT_EQ(config.control_socket(), "/run/here/control.sock");
  EXPECT_EQ(config.admin_socket(), "/run/here-admin/admin.sock");
  EXPECT_EQ(config.stop_grace, absl::Milliseconds(500));
  EXPECT_EQ(config.log_format, "json");
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.tenant_limit, core::Bytes(64ull << 30));
  EXPECT_EQ(config.device_headroom, core::Bytes(1048576));
  EXPECT_EQ(config.device_limit, core::Bytes(1ull << 40));
  ASSERT_EQ(config.devices.size(), 1u);
  EXPECT_EQ(config.devices[0].device.ToString(), kUuid);
  EXPECT_EQ(config.devices[0].headroom, core::Bytes(2'000'000'000));
  EXPECT_EQ(config.devices[0].limit, std::nullopt);
}

TEST(ConfigFile, NamesAnUnknownKeyItsLineAndTheNearestValidOne) {
  EXPECT_THAT(
      ErrorOf("driver = \"sim\"\nsocket_dri = \"/run\"\n"),
      testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("'socket_dri'"), HasSubstr("did you mean 'socket_dir'")));
  EXPECT_THAT(ErrorOf("[tenant]\nlimt = \"1GiB\"\n"),
              testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("'tenant.limt'"), HasSubstr("'tenant.limit'")));
  EXPECT_THAT(ErrorOf("[lgo]\nlevel = \"info\"\n"), HasSubstr("did you mean 'log'?"));
  EXPECT_THAT(ErrorOf("[[devices]]\nuid = \"x\"\n"), testing::AllOf(HasSubstr(":2"), HasSubstr("did you mean 'uuid'")));
}

TEST(ConfigFile, SuggestsNothingForAWordThatIsNotNearAny) {
  EXPECT_THAT(ErrorOf("qqqqqqqqqqqqqqqqqqqqqqqqqqqqq = 1\n"),
              testing::AllOf(HasSubstr("unknown key"), Not(HasSubstr("did you mean"))));
}

TEST(ConfigFile, NamesAWrongTypeWithItsLine) {
  EXPECT_THAT(ErrorOf("\ndriver = 3\n"),
              testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("driver"), HasSubstr("integer"), HasSubstr("text")));
  EXPECT_THAT(ErrorOf("[tenant]\nlimit = true\n"),
              testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("boolean"), HasSubstr("size")));
  EXPECT_THAT(ErrorOf("stop_grace = 2\n"), testing::AllOf(HasSubstr("integer"), HasSubstr("time")));
  EXPECT_THAT(ErrorOf("log = \"json\"\n"), testing::AllOf(HasSubstr("'log' is a table"), HasSubstr("[log]")));
  EXPECT_THAT(ErrorOf("devices = 1\n"), HasSubstr("[[devices]]"));
}

TEST(ConfigFile, NamesABadValueWithItsLine) {
  EXPECT_THAT(ErrorOf("[tenant]\nlimit = \"64 gigs\"\n"),
              testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("64 gigs")));
  EXPECT_THAT(ErrorOf("driver = \"cdua\"\n"), testing::AllOf(HasSubstr("auto, cuda, sim"), HasSubstr("mean 'cuda'")));
  EXPECT_THAT(ErrorOf("socket_dir = \"run\"\n"), HasSubstr("absolute"));
  EXPECT_THAT(ErrorOf("stop_grace = \"2h\"\n"), HasSubstr("1h"));
  EXPECT_THAT(ErrorOf("[tenant]\nlimit = -1\n"), HasSubstr("not a size"));
  EXPECT_THAT(ErrorOf("[[devices]]\nuuid = \"0\"\n"), testing::AllOf(HasSubstr("'0'"), HasSubstr("UUID")));
  EXPECT_THAT(ErrorOf("[[devices]]\nlimit = 1\n"), HasSubstr("no uuid"));
  const std::string twice = std::string("[[devices]]\nuuid = \"") + kUuid + "\"\n";
  EXPECT_THAT(ErrorOf(twice + twice), HasSubstr("already"));
}

TEST(ConfigFile, ThatIsNotTomlIsNamedWithItsLine) {
  EXPECT_THAT(ErrorOf("driver = \"sim\"\n[log\n"), testing::AllOf(HasSubstr("test.toml:2"), HasSubstr("TOML")));
}

TEST(ConfigFile, WithAMistakeChangesNothing) {
  Config config;
  EXPECT_FALSE(ApplyToml("driver = \"sim\"\nzzz = 1\n", "test.toml", &config).ok());
  EXPECT_EQ(config.driver, "auto");
}

TEST(CommandLine, AFlagWinsOverTheFile) {
  const TemporaryFile file("driver = \"cuda\"\n[log]\nlevel = \"debug\"\n");
  const auto line = ParseCommandLine({"--config", file.path(), "--driver=sim", "--tenant-limit", "1GiB"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->action, Action::kRun);
  EXPECT_EQ(line->config.driver, "sim");
  EXPECT_EQ(line->config.log_level, "debug");
  EXPECT_EQ(line->config.tenant_limit, core::Bytes(1ull << 30));
}

TEST(CommandLine, NamesAnUnknownFlagAndTheNearestValidOne) {
  EXPECT_THAT(std::string(ParseCommandLine({"--drvier=sim"}).status().message()),
              testing::AllOf(HasSubstr("'--drvier'"), HasSubstr("'--driver'")));
  EXPECT_THAT(std::string(ParseCommandLine({"kepeer"}).status().message()), HasSubstr("'keeper'"));
}

TEST(CommandLine, NamesTheFlagOfABadValue) {
  EXPECT_THAT(std::string(ParseCommandLine({"--tenant-limit", "lots"}).status().message()),
              testing::AllOf(HasSubstr("--tenant-limit"), HasSubstr("'lots'")));
  EXPECT_FALSE(ParseCommandLine({"--driver"}).ok());
  EXPECT_THAT(std::string(ParseCommandLine({"--config", "/nonexistent/x.toml"}).status().message()),
              HasSubstr("/nonexistent/x.toml"));
}

TEST(CommandLine, TheAdminSocketNeverLiesWhereWorkersLook) {
  EXPECT_TRUE(ParseCommandLine({"--socket-dir", "/run/a", "--admin-dir", "/run/ab"}).ok());
  for (const char* admin : {"/run/a", "/run/a/admin", "/run/a/"}) {
    const auto line = ParseCommandLine({"--socket-dir", "/run/a", "--admin-dir", admin});
    EXPECT_THAT(std::string(line.status().message()), HasSubstr("admin_dir")) << admin;
  }
}

TEST(CommandLine, KnowsItsActions) {
  EXPECT_EQ(ParseCommandLine({"--help"})->action, Action::kHelp);
  EXPECT_EQ(ParseCommandLine({"--version"})->action, Action::kVersion);
  EXPECT_EQ(ParseCommandLine({"--check-config"})->action, Action::kCheckConfig);
  EXPECT_EQ(ParseCommandLine({"--print-config"})->action, Action::kPrintConfig);
}

TEST(PrintConfig, IsAFileThatSaysTheSame) {
  const std::string file = std::string(R"(
driver = "sim"
admin_dir = "/a"
keeper_socket = "/k/keeper.sock"
start_grace = "1m30s"
[tenant]
limit = "1537KiB"
[cuda]
library = "/opt/libcuda.so.1"
[[devices]]
uuid = ")") + kUuid + "\"\nlimit = 12345\n";
  Config config;
  ASSERT_TRUE(ApplyToml(file, "a.toml", &config).ok());
  const std::string printed = PrintConfig(config);
  Config again;
  const absl::Status status = ApplyToml(printed, "b.toml", &again);
  ASSERT_TRUE(status.ok()) << status << "\n" << printed;
  EXPECT_EQ(PrintConfig(again), printed);
  EXPECT_EQ(again.tenant_limit, core::Bytes(1537 * 1024));
  EXPECT_EQ(again.start_grace, absl::Seconds(90));
  EXPECT_EQ(again.cuda_library, "/opt/libcuda.so.1");
  ASSERT_EQ(again.devices.size(), 1u);
  EXPECT_EQ(again.devices[0].limit, core::Bytes(12345));
}

TEST(UsageText, NamesEverySettingThatTheFileHas) {
  const std::string usage = UsageText();
  for (const char* word : {"--driver", "tenant.limit", "--admin-dir", "--check-config", "built-in 512MiB"}) {
    EXPECT_THAT(usage, HasSubstr(word));
  }
}

TEST(ParseSize, TakesBytesAndUnits) {
  EXPECT_EQ(*ParseSize("0"), core::Bytes(0));
  EXPECT_EQ(*ParseSize("512MiB"), core::Bytes(512ull << 20));
  EXPECT_EQ(*ParseSize("3 KB"), core::Bytes(3000));
  EXPECT_EQ(*ParseSize("18446744073709551615"), core::Bytes(~0ull));
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1", "1.5GiB", "1gib", "1 GiB x", " 1", "0x10"}) {
    EXPECT_FALSE(ParseSize(text).ok()) << text;
  }
  EXPECT_THAT(std::string(ParseSize("18446744073709551616").status().message()), HasSubstr("64 bits"));
  EXPECT_THAT(std::string(ParseSize("16777216TiB").status().message()), HasSubstr("64 bits"));
}

}  // namespace
}  // namespace gpumem
