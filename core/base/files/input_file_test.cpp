#include "core/base/files/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& path, std::string_view wanted = {}) {
  try {
    InputFile(path, wanted).read(4, "a test");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(InputFile, ARegularFileIsReadAlsoThroughALink) {
  const tests::TemporaryFolder folder;
  std::ofstream(folder / "a") << "text";
  std::filesystem::create_symlink("a", folder / "link");
  const InputFile file(folder / "link");
  EXPECT_EQ(file.size(), 4U);
  EXPECT_EQ(file.read(4, "a test"), "text");
  EXPECT_EQ(file.read(100, "a test"), "text");
}

TEST(InputFile, WhatWouldBlockOrNeverEndIsRefusedAtOnce) {
  const tests::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder / "pipe", "give a table"),
            folder / "pipe" + ": is not a regular file but a pipe; give a table");
  EXPECT_EQ(refusal("/dev/zero"), "/dev/zero: is not a regular file but a device; only regular files can be read");
  EXPECT_THAT(refusal(folder.path()), HasSubstr("is not a regular file but a folder"));
  EXPECT_THAT(refusal(folder / "none", "give a table"),
              HasSubstr("none: cannot be opened: No such file or directory; give"));
  EXPECT_THAT(refusal(std::string("a\0b", 3)), HasSubstr("zero byte"));
}

TEST(InputFile, MoreThanIsAllowedIsRefusedWithTheSize) {
  const tests::TemporaryFolder folder;
  std::ofstream(folder / "a") << "12345";
  EXPECT_EQ(refusal(folder / "a"), folder / "a" + ": has 5 bytes; the limit for a test is 4");
  // Files that report a size of 0 are read to their end too.
  EXPECT_GT(InputFile("/proc/self/status").read(1 << 20, "a test").size(), 100U);
  EXPECT_THAT(refusal("/proc/self/status"), HasSubstr("has 5 bytes; the limit for a test is 4"));
}

}  // namespace
}  // namespace concord
