#include "platform/base/host_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/temporary_folder.h"

namespace concord {
namespace {

// A folder with files like those in /proc and /sys.
class HostMemoryTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  HostMemory memory() const { return available_host_memory(folder_.path()); }

  tests::TemporaryFolder folder_;
};

TEST_F(HostMemoryTest, WithoutGroupsIsWhatTheMachineHas) {
  write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:        10 kB\nMemAvailable:   700 kB\n");
  EXPECT_EQ(memory().available, 700 * 1024);
  EXPECT_NE(memory().limit.find("MemAvailable in "), std::string::npos);
}

TEST_F(HostMemoryTest, IsTheLeastOfAllGroupsUpToTheRoot) {
  write("proc/meminfo", "MemAvailable: 700 kB\n");
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  write("sys/fs/cgroup/user/job/memory.current", "999999\n");
  EXPECT_EQ(memory().available, 700 * 1024);
  write("sys/fs/cgroup/user/memory.max", "500000\n");
  write("sys/fs/cgroup/user/memory.current", "300000\n");
  EXPECT_EQ(memory().available, 200000);
  write("sys/fs/cgroup/user/memory.stat", "anon 200000\ninactive_file 90000\nactive_file 10000\n");
  EXPECT_EQ(memory().available, 290000) << "page cache can be dropped";
  EXPECT_EQ(memory().limit, folder_ / "sys/fs/cgroup/user/memory.max");
  write("sys/fs/cgroup/memory.max", "100\n");
  write("sys/fs/cgroup/memory.current", "200\n");
  EXPECT_EQ(memory().available, 0);
}

TEST_F(HostMemoryTest, ReadsTheOlderHierarchyToo) {
  write("proc/meminfo", "MemAvailable: 700 kB\n");
  write("proc/self/cgroup", "12:cpu,cpuacct:/other\n4:memory:/docker/a\n");
  write("sys/fs/cgroup/memory/docker/a/memory.limit_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes", "1500\n");
  write("sys/fs/cgroup/memory/docker/a/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
  EXPECT_EQ(memory().available, 3000);
}

}  // namespace
}  // namespace concord
