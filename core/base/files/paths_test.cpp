#include "core/base/files/paths.h"

#include <gtest/gtest.h>
#include <linux/magic.h>

#include <initializer_list>

namespace concord {
namespace {

TEST(Paths, TellsNetworkFileSystemsFromThoseOfThisMachine) {
  for (const uint64_t type : std::initializer_list<uint64_t>{NFS_SUPER_MAGIC, CEPH_SUPER_MAGIC, FUSE_SUPER_MAGIC,
                                                             V9FS_MAGIC, AFS_SUPER_MAGIC})
    EXPECT_TRUE(is_network_file_system(type)) << std::hex << type;
  EXPECT_TRUE(is_network_file_system(0xfe534d42)) << "SMB 2";
  for (const uint64_t type : std::initializer_list<uint64_t>{EXT4_SUPER_MAGIC, TMPFS_MAGIC, BTRFS_SUPER_MAGIC,
                                                             OVERLAYFS_SUPER_MAGIC, XFS_SUPER_MAGIC})
    EXPECT_FALSE(is_network_file_system(type)) << std::hex << type;
  EXPECT_FALSE(is_on_network("/proc")) << "no file system of files";
  EXPECT_FALSE(is_on_network("/no/such/folder"));
}

}  // namespace
}  // namespace concord
