// `concord operators`: compares the operators of a device with the references on the host.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|. Exit code 1 if a kernel is wrong, or none was compared.
void add_operators_command(CLI::App* program, int* exit_code);

}  // namespace concord
