// `concord chaos`: a training job under faults, compared with the same job without them.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|.
void add_chaos_command(CLI::App* program, int* exit_code);

}  // namespace concord
