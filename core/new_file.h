// Files that are written beside their final name and renamed to it. Nothing is written through a link or into a device
// that happens to have the name. Threads: any.
#pragma once

#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

// Opens |path| for writing, made afresh: what has the name (left by a run that was killed, or a link that somebody put
// there) is removed and not followed. None, and errno, where that cannot be.
UniqueFd create_fresh_file(const std::string& path);

// Throws ConfigError where |path| is there and is no regular file: a rename would put a file in the place of a device.
void check_replaceable(const std::string& path);

// The sentence about a failed write: |path|, the system's words for |error|, and what to do about it where that is
// known (a full disk, a limit on the size of files).
std::string write_error_text(const std::string& path, int error);

}  // namespace concord
