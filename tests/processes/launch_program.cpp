// The program of the launcher's tests: the `launch` subcommand, and one that can be launched by name.
#include <CLI/CLI.hpp>
#include <iostream>

#include "core/config_error.h"
#include "trainer/cli/launch.h"

int main(int argc, char** argv) {
  CLI::App program("the launcher's tests");
  program.require_subcommand(1);
  int exit_code = 0;
  concord::add_launch_command(&program, &exit_code);
  std::vector<std::string> words;
  CLI::App* show = program.add_subcommand("show", "prints its words");
  show->add_option("words", words);
  show->callback([&] { std::cout << "show: " << CLI::detail::join(words, "|") << "\n"; });
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : 2;
  } catch (const concord::ConfigError& error) {
    std::cerr << "concord: " << error.what() << "\n";
    return 2;
  }
  return exit_code;
}
