// `concord generate`: text that a model writes.
#pragma once

namespace CLI {
class App;
}

namespace concord {

void add_generate_command(CLI::App* program, int* exit_code);

}  // namespace concord
