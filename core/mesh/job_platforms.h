// The platforms of the ranks of a job. A setting or CONCORD_PLATFORM names one for all ranks, or several for equal
// parts of the ranks ("cuda,ascend"); or CONCORD_PLATFORM differs between ranks. Threads: any.
#pragma once

#include <string>

namespace concord {

// Returns this rank's entry of |list|, according to the variables of its launcher; a single name unchanged. Throws
// ConfigError like PlatformMap.
std::string own_platform(const std::string& list);

}  // namespace concord
