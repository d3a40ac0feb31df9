// The program: one file per subcommand, assembled here. Exceptions are caught here, once, and become a message and
// an exit code: 0 fine, 1 failed, 2 wrong usage.
#pragma once

#include <memory>

namespace CLI {
class App;
}

namespace concord {

// All subcommands, with their options. |exit_code| is set by the one that runs.
std::unique_ptr<CLI::App> make_program(int* exit_code);

// Runs the subcommand that the arguments of main name. Returns the exit code.
int run_program(int argc, char** argv);

}  // namespace concord
