// `concord probe`: one forward, and backward, of a model on a given batch under any layout; dumps the results.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Parsing runs it and leaves its exit code in |exit_code|; throws ConfigError for
// wrong usage and invalid files.
void add_probe_command(CLI::App* program, int* exit_code);

}  // namespace concord
