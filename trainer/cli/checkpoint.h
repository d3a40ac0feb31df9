// `concord checkpoint list|describe`: what an output folder or a checkpoint holds. Reads names, sizes and headers, no
// tensor; needs neither libtorch nor a device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Throws ConfigError for what is no folder, or no checkpoint.
void add_checkpoint_command(CLI::App* program, int* exit_code);

}  // namespace concord
