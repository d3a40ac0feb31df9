// `concord checkpoint diff A B`: weights, optimizer state and metadata of two checkpoints. The layouts that wrote them
// do not matter. Needs neither libtorch nor a device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to `concord checkpoint`. Exit code 1 if something differs; throws ConfigError for files that
// cannot be read.
void add_checkpoint_diff_command(CLI::App* checkpoint, int* exit_code);

}  // namespace concord
