// Questions about the names of folders. Threads: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace concord {

// Whether |path| is |folder| or lies in it, links followed; neither has to exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// |folder| without slashes at its end; "/" stays.
std::string without_trailing_slashes(std::string folder);

// Whether |path|, which exists, is on a file system that other machines may serve: NFS, Lustre, GPFS, Ceph, SMB, AFS,
// 9p, OCFS2, GFS2 or one in user space (FUSE). False where that cannot be found out.
bool is_on_network(const std::filesystem::path& path);
// The same of statfs's f_type.
bool is_network_file_system(uint64_t type);

}  // namespace concord
