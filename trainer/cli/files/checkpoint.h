// `concord checkpoint list|describe|verify|diff`. The first two describe an output folder or a checkpoint by names,
// sizes and headers. Needs neither libtorch nor a device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing throws ConfigError unless given a folder with a checkpoint.
void add_checkpoint_command(CLI::App* program, int* exit_code);

}  // namespace concord
