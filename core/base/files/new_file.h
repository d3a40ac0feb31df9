// Files that are written under a temporary name and renamed to the final one. Nothing is written through a link or into
// a device that happens to have the name. Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

// Opens |path| for writing, made afresh: what has the name (left by a run that was killed, or a link that somebody put
// there) is removed and not followed. None, and errno, where that cannot be.
UniqueFd create_fresh_file(const std::string& path);

// Writes all of |bytes| at the place of |file|, as often as the system takes only a part. 0, or the errno of the
// failure.
int write_all(int file, std::string_view bytes);

// Throws ConfigError if |path| exists and is not a regular file: a rename would replace a device with a file.
void check_replaceable(const std::string& path);

// The message about a failed write: |path|, the system's message for |error|, and what to do about it where that is
// known (a full disk, a limit on the size of files).
std::string write_error_text(const std::string& path, int error);

}  // namespace concord
