// concord conform: starts the conformance kit (platform/conformance), a separate program next to this one.
#pragma once

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |app|. Passes arguments to the kit unchanged and returns its exit code, except for
// --report FILE.zip, which runs more than the kit (platform_report.h).
void add_conform_command(CLI::App* app, int* exit_code);

}  // namespace concord
