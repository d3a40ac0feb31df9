#include "trainer/cli/conform.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace concord {
namespace conformance {

// Of tests/conformance/conform.h, which nothing outside tests includes: the program only carries the kit.
int conform_main(const std::vector<std::string>& self, const std::vector<std::string>& arguments);

}  // namespace conformance

void add_conform_command(CLI::App* app, int* out_exit_code) {
  CLI::App* command =
      app->add_subcommand("conform", "checks a plugin against the contract; see concord conform --help");
  command->prefix_command();  // everything after it belongs to the kit,
  command->set_help_flag();   // its help too
  command->callback([command, out_exit_code] {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    *out_exit_code = conformance::conform_main({self, "conform"}, command->remaining());
  });
}

}  // namespace concord
