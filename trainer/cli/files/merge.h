// `concord merge --model DIR --adapter DIR --out DIR`: an adapter added to the weights of its base model, as peft's
// merge_and_unload does. Needs neither libtorch nor a device.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing throws ConfigError if the input or the output folder is invalid.
void add_merge_command(CLI::App* program, int* exit_code);

}  // namespace concord
