// How this program is called in the commands that it suggests.
#pragma once

#include <string>

namespace concord {

// "concord" if PATH finds it; else its path, relative to the working folder if it is below it.
std::string program_as_typed();

}  // namespace concord
