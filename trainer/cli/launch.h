// `concord launch`: starts the processes of a job on this machine, as torchrun does.
#pragma once

namespace CLI {
class App;
}

namespace concord {

struct LaunchOptions;
struct TrainingArguments;

// Returns the options of a launcher for a job with |settings|.
LaunchOptions launch_options(const TrainingArguments& settings);

// Adds the subcommand to |program|. Parsing runs it and leaves its exit code in |exit_code|; throws ConfigError for
// wrong usage. All subcommands of |program|, also those added later, can be launched by name.
void add_launch_command(CLI::App* program, int* exit_code);

}  // namespace concord
