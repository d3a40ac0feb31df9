// Questions about the names of folders. Threads: any.
#pragma once

#include <filesystem>
#include <string>

namespace concord {

// Whether |path| is |folder| or lies in it, links followed; neither has to exist.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder);

// |folder| without slashes at its end; "/" stays.
std::string without_trailing_slashes(std::string folder);

}  // namespace concord
