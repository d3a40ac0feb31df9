// `concord checkpoint list|describe|verify|diff`. The first two say what an output folder or a checkpoint holds, by
// names, sizes and headers. Needs neither libtorch nor a device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Throws ConfigError for what is no folder, or no checkpoint.
void add_checkpoint_command(CLI::App* program, int* exit_code);

}  // namespace concord
