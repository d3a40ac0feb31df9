#include "trainer/cli/setting_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <variant>

#include "trainer/arguments/table.h"

namespace concord {
namespace {

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
  const auto set = [=](const CLI::results_t& words) {
    set_argument(*argument, fmt::format("{}", fmt::join(words, ",")), arguments);
    return true;
  };
  CLI::Option* added = app->add_option(names, set, help)->type_name(type_name(*argument));
  if (is_a<ArgumentField<std::vector<std::string>>>(*argument) || is_a<EnumField<std::vector<std::string>>>(*argument))
    return added->expected(CLI::detail::expected_max_vector_size);
  return option.shows_default ? added->default_str(default_text(*argument, *arguments)) : added;
}

void add_settings(CLI::App* app, std::initializer_list<SettingOption> options, TrainingArguments* arguments) {
  for (const SettingOption& option : options) add_setting(app, option, arguments);
}

}  // namespace concord
