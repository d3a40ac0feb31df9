// Arguments back to text: the YAML of --print_config and the text of --help.
#include <fmt/format.h>

#include <charconv>

#include "core/base/enum_names.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

// The shortest text that reads back to the same bits.
std::string number_text(double number) {
  char text[64];
  const auto result = std::to_chars(text, text + sizeof text, number);
  return std::string(text, result.ptr);
}

template <class Items, class Print>
std::string joined(const Items& items, Print print) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : ", ") + print(item);
  return out;
}

struct Print {
  const TrainingArguments& arguments;
  std::string operator()(ArgumentField<bool> field) const { return field(arguments) ? "true" : "false"; }
  std::string operator()(ArgumentField<int64_t> field) const { return std::to_string(field(arguments)); }
  std::string operator()(ArgumentField<double> field) const { return number_text(field(arguments)); }
  std::string operator()(StepsField steps) const { return number_text(steps.field(arguments)); }
  std::string operator()(ArgumentField<std::map<std::string, std::string>> field) const {
    const auto print = [](const auto& pair) { return yaml_text(pair.first) + ": " + yaml_text(pair.second); };
    return fmt::format("{{{}}}", joined(field(arguments), print));
  }
  std::string operator()(auto field) const { return text(field(arguments)); }

  static std::string text(const std::string& value) { return yaml_text(value); }
  static std::string text(const std::vector<std::string>& values) {
    return fmt::format("[{}]", joined(values, yaml_text));
  }
};

}  // namespace

std::string argument_help(const Argument& argument) {
  const std::string help(argument.help);
  const auto names = allowed_names(argument);
  if (names.empty()) return help;
  const std::string choices = "one of " + comma_separated(names);
  return help.empty() ? choices : fmt::format("{} ({})", help, choices);
}

// Double quotes with JSON escapes, which YAML supports too. Also for words that YAML would interpret otherwise.
std::string yaml_text(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      out += {'\\', letter};
    } else if (code < 0x20 || code == 0x7f) {
      out += fmt::format("\\x{:02x}", code);
    } else {
      out += letter;
    }
  }
  return out + "\"";
}

std::string argument_text(const Argument& argument, const TrainingArguments& arguments) {
  return std::visit(Print{arguments}, argument.member);
}

std::vector<std::pair<std::string, std::string>> printed_arguments(const TrainingArguments& arguments) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Argument* argument : all_arguments()) {
    texts.emplace_back(argument->name, argument_text(*argument, arguments));
  }
  return texts;
}

std::set<std::string> changed_arguments(const TrainingArguments& arguments, int64_t world) {
  const TrainingArguments defaults = resolve_arguments({}, world);
  std::set<std::string> names;
  for (const Argument* argument : all_arguments()) {
    if (argument_text(*argument, arguments) != argument_text(*argument, defaults)) names.emplace(argument->name);
  }
  return names;
}

std::string to_yaml(const TrainingArguments& arguments) {
  std::string yaml;
  for (const ArgumentGroup& group : argument_groups()) {
    yaml += fmt::format("{}# {}\n", yaml.empty() ? "" : "\n", group.title);
    for (const Argument& argument : group.arguments) {
      const std::string line = fmt::format("{}: {}", argument.name, argument_text(argument, arguments));
      const std::string help = argument_help(argument);
      yaml += help.empty() ? line + "\n" : fmt::format("{:<48}  # {}\n", line, help);
    }
  }
  if (!arguments.extra.empty()) yaml += "\n# Of this program\n";
  for (const auto& [name, text] : arguments.extra) yaml += fmt::format("{}: {}\n", name, text);
  return yaml;
}

std::string arguments_help() {
  const TrainingArguments defaults;
  std::string text;
  for (const ArgumentGroup& group : argument_groups()) {
    text += fmt::format("\n{}\n", group.title);
    for (const Argument& argument : group.arguments) {
      const std::string name = fmt::format("--{} {}", argument.name, argument_text(argument, defaults));
      text += fmt::format("  {:<46}  {}\n", name, argument_help(argument));
    }
  }
  return text;
}

}  // namespace concord
