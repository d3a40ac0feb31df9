// Files that are written under a temporary name and renamed when they are complete. Writing never follows a link or
// writes to a device that has the same name. Threads: any.
#pragma once

#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"

namespace concord {

// Creates |path| for writing. An existing file (left by a killed run) or link of that name is removed, not followed.
// Returns an empty descriptor and sets errno on failure.
UniqueFd create_fresh_file(const std::string& path);

// Writes all of |bytes| at the current position of |file|, retrying partial writes. Returns 0 or the errno of the
// failure.
int write_all(int file, std::string_view bytes);

// Throws ConfigError if |path| exists and is not a regular file: renaming would replace a device with a file.
void check_replaceable(const std::string& path);

// Returns the message for a failed write: |path|, the system's message for |error| and, if known (full disk, file size
// limit), what to do.
std::string write_error_text(const std::string& path, int error);

}  // namespace concord
