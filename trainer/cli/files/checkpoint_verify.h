// `concord checkpoint verify DIR`: compares every byte of a checkpoint with its checksums. Needs neither libtorch nor a
// device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to `concord checkpoint`. Exit code 1 if something is damaged, 2 if there are no checksums; throws
// ConfigError unless the folder is a checkpoint or contains one.
void add_checkpoint_verify_command(CLI::App* checkpoint, int* exit_code);

}  // namespace concord
