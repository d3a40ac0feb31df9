// How this program is called in what it tells its user to type.
#pragma once

#include <string>

namespace concord {

// "concord" where PATH finds it; else its path, from the working folder where it is below that one.
std::string program_as_typed();

}  // namespace concord
