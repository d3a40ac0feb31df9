// `concord plan`: the groups of a layout, as text and as JSON. Pure: no device, no processes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/mesh/rank_layout.h"

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing runs it; throws ConfigError for an invalid layout.
void add_plan_command(CLI::App* program);

// Largest world whose groups are all listed, and largest group of one rank that is listed member by member.
inline constexpr int64_t kListedWorld = int64_t{1} << 16;
inline constexpr int64_t kListedGroup = int64_t{1} << 16;

// One JSON document. With |rank| each name maps to that rank's own group or null, computed without the others; a group
// of more than kListedGroup ranks is given as {"size", "first", "axes": [{"count", "stride"}]}. Without it, every group
// of every kind; throws ConfigError for a world above kListedWorld.
std::string plan_json(const RankLayout& layout, std::optional<int64_t> rank);

// A summary, a picture of the grid if it fits, and a table of the groups.
std::string plan_text(const RankLayout& layout, std::optional<int64_t> rank);

}  // namespace concord
