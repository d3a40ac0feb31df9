#include "backends/cuda/torch/ops/gemm/gemm_cache.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace concord::cuda::torch_side {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The cache folder is one of the test's own.
class GemmCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "concord-gemm-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write_file(const std::string& text) const {
    fs::create_directories(folder_ / "concord");
    std::ofstream(folder_ / "concord" / "gemm-A_GPU.txt") << text;
  }

  fs::path folder_;
};

TEST_F(GemmCacheTest, WhatOneProcessWritesAnotherReads) {
  GemmCache first("A/GPU");
  EXPECT_THAT(first.numbers("1 2"), IsEmpty());
  first.write("1 2", "7 18446744073709551615");
  EXPECT_THAT(first.numbers("1 2"), ElementsAre(7u, 18446744073709551615u));
  EXPECT_THAT(GemmCache("A/GPU").numbers("1 2"), ElementsAre(7u, 18446744073709551615u));
  EXPECT_THAT(GemmCache("B").numbers("1 2"), IsEmpty());
}

TEST_F(GemmCacheTest, TheFirstLineOfAKeyStaysForLaterProcesses) {
  GemmCache slow("A/GPU"), fast("A/GPU");
  fast.write("key", "1");
  slow.write("key", "2");
  slow.write("other", "3");
  EXPECT_THAT(slow.numbers("key"), ElementsAre(2u));  // it goes on as it has begun
  EXPECT_THAT(GemmCache("A/GPU").numbers("key"), ElementsAre(1u));
  EXPECT_THAT(GemmCache("A/GPU").numbers("other"), ElementsAre(3u));
}

TEST_F(GemmCacheTest, LinesThatAreNotNumbersCountAsMissing) {
  write_file("a: 1 x\nb: -1\nc: 99999999999999999999999\nd 1\ne: \nf: 1 2\n" + std::string(2000, 'g') + ": 1\n");
  const GemmCache cache("A/GPU");
  for (const char* key : {"a", "b", "c", "d", "e"}) EXPECT_THAT(cache.numbers(key), IsEmpty()) << key;
  EXPECT_THAT(cache.numbers("f"), ElementsAre(1u, 2u));
  EXPECT_THAT(cache.numbers(std::string(2000, 'g')), IsEmpty());
}

TEST_F(GemmCacheTest, WithoutAFolderThatCanBeWrittenItKeepsWhatItKnows) {
  setenv("XDG_CACHE_HOME", "/dev/null", 1);
  GemmCache cache("A/GPU");
  cache.write("key", "5");
  EXPECT_THAT(cache.numbers("key"), ElementsAre(5u));
}

}  // namespace
}  // namespace concord::cuda::torch_side
