// The sockets' directories: made with their mode, and refused where others could replace a socket.
#include "daemon/directories.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class DirectoriesTest : public ::testing::Test {
 protected:
  DirectoriesTest() {
    char path[] = "/tmp/gpumem-dirs-XXXXXX";
    EXPECT_NE(::mkdtemp(path), nullptr);
    root_ = path;
  }
  ~DirectoriesTest() override { std::filesystem::remove_all(root_); }

  static mode_t ModeOf(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }
  std::string root_;
};

TEST_F(DirectoriesTest, MakesWhatIsMissingWithExactlyItsMode) {
  const mode_t old_mask = ::umask(077);
  const absl::Status status = PrepareDirectory(root_ + "/a/b", 0755, ::getgid(), "socket_dir");
  ::umask(old_mask);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(ModeOf(root_ + "/a/b"), 0755u);
}

TEST_F(DirectoriesTest, LeavesWhatIsThereAsItIs) {
  ASSERT_EQ(::chmod(root_.c_str(), 0700), 0);
  EXPECT_TRUE(PrepareDirectory(root_, 0755, std::nullopt, "socket_dir").ok());
  EXPECT_EQ(ModeOf(root_), 0700u);
}

TEST_F(DirectoriesTest, RefusesOneWhereAnyoneCouldReplaceASocket) {
  ASSERT_EQ(::chmod(root_.c_str(), 0777), 0);
  const absl::Status status = PrepareDirectory(root_, 0755, std::nullopt, "admin_dir");
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("admin_dir"), HasSubstr(root_), HasSubstr("o-w")));
  ASSERT_EQ(::chmod(root_.c_str(), 01777), 0);  // as /tmp: only a file's owner may replace it
  EXPECT_TRUE(PrepareDirectory(root_, 0755, std::nullopt, "admin_dir").ok());
}

TEST_F(DirectoriesTest, NamesTheSettingAndTheDirectoryThatCannotBeMade) {
  std::ofstream(root_ + "/file") << "x";
  for (const char* path : {"/file", "/file/below"}) {
    const absl::Status status = PrepareDirectory(root_ + path, 0755, std::nullopt, "socket_dir");
    EXPECT_THAT(std::string(status.message()), testing::AllOf(HasSubstr("socket_dir"), HasSubstr(root_ + "/file")));
  }
}

TEST(FindGroup, KnowsRootAndNamesTheOneThatIsNotThere) {
  EXPECT_EQ(*FindGroup("root", "admin_group"), 0u);
  EXPECT_THAT(std::string(FindGroup("no-such-group", "admin_group").status().message()),
              testing::AllOf(HasSubstr("admin_group"), HasSubstr("'no-such-group'"), HasSubstr("groupadd")));
}

}  // namespace
}  // namespace gpumem
