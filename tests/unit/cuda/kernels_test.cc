// The embedded PTX, and the checksum's definition. (What the kernels do is tested on a driver: tests/unit/sim.)
#include "cuda/kernels.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "cuda/checksum.h"

namespace gpumem::cuda {
namespace {

TEST(KernelsPtxTest, PtxasAcceptsIt) {
  if (std::strlen(PTXAS) == 0) GTEST_SKIP() << "no ptxas on this machine";
  char dir[] = "/tmp/gpumem-ptx-XXXXXX";
  ASSERT_NE(::mkdtemp(dir), nullptr);
  const std::string path = std::string(dir) + "/kernels.ptx";
  std::ofstream(path) << kKernelsPtx;
  // sm_75 is the oldest device that the assemblers of CUDA 12 and of CUDA 13 have in common.
  for (const char* device : {"sm_75", "sm_80", "sm_90"}) {
    const std::string command = std::string(PTXAS) + " --gpu-name " + device + " -o /dev/null " + path;
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  ::unlink(path.c_str());
  ::rmdir(dir);
}

TEST(KernelsPtxTest, TheConstantsAreTheChecksums) {
  const std::string text = kKernelsPtx;
  for (const std::uint64_t constant : {kChecksumMul1, kChecksumMul2}) {
    char hex[20];
    std::snprintf(hex, sizeof hex, "0x%016llx", static_cast<unsigned long long>(constant));
    const std::size_t first = text.find(hex);
    ASSERT_NE(first, std::string::npos) << hex;
    EXPECT_NE(text.find(hex, first + 1), std::string::npos) << hex << " in the loop and in the tail";
  }
}

TEST(ChecksumTest, IsASumOverWordsThatCanBeSplitAnywhereAtAWord) {
  std::vector<unsigned char> data(1003);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i * 7 + 3);
  const std::uint64_t whole = Checksum(data.data(), data.size());
  for (std::size_t cut = 0; cut < data.size(); cut += 8) {
    EXPECT_EQ(Checksum(data.data(), cut) + Checksum(data.data() + cut, data.size() - cut, cut / 8), whole);
  }
}

TEST(ChecksumTest, ZeroesAddNothingAndEverythingElseCounts) {
  std::vector<unsigned char> data(64);
  EXPECT_EQ(Checksum(data.data(), data.size()), 0u);
  EXPECT_EQ(Checksum(nullptr, 0), 0u);
  std::uint64_t seen[64] = {};
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = 1;
    seen[i] = Checksum(data.data(), data.size());
    EXPECT_NE(seen[i], 0u);
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(seen[i], seen[j]);  // the place counts
    data[i] = 0;
  }
  // A tail is a word filled up with zero bytes.
  data[56] = 9;
  EXPECT_EQ(Checksum(data.data(), 57), Checksum(data.data(), 64));
}

}  // namespace
}  // namespace gpumem::cuda
