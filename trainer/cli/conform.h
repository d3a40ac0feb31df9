// concord conform: the conformance kit of tests/conformance, as a subcommand.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Its arguments go to the kit as they are; |out_exit_code| is what the kit says.
void add_conform_command(CLI::App* app, int* out_exit_code);

}  // namespace concord
