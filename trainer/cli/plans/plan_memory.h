// `concord plan memory`: the placement plan of a run, printed before it starts. Pure: no device, no processes.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |plan|, which is `concord plan`.
void add_plan_memory_command(CLI::App* plan);

// Returns what `concord plan memory` prints for |args|: its own options and arguments of `concord train`. Throws
// ConfigError for invalid ones.
std::string plan_memory_text(const std::vector<std::string>& args);

}  // namespace concord
