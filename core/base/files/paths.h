// Properties of paths. Threads: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace concord {

// Returns whether |path| is |folder| or is inside it, following links. Neither has to exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// Returns |folder| without trailing slashes; "/" is unchanged.
std::string without_trailing_slashes(std::string folder);

// Returns whether |path|, which exists, is on a network file system: NFS, Lustre, GPFS, Ceph, SMB, AFS, 9p, OCFS2, GFS2
// or a FUSE file system. False if that cannot be determined.
bool is_on_network(const std::filesystem::path& path);
// Like is_on_network(), for the f_type of statfs.
bool is_network_file_system(uint64_t type);

}  // namespace concord
