#include "core/base/files/mapping_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/temporary_folder.h"

namespace concord {
namespace {

constexpr size_t kBytes = 1 << 16;

// Returns a page beyond the end of a file that was truncated after it was mapped.
const volatile char* mapping_of_what_is_gone(const std::string& path) {
  std::ofstream(path) << std::string(kBytes, 'x');
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  EXPECT_NE(map, MAP_FAILED);
  EXPECT_EQ(::truncate(path.c_str(), 0), 0);
  return static_cast<const volatile char*>(map);
}

TEST(MappingWatchDeathTest, TouchingWhatIsGoneNamesTheFileAndEndsWithOne) {
  const tests::TemporaryFolder folder;
  const volatile char* gone = mapping_of_what_is_gone(folder / "corpus.bin");
  EXPECT_EXIT(
      {
        const MappingWatch watch(const_cast<const char*>(gone), kBytes, folder / "corpus.bin");
        (void)gone[kBytes - 1];
      },
      ::testing::ExitedWithCode(1), "concord: .*corpus.bin: is now shorter than the 65536 bytes");
}

TEST(MappingWatchDeathTest, OtherBusErrorsEndTheProcessAsBefore) {
  const tests::TemporaryFolder folder;
  const volatile char* gone = mapping_of_what_is_gone(folder / "other");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        {
          const MappingWatch ended(const_cast<const char*>(gone), kBytes, folder / "other");
        }
        (void)gone[0];
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace concord
