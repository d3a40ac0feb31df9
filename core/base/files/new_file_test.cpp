#include "core/base/files/new_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/base/config_error.h"
#include "core/base/files/file_lock.h"
#include "core/base/resources.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(NewFile, ALinkThatHasTheNameIsRemovedAndNotFollowed) {
  const tests::TemporaryFolder folder;
  std::ofstream(folder / "victim") << "keep";
  std::filesystem::create_symlink("victim", folder / "state.new");
  const UniqueFd fd = create_fresh_file(folder / "state.new");
  ASSERT_TRUE(fd);
  EXPECT_EQ(::write(fd.get(), "x", 1), 1);
  EXPECT_EQ(std::filesystem::file_size(folder / "victim"), 4U);
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "state.new"));
  EXPECT_FALSE(create_fresh_file(folder.path()));
  EXPECT_FALSE(create_fresh_file(folder / "none/file"));
}

TEST(NewFile, ADeviceIsNotReplacedByAFile) {
  const tests::TemporaryFolder folder;
  EXPECT_NO_THROW(check_replaceable(folder / "new"));
  EXPECT_THROW(check_replaceable("/dev/null"), ConfigError);
  EXPECT_THROW(check_replaceable(folder.path()), ConfigError);
}

TEST(NewFile, AFailedWriteSaysWhatToDo) {
  EXPECT_EQ(write_error_text("a", ENOSPC),
            "a: cannot be written: No space left on device; free some space or choose another folder");
  EXPECT_THAT(write_error_text("a", EFBIG), HasSubstr("File too large; "));
  EXPECT_EQ(write_error_text("a", EIO), "a: cannot be written: Input/output error");
}

TEST(Resources, WhatRanOutIsNamedWithItsLimit) {
  EXPECT_THAT(*what_is_short(std::bad_alloc()), HasSubstr("out of memory"));
  const std::system_error threads(EAGAIN, std::system_category());
  EXPECT_THAT(*what_is_short(threads), HasSubstr("(ulimit -u)"));
  EXPECT_THAT(*what_is_short(std::system_error(EMFILE, std::generic_category(), "socket")), HasSubstr("ulimit -n"));
  EXPECT_EQ(what_is_short(std::system_error(EIO, std::generic_category())), std::nullopt);
  EXPECT_EQ(what_is_short(std::runtime_error("x")), std::nullopt);
  const std::runtime_error device(
      "CUDA out of memory. Tried to allocate 2.32 GiB.\nException raised from malloc at x.cpp");
  EXPECT_THAT(*what_is_short(device), AllOf(StartsWith("CUDA out of memory. Tried to allocate 2.32 GiB. To train"),
                                            HasSubstr("recompute_modules"), Not(HasSubstr("Exception"))));
  EXPECT_EQ(
      without_backtrace("a size overflows\nException raised from f at x.cpp:3 (most recent call first):\nframe #0"),
      "a size overflows");
}

// One process holds the lock at a time; a process that waits for long is notified.
TEST(FileLock, IsWaitedForWithAWord) {
  const tests::TemporaryFolder folder;
  const std::string path = folder / "lock";
  auto held = std::make_unique<FileLock>(path);
  int words = 0;
  FileLock second(path, [&] {
    ++words;
    held.reset();
  });
  EXPECT_EQ(words, 1);
}

}  // namespace
}  // namespace concord
