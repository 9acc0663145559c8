// tests/unit/client/temp_dir.h: a directory that goes with the object.
#ifndef GPUMEM_TESTS_UNIT_CLIENT_TEMP_DIR_H_
#define GPUMEM_TESTS_UNIT_CLIENT_TEMP_DIR_H_

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>

namespace gpumem::client_test {

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/gpumem-client-XXXXXX";
    path_ = ::mkdtemp(name) != nullptr ? name : "";
    All().insert(path_);
  }
  ~TempDir() {
    Remove(path_);
    All().erase(path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

  // For a process that leaves by _exit.
  static void RemoveAll() {
    for (const std::string& path : All()) Remove(path);
  }

 private:
  // Main thread only. Never destroyed: directories of static objects go after it.
  static std::set<std::string>& All() {
    static auto* const all = new std::set<std::string>;
    return *all;
  }
  static void Remove(const std::string& path) {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }

  std::string path_;
};

// How many descriptors this process has open.
inline std::size_t OpenDescriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace gpumem::client_test

#endif  // GPUMEM_TESTS_UNIT_CLIENT_TEMP_DIR_H_
