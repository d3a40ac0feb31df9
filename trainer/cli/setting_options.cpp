#include "trainer/cli/setting_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <variant>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

constexpr int kAnyNumber = CLI::detail::expected_max_vector_size;  // of values

template <class Field>
bool is_a(const Argument& argument) {
  return std::holds_alternative<Field>(argument.member);
}

const char* type_name(const Argument& argument) {
  if (is_a<ArgumentField<int64_t>>(argument)) return "INT";
  return is_a<ArgumentField<double>>(argument) ? "FLOAT" : "TEXT";
}

// The value as CLI11 prints defaults: without quotes.
std::string default_text(const Argument& argument, const TrainingArguments& arguments) {
  std::string text = argument_text(argument, arguments);
  return text.starts_with('"') ? text.substr(1, text.size() - 2) : text;
}

using Mapping = std::map<std::string, std::string>;

// Adds the pairs of |words|, name=value each.
void add_pairs(const Argument& argument, const CLI::results_t& words, Mapping* out) {
  for (const std::string& word : words) {
    const size_t equals = word.find('=');
    if (equals == 0 || equals == std::string::npos) {
      throw ConfigError(fmt::format("--{} must be name=value, e.g. min_lr=1e-5; got {}", argument.name, quoted(word)));
    }
    (*out)[word.substr(0, equals)] = word.substr(equals + 1);
  }
}

}  // namespace

CLI::Option* add_setting(CLI::App* app, const SettingOption& option, TrainingArguments* arguments) {
  const Argument* launch = find_launch_argument(option.name);
  const Argument* argument = launch != nullptr ? launch : find_argument(option.name);
  if (argument == nullptr) throw std::logic_error(fmt::format("{} is not in the table of settings", option.name));
  const std::string help = option.help ? std::string(*option.help) : argument_help(*argument);
  const std::string names = option.spellings.empty() ? fmt::format("--{}", option.name) : std::string(option.spellings);
  if (is_a<ArgumentField<bool>>(*argument)) {
    return app->add_flag_function(
        names, [=](int64_t count) { set_argument(*argument, count > 0 ? "true" : "false", arguments); }, help);
  }
  if (const auto* mapping = std::get_if<ArgumentField<Mapping>>(&argument->member)) {
    const auto add = [=](const CLI::results_t& values) {
      add_pairs(*argument, values, &(*mapping)(*arguments));
      return true;
    };
    return app->add_option(names, add, help)->type_name("TEXT")->expected(kAnyNumber)->delimiter(',');
  }
  const auto set = [=](const CLI::results_t& values) {
    set_argument(*argument, fmt::format("{}", fmt::join(values, ",")), arguments);
    return true;
  };
  CLI::Option* added = app->add_option(names, set, help)->type_name(type_name(*argument));
  if (is_a<ArgumentField<std::vector<std::string>>>(*argument) || is_a<EnumField<std::vector<std::string>>>(*argument))
    return added->expected(kAnyNumber);
  return option.shows_default ? added->default_str(default_text(*argument, *arguments)) : added;
}

void add_settings(CLI::App* app, std::initializer_list<SettingOption> options, TrainingArguments* arguments) {
  for (const SettingOption& option : options) add_setting(app, option, arguments);
}

void add_nproc(CLI::App* app, TrainingArguments* arguments) {
  add_setting(app, {.name = "nproc", .help = "start this many processes on this machine", .shows_default = false},
              arguments);
}

void add_dtype(CLI::App* app, std::string* dtype) {
  app->add_option("--dtype", *dtype, "float32, bfloat16, float16 or float64 (default: as in the config)");
}

}  // namespace concord
