// concord conform: starts the conformance kit (platform/conformance), which is a program of its own beside this one.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Its arguments are passed to the kit unchanged, and its exit code is the kit's.
void add_conform_command(CLI::App* app);

}  // namespace concord
