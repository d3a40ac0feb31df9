// Formatting of rank lists for messages. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace concord {

// Returns "rank 2" or "ranks 0, 1 and 3"; for more than 16 ranks the first 16 and the number of the others.
std::string rank_list(std::span<const int64_t> ranks);

}  // namespace concord
