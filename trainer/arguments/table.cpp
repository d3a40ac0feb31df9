#include "trainer/arguments/table.h"

#include <algorithm>
#include <charconv>

#include "core/base/nearest_name.h"
#include "core/models/config.h"
#include "trainer/arguments/foreign/foreign.h"
#include "trainer/arguments/table_columns.h"
#include "trainer/data/sources/blend.h"

namespace concord {

std::span<const ArgumentGroup> argument_groups() {
  static const std::vector<ArgumentGroup> groups = [] {
    std::vector<ArgumentGroup> all;
    for (const auto part : {model_groups(), data_groups(), optimizer_groups(), parallel_groups(), run_groups()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return groups;
}

std::span<const Argument* const> all_arguments() {
  static const std::vector<const Argument*> arguments = [] {
    std::vector<const Argument*> all;
    for (const ArgumentGroup& group : argument_groups()) {
      for (const Argument& argument : group.arguments) all.push_back(&argument);
    }
    return all;
  }();
  return arguments;
}

const Argument* find_argument(std::string_view name) {
  for (const Argument* argument : all_arguments()) {
    if (argument->name == name) return argument;
  }
  const ForeignSetting* foreign = find_foreign(name);
  const auto* same = foreign == nullptr ? nullptr : std::get_if<SameArgument>(&foreign->meaning);
  return same == nullptr ? nullptr : find_argument(same->argument);
}

bool is_known_name(std::string_view name) {
  return is_program_option(name) || find_launch_argument(name) != nullptr || find_argument(name) != nullptr ||
         find_foreign(name) != nullptr;
}

const Argument* find_launch_argument(std::string_view name) {
  const auto found = std::ranges::find(launch_arguments(), name, &Argument::name);
  return found == launch_arguments().end() ? nullptr : &*found;
}

const Argument& argument_for(const Argument& argument, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  const bool is_fraction = is_number && number > 0 && number < 1;
  return is_fraction && !argument.below_one.empty() ? *find_argument(argument.below_one) : argument;
}

std::span<const std::string_view> allowed_names(const Argument& argument) {
  if (const auto* one = std::get_if<EnumField<std::string>>(&argument.member)) return one->allowed;
  if (const auto* list = std::get_if<EnumField<std::vector<std::string>>>(&argument.member)) return list->allowed;
  return {};
}

std::vector<std::string> input_paths(const TrainingArguments& arguments) {
  std::vector<std::string> paths;
  for (const Argument* argument : all_arguments()) {
    if (!argument->is_input) continue;
    const std::string& path = std::get<ArgumentField<std::string>>(argument->member)(arguments);
    if (!path.empty() && !is_config_text(path)) paths.push_back(path);
  }
  for (const auto* blend : {&arguments.data.blend, &arguments.evaluation.blend, &arguments.evaluation.test_blend}) {
    for (const std::string& path : parse_blend(*blend).paths) paths.push_back(path);
  }
  for (const auto& [name, path] : arguments.evaluation.sets) paths.push_back(path);
  return paths;
}

std::string nearest_argument(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Argument* argument : all_arguments()) known.push_back(argument->name);
  return nearest_name(name, known);
}

}  // namespace concord
