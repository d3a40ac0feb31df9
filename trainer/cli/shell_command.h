// Command lines as a shell reads them.
#pragma once

#include <string>
#include <vector>

namespace concord {

// Returns |words| as a shell reads them.
std::string shell_command(const std::vector<std::string>& words);

}  // namespace concord
