// Ranks in a sentence. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace concord {

// "rank 2"; "ranks 0, 1 and 3"; of many the first 16, and how many more there are.
std::string rank_list(std::span<const int64_t> ranks);

}  // namespace concord
