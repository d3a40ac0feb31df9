#include "trainer/arguments/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/base/enum_names.h"
#include "core/base/files/input_file.h"
#include "core/base/quoted.h"
#include "trainer/arguments/problems.h"
#include "trainer/arguments/table.h"
#include "trainer/arguments/toml.h"
#include "trainer/arguments/yaml.h"

namespace concord {
namespace {

using std::string_literals::operator""s;

constexpr const char* kErrors = "errors in the arguments";
constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

// What was read so far: values, the names that were set, errors, and names without effect, grouped by reason.
struct Reading {
  TrainingArguments* arguments;
  ExtraArguments* extra = nullptr;  // null: none
  std::vector<std::string> given = {};
  Problems problems = {};
  std::map<const IgnoredArguments*, std::vector<std::string>> ignored = {};

  std::vector<std::string> notes() const {
    std::vector<std::string> lines;
    for (const auto& [group, names] : ignored) {
      lines.push_back(
          fmt::format("{} {} no effect: {}", fmt::join(names, ", "), names.size() == 1 ? "has" : "have", group->why));
    }
    return lines;
  }
};

// Why a value is rejected; printed after the name.
struct Refusal {
  std::string why;
};

std::string shown(const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::list) return "a list";
  if (value.form == ArgumentValue::Form::mapping) return "a mapping";
  return (value.quoted ? "the string " : "") + quoted(value.text);
}

std::string range_text(const ArgumentRange& range) {
  const bool has_max = std::isfinite(range.max);
  if (!std::isfinite(range.min) && !has_max) return "";
  std::string text = range.open_min ? fmt::format(" > {:.12g}", range.min) : fmt::format(" >= {:.12g}", range.min);
  if (has_max)
    text += range.open_max ? fmt::format(" and < {:.12g}", range.max) : fmt::format(" and <= {:.12g}", range.max);
  return text;
}

bool inside(const ArgumentRange& range, double value) {
  return (range.open_min ? value > range.min : value >= range.min) &&
         (range.open_max ? value < range.max : value <= range.max);
}

const std::string& scalar(const ArgumentValue& value, std::string_view expected) {
  if (value.form != ArgumentValue::Form::scalar || value.quoted) {
    throw Refusal{fmt::format("is {}, but must be {}", shown(value), expected)};
  }
  return value.text;
}

template <class Number>
std::optional<Number> parse_number(const std::string& text) {
  const char* begin = text.c_str() + (text.starts_with('+') ? 1 : 0);
  Number number{};
  const auto [end, error] = std::from_chars(begin, text.c_str() + text.size(), number);
  if (error != std::errc() || end != text.c_str() + text.size() || text.empty()) return std::nullopt;
  return number;
}

bool read_bool(const ArgumentValue& value) {
  std::string text = scalar(value, "true or false");
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  throw Refusal{fmt::format("is {}, but must be true or false", quoted(value.text))};
}

std::string expected_integer(const Argument& argument) { return "an integer" + range_text(argument.range); }
std::string expected_number(const Argument& argument) { return "a number" + range_text(argument.range); }

// Throws Refusal unless |number|, which |text| stands for, is a finite one in the range of |argument|.
void check_range(const Argument& argument, double number, const std::string& text, const std::string& expected) {
  if (std::isfinite(number) && inside(argument.range, number)) return;
  throw Refusal{fmt::format("is {}, but must be {}", quoted(text), expected)};
}

void check_steps(double steps, const std::string& text) {
  if (steps <= 1 || std::trunc(steps) == steps) return;
  throw Refusal{
      fmt::format("is {}, but must be an integer number of steps or a fraction of all steps below 1", quoted(text))};
}

int64_t read_integer(const Argument& argument, const ArgumentValue& value) {
  const std::string expected = expected_integer(argument);
  const std::string& text = scalar(value, expected);
  std::optional<int64_t> number = parse_number<int64_t>(text);
  if (!number) {  // 1e6 is an integer too
    const std::optional<double> wide = parse_number<double>(text);
    if (wide && std::trunc(*wide) == *wide && std::abs(*wide) < 9e15) number = static_cast<int64_t>(*wide);
  }
  check_range(argument, number ? static_cast<double>(*number) : kNotANumber, text, expected);
  return *number;
}

double read_number(const Argument& argument, const ArgumentValue& value) {
  const std::string expected = expected_number(argument);
  const std::string& text = scalar(value, expected);
  const double number = parse_number<double>(text).value_or(kNotANumber);
  check_range(argument, number, text, expected);
  return number;
}

double read_steps(const Argument& argument, const ArgumentValue& value) {
  const double steps = read_number(argument, value);
  check_steps(steps, value.text);
  return steps;
}

void check_choice(std::span<const std::string_view> allowed, const std::string& text) {
  if (allowed.empty() || std::ranges::find(allowed, text) != allowed.end()) return;
  throw Refusal{not_one_of(allowed, text)};
}

std::string read_text(const Argument& argument, const ArgumentValue& value) {
  if (value.form != ArgumentValue::Form::scalar)
    throw Refusal{fmt::format("is {}, but must be a string", shown(value))};
  const std::string text(canonical_value(argument.name, value.text));
  check_choice(allowed_names(argument), text);
  return text;
}

std::vector<std::string> read_list(const Argument& argument, const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::mapping) throw Refusal{"is a mapping, but must be a list"};
  std::vector<std::string> items = value.items;
  if (value.form == ArgumentValue::Form::scalar) {  // a,b
    for (size_t begin = 0; begin < value.text.size();) {
      const size_t end = std::min(value.text.find(',', begin), value.text.size());
      if (end > begin) items.push_back(value.text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (std::string& item : items) {
    item = canonical_value(argument.name, item);
    check_choice(allowed_names(argument), item);
  }
  return items;
}

std::map<std::string, std::string> read_mapping(const ArgumentValue& value) {
  if (value.form != ArgumentValue::Form::mapping) {
    throw Refusal{fmt::format("is {}, but must be a mapping: {{name: value, ...}}", shown(value))};
  }
  std::map<std::string, std::string> pairs;
  for (const auto& [key, text] : value.pairs) {
    if (!pairs.emplace(key, text).second) throw Refusal{fmt::format("contains the key {} twice", quoted(key))};
  }
  return pairs;
}

bool is_null(const ArgumentValue& value) {
  return value.form == ArgumentValue::Form::scalar && !value.quoted &&
         (value.text == "null" || value.text == "~" || value.text == "Null" || value.text == "NULL");
}

// Throws Refusal. Null means the default.
void assign(const Argument& argument, const ArgumentValue& value, TrainingArguments* out) {
  static const TrainingArguments defaults;
  const auto set = [&](auto field, auto read) { field(*out) = is_null(value) ? field(defaults) : read(); };
  const auto set_names = [&](auto field, auto read) { field.set(*out, is_null(value) ? field(defaults) : read()); };
  std::visit(Overloaded{
                 [&](ArgumentField<bool> field) { set(field, [&] { return read_bool(value); }); },
                 [&](ArgumentField<int64_t> field) { set(field, [&] { return read_integer(argument, value); }); },
                 [&](ArgumentField<double> field) { set(field, [&] { return read_number(argument, value); }); },
                 [&](StepsField steps) { set(steps.field, [&] { return read_steps(argument, value); }); },
                 [&](ArgumentField<std::string> field) { set(field, [&] { return read_text(argument, value); }); },
                 [&](ArgumentField<std::vector<std::string>> field) {
                   set(field, [&] { return read_list(argument, value); });
                 },
                 [&](ArgumentField<std::map<std::string, std::string>> field) {
                   set(field, [&] { return read_mapping(value); });
                 },
                 [&](EnumField<std::string> field) { set_names(field, [&] { return read_text(argument, value); }); },
                 [&](EnumField<std::vector<std::string>> field) {
                   set_names(field, [&] { return read_list(argument, value); });
                 },
             },
             argument.member);
}

// Throws Refusal unless the table allows the value of |argument|.
void check_value(const Argument& argument, const TrainingArguments& arguments) {
  const std::string text = argument_text(argument, arguments);
  if (const auto* integer = std::get_if<ArgumentField<int64_t>>(&argument.member)) {
    check_range(argument, static_cast<double>((*integer)(arguments)), text, expected_integer(argument));
  } else if (const auto* number = std::get_if<ArgumentField<double>>(&argument.member)) {
    check_range(argument, (*number)(arguments), text, expected_number(argument));
  } else if (const auto* steps = std::get_if<StepsField>(&argument.member)) {
    check_range(argument, steps->field(arguments), text, expected_number(argument));
    check_steps(steps->field(arguments), text);
  } else if (const auto* choice = std::get_if<EnumField<std::string>>(&argument.member)) {
    check_choice(allowed_names(argument), (*choice)(arguments));
  } else if (const auto* list = std::get_if<EnumField<std::vector<std::string>>>(&argument.member)) {
    for (const std::string& item : (*list)(arguments)) check_choice(allowed_names(argument), item);
  }
}

bool is_neutral(const RefusedArgument& refused, const ArgumentValue& value) {
  if (is_null(value)) return true;
  if (value.form == ArgumentValue::Form::list) return value.items.empty();
  if (value.form == ArgumentValue::Form::mapping) return value.pairs.empty();
  std::string text = value.text;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::find(refused.neutral.begin(), refused.neutral.end(), text) != refused.neutral.end();
}

// Sets the argument called |name| to |value|; errors are added to the problems.
void take(const std::string& name, const ArgumentValue& value, const std::string& where, Reading* reading) {
  if (const Argument* argument = find_argument(name)) {
    const bool is_own = argument->name == name;
    if (!is_own && is_null(value)) return;  // null under an alias sets nothing
    try {
      assign(*argument, value, reading->arguments);
      reading->given.emplace_back(argument->name);
    } catch (const Refusal& refusal) {
      const std::string shown_name = is_own ? name : fmt::format("{} ({})", name, argument->name);
      reading->problems.add(where + ": " + shown_name + " " + refusal.why);
    }
  } else if (reading->extra != nullptr && reading->extra->has(name)) {
    try {
      if (value.form != ArgumentValue::Form::scalar) throw ConfigError(name + " must be one value");
      reading->extra->set(name, value.text, value.quoted);
    } catch (const ConfigError& error) {
      reading->problems.add(where + ": " + error.what());
    }
  } else if (const IgnoredArguments* ignored = find_ignored_argument(name)) {
    if (!is_null(value)) reading->ignored[ignored].push_back(name);
  } else if (const RefusedArgument* refused = find_refused_argument(name)) {
    if (is_neutral(*refused, value)) return;
    reading->problems.add(
        where + ": " +
        fmt::format("{} is {}, which Concord does not support: {}", one_line(name), shown(value), refused->instead));
  } else {
    const std::string nearest = nearest_argument(name);
    const std::string hint =
        nearest.empty() ? "`concord train --help` lists all arguments" : "did you mean " + nearest + "?";
    reading->problems.add(where + ": " + fmt::format("unknown argument {}; {}", quoted(name), hint));
  }
}

// Flattens the sections in files of other programs into separate names.
std::vector<YamlEntry> without_sections(const std::vector<YamlEntry>& entries) {
  std::vector<YamlEntry> flat;
  for (const YamlEntry& entry : entries) {
    const bool is_mapping = entry.value.form == ArgumentValue::Form::mapping;
    const std::optional<std::string> prefix = is_mapping ? section_prefix(entry.name) : std::nullopt;
    if (!prefix) {
      flat.push_back(entry);
      continue;
    }
    for (const auto& [key, text] : entry.value.pairs) flat.push_back({*prefix + key, {.text = text}, entry.line});
  }
  return flat;
}

void take_entries(const std::vector<YamlEntry>& entries, const std::string& file, Reading* reading) {
  std::map<std::string, const YamlEntry*> first_of;
  const std::vector<YamlEntry> flat = without_sections(entries);
  for (const YamlEntry& entry : flat) {
    const std::string where = fmt::format("{}:{}", file, entry.line);
    const Argument* argument = find_argument(entry.name);
    const bool is_own = argument == nullptr || argument->name == entry.name;
    if (!is_own && is_null(entry.value)) continue;
    const auto [first, is_new] = first_of.emplace(is_own ? entry.name : argument->name, &entry);
    if (is_new) {
      take(entry.name, entry.value, where, reading);
    } else {
      const YamlEntry& earlier = *first->second;
      const std::string as = earlier.name == entry.name ? "" : fmt::format(" as {}", quoted(earlier.name));
      reading->problems.add(
          where + ": " +
          fmt::format("{} was already given{} in line {}; keep one of them", quoted(entry.name), as, earlier.line));
    }
  }
}

std::vector<YamlEntry> parse_config(std::string_view text, const std::string& file) {
  return file.ends_with(".toml") ? parse_toml(text, file) : parse_yaml(text, file);
}

// One option of the command line with its value, if any.
struct Option {
  std::string name;
  std::optional<std::string> value;
};

bool is_flag(const std::string& name, const ExtraArguments* extra) {
  const Argument* argument = find_argument(name);
  if (extra != nullptr && extra->is_flag(name)) return true;
  return argument != nullptr && std::holds_alternative<ArgumentField<bool>>(argument->member);
}

// Whether the word after an option is its value: anything but another option; negative numbers are values.
bool is_value(const std::string& word) {
  return !word.starts_with("--") || (word.size() > 2 && word.find_first_not_of("-0123456789.eE+") == std::string::npos);
}

bool names_bool(const std::string& word) {
  return word == "true" || word == "false" || word == "True" || word == "False" || word == "yes" || word == "no" ||
         word == "on" || word == "off" || word == "1" || word == "0";
}

std::vector<Option> split_options(std::span<const std::string> args, const ExtraArguments* extra, Problems* problems) {
  std::vector<Option> options;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "-h") {
      options.push_back({"help", std::nullopt});
      continue;
    }
    if (!args[i].starts_with("--")) {
      problems->add("command line: " + fmt::format("unexpected {}; pass arguments as --name value", quoted(args[i])));
      continue;
    }
    const size_t equals = args[i].find('=');
    Option option{args[i].substr(2, equals == std::string::npos ? equals : equals - 2), std::nullopt};
    std::replace(option.name.begin(), option.name.end(), '-', '_');
    const bool more = i + 1 < args.size();
    if (equals != std::string::npos) {
      option.value = args[i].substr(equals + 1);
    } else if ((is_program_option(option.name) && option.name != "config") ||
               (option.name.starts_with("no_") && is_flag(option.name.substr(3), extra))) {
    } else if (more && (is_flag(option.name, extra) ? names_bool(args[i + 1]) : is_value(args[i + 1]))) {
      option.value = args[++i];
    }
    options.push_back(std::move(option));
  }
  return options;
}

// Returns name=value pairs, separated by commas, as a mapping; other text unchanged.
ArgumentValue mapping_of(const std::string& text) {
  ArgumentValue mapping{.form = ArgumentValue::Form::mapping};
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size()), equals = text.find('=', begin);
    if (equals == begin || equals >= end) return {.text = text};
    mapping.pairs.emplace_back(text.substr(begin, equals - begin), text.substr(equals + 1, end - equals - 1));
    begin = end + 1;
  }
  return mapping;
}

ArgumentValue command_line_value(const Option& option) {
  if (!option.value) return {.text = "true"};
  const bool is_yaml = option.value->starts_with('[') || option.value->starts_with('{');
  const Argument* argument = find_argument(option.name);
  const bool is_text = argument != nullptr && (std::holds_alternative<ArgumentField<std::string>>(argument->member) ||
                                               std::holds_alternative<EnumField<std::string>>(argument->member));
  if (is_yaml && !is_text) return parse_yaml_value(*option.value, option.name);
  const bool is_mapping = argument != nullptr &&
                          std::holds_alternative<ArgumentField<std::map<std::string, std::string>>>(argument->member);
  return is_mapping ? mapping_of(*option.value) : ArgumentValue{.text = *option.value};
}

void take_switch(const Option& option, CommandLine* line, Problems* problems) {
  if (option.value && *option.value != "true" && *option.value != "false") {
    problems->add(fmt::format("--{}: takes no value, but {} was given", option.name, quoted(*option.value)));
    return;
  }
  bool& flag = option.name == "help" ? line->help : option.name == "json" ? line->json : line->print_config;
  flag = option.value.value_or("true") == "true";
}

void take_option(const Option& option, CommandLine* line, Reading* reading) {
  if (option.name == "config") return;  // read before
  if (is_program_option(option.name)) return take_switch(option, line, &reading->problems);
  Option meant = option;
  const Argument* launch = find_launch_argument(option.name);
  const bool is_known = launch != nullptr || find_argument(option.name) != nullptr ||
                        (reading->extra != nullptr && reading->extra->has(option.name));
  if (!option.value && option.name.starts_with("no_") && is_flag(option.name.substr(3), reading->extra)) {
    meant = {option.name.substr(3), "false"};
  } else if (!option.value && is_known && !is_flag(option.name, reading->extra)) {
    reading->problems.add("--" + option.name + ": needs a value");
    return;
  }
  try {
    if (launch != nullptr) return set_argument(*launch, *option.value, reading->arguments);
    take(meant.name, command_line_value(meant), "command line", reading);
  } catch (const ConfigError& error) {
    reading->problems.add("command line: "s + error.what());
  }
}

}  // namespace

bool is_program_option(std::string_view name) {
  constexpr std::string_view kNames[] = {"config", "help", "json", "print_config"};
  return std::ranges::find(kNames, name) != std::ranges::end(kNames);
}

std::vector<std::string> read_yaml(std::string_view yaml, const std::string& file, TrainingArguments* arguments) {
  TrainingArguments copy = *arguments;
  Reading reading{.arguments = &copy};
  take_entries(parse_config(yaml, file), file, &reading);
  reading.problems.throw_if_any(kErrors);
  *arguments = copy;
  return reading.given;
}

CommandLine parse_command_line(std::span<const std::string> args, const ParseOptions& parse_options) {
  CommandLine line;
  Reading reading{.arguments = &line.arguments, .extra = parse_options.extra};
  for (const auto& [name, text] : parse_options.defaults) {
    take(name, command_line_value({name, text}), "args_defaults", &reading);
  }
  reading.given.clear();
  const std::vector<Option> options = split_options(args, parse_options.extra, &reading.problems);
  for (const Option& option : options) {
    if (option.name != "config") continue;
    if (!line.config.empty()) reading.problems.add("--config: "s + "was given twice; only one file can be read");
    line.config = option.value.value_or("");
    try {
      const InputFile file(line.config, "give the path of a YAML or TOML file");
      take_entries(parse_config(file.read(kMaxYaml, "a configuration"), line.config), line.config, &reading);
    } catch (const ConfigError& error) {
      reading.problems.add("--config: "s + error.what());
    }
  }
  for (const Option& option : options) take_option(option, &line, &reading);
  reading.problems.throw_if_any(kErrors);
  line.given = reading.given;
  line.notes = reading.notes();
  if (parse_options.extra != nullptr) line.arguments.extra = parse_options.extra->yaml();
  return line;
}

void set_argument(const Argument& argument, const std::string& text, TrainingArguments* arguments) {
  try {
    assign(argument, {.text = text}, arguments);
  } catch (const Refusal& refusal) {
    throw ConfigError(fmt::format("--{} {}", argument.name, refusal.why));
  }
}

void check_values(const TrainingArguments& arguments) {
  static const TrainingArguments defaults;
  Problems problems;
  for (const Argument* argument : all_arguments()) {
    if (argument_text(*argument, arguments) == argument_text(*argument, defaults)) continue;
    try {
      check_value(*argument, arguments);
    } catch (const Refusal& refusal) {
      problems.add(fmt::format("{} {}", argument->name, refusal.why));
    }
  }
  problems.throw_if_any(kErrors);
}

bool resumes_from_newest(const TrainingArguments& arguments) {
  return arguments.saving.resume_from == "true" || arguments.saving.resume_from == "latest";
}

int64_t steps_of(double steps_or_ratio, int64_t total) {
  if (steps_or_ratio >= 1) return static_cast<int64_t>(steps_or_ratio);
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps_or_ratio * static_cast<double>(total))));
}

}  // namespace concord
