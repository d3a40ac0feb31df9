// Arguments of a program in addition to those of `concord train`: Megatron's extra_args_provider.
//
// Example:
//   #include "trainer/arguments/arguments.h"
//   double gamma = 1;
//   ExtraArguments extra;
//   extra.add("focal_gamma", &gamma, "exponent of the focal loss");
//   const std::vector<std::string> args = {"--focal_gamma", "2"};
//   const CommandLine line = parse_command_line(args, {.extra = &extra});   // gamma is 2
//
// Extra arguments are read from the command line and from the file of --config, and are in --print_config and
// training_args.yaml. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace concord {

class ExtraArguments {
 public:
  using Target = std::variant<bool*, int64_t*, double*, std::string*>;

  // |value| holds the default, and outlives this. Throws ConfigError for a name that is taken already or is not made of
  // a-z, 0-9 and '_'.
  void add(const std::string& name, Target value, const std::string& help);

  bool has(std::string_view name) const;
  bool is_flag(std::string_view name) const;
  // Sets the variable called |name|, which exists. Throws ConfigError for a |text| that does not fit its type;
  // |is_quoted|: in a file, so that it is text and not a number.
  void set(std::string_view name, const std::string& text, bool is_quoted);

  std::map<std::string, std::string> yaml() const;  // values as YAML, by name
  std::string help() const;                         // one line per argument, like arguments_help()

 private:
  struct Extra {
    std::string name;
    Target value;
    std::string help;
  };
  const Extra* find(std::string_view name) const;

  std::vector<Extra> list_;
};

}  // namespace concord
