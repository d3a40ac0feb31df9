#include "trainer/arguments/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/files/input_file.h"
#include "core/base/quoted.h"
#include "trainer/arguments/foreign/foreign.h"
#include "trainer/arguments/foreign/model_description.h"
#include "trainer/arguments/problems.h"
#include "trainer/arguments/table.h"
#include "trainer/arguments/toml.h"
#include "trainer/arguments/values.h"
#include "trainer/arguments/yaml.h"

namespace concord {
namespace {

using std::string_literals::operator""s;

constexpr const char* kErrors = "errors in the arguments";
constexpr const char* kCommandLine = "command line";

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
  std::set<const Argument*> below_one = {};  // the arguments of that column that were set so
  size_t given_in_file = 0;                  // how many of them
  Problems problems = {};
  std::map<std::string_view, std::vector<std::string>> ignored = {};  // by reason
  ForeignValues converted = {};                                       // applied when all other names are read
  std::map<std::string, std::string> places = {};                     // file and line, or the command line
  ModelDescription model = {};
  std::vector<std::string> conversion_notes = {};

  std::vector<std::string> notes() const {
    std::vector<std::string> lines = conversion_notes;
    for (const auto& [why, names] : ignored) {
      lines.push_back(
          fmt::format("{} {} no effect: {}", fmt::join(names, ", "), names.size() == 1 ? "has" : "have", why));
    }
    return lines;
  }
};

bool is_neutral(const NotSupported& refused, const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::mapping) return value.pairs.empty();
  std::string text =
      value.form == ArgumentValue::Form::list ? fmt::format("{}", fmt::join(value.items, ",")) : value.text;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool is_empty_list = value.form == ArgumentValue::Form::list && value.items.empty();
  return is_empty_list || std::ranges::find(refused.neutral, text) != refused.neutral.end();
}

// Sets |argument| to |value|, which was given as |name|; errors are added to the problems.
void take_argument(const Argument& argument, const std::string& name, const ArgumentValue& value,
                   const std::string& where, Reading* reading) {
  try {
    assign(argument, value, reading->arguments);
    reading->given.emplace_back(argument.name);
  } catch (const Refusal& refusal) {
    const std::string shown_name = argument.name == name ? name : fmt::format("{} ({})", name, argument.name);
    reading->problems.add(where + ": " + shown_name + " " + refusal.why);
  }
}

void take_extra(const std::string& name, const ArgumentValue& value, const std::string& where, Reading* reading) {
  try {
    if (value.form != ArgumentValue::Form::scalar) throw ConfigError(name + " must be one value");
    reading->extra->set(name, value.text, value.quoted);
  } catch (const ConfigError& error) {
    reading->problems.add(where + ": " + error.what());
  }
}

// Null under a name of another program sets nothing.
void take_foreign(const ForeignSetting& setting, const std::string& name, const ArgumentValue& value,
                  const std::string& where, Reading* reading) {
  if (is_null(value)) return;
  std::visit(
      Overloaded{
          [&](const SameArgument& same) { take_argument(*find_argument(same.argument), name, value, where, reading); },
          [&](const Converted&) {
            reading->converted[name] = value;
            reading->places[name] = where;
          },
          [&](const DescribesModel&) {
            reading->converted[name] = value;  // for conversions that need it
            reading->model.add(name, value, where);
          },
          [&](const WithoutEffect& ignored) { reading->ignored[ignored.why].push_back(name); },
          [&](const NotSupported& refused) {
            if (is_neutral(refused, value)) {
              reading->converted[name] = value;
              return;
            }
            reading->problems.add(where + ": " +
                                  fmt::format("{} is {}, which Concord does not support: {}", one_line(name),
                                              shown(value), refused.instead));
          },
      },
      setting.meaning);
}

// Returns the argument that |value|, given as |name|, is for; null if there is none. Other programs' names have one
// meaning only.
const Argument* argument_of(const std::string& name, const ArgumentValue& value) {
  const Argument* argument = find_argument(name);
  return argument == nullptr || argument->name != name ? argument : &argument_for(*argument, value.text);
}

// Resets the argument for the other form, if a number and a fraction were given as |own|: the last one holds.
void forget_other_form(const Argument& own, const Argument& meant, Reading* reading) {
  if (&meant != &own) {
    assign(own, {.text = "null"}, reading->arguments);
    reading->below_one.insert(&meant);
  } else if (const Argument* other = find_argument(own.below_one); reading->below_one.erase(other) > 0) {
    assign(*other, {.text = "null"}, reading->arguments);
  }
}

// Sets the argument called |name| to |value|; errors are added to the problems.
void take(const std::string& name, const ArgumentValue& value, const std::string& where, Reading* reading) {
  const ForeignSetting* foreign = find_foreign(name);
  if (const Argument* own = find_argument(name); own != nullptr && own->name == name) {
    const Argument& meant = argument_for(*own, value.text);
    take_argument(meant, name, value, where, reading);
    forget_other_form(*own, meant, reading);
  } else if (reading->extra != nullptr && reading->extra->has(name)) {
    take_extra(name, value, where, reading);
  } else if (foreign != nullptr) {
    take_foreign(*foreign, name, value, where, reading);
  } else {
    const std::string nearest = nearest_argument(name);
    const std::string hint =
        nearest.empty() ? "`concord train --help` lists all arguments" : "did you mean " + nearest + "?";
    reading->problems.add(where + ": " + fmt::format("unknown argument {}; {}", quoted(name), hint));
  }
}

// Sets what the setting |name| of another program becomes here, unless the argument was given by its own name.
void convert(const std::string& name, const Converted& converted, std::span<const std::string> given,
             Reading* reading) {
  const std::string& where = reading->places.at(name);
  try {
    const Conversion conversion =
        converted.convert(reading->converted.at(name), *reading->arguments, reading->converted);
    for (const auto& [argument, text] : conversion.arguments) {
      if (std::ranges::find(given, argument) != given.end()) continue;
      take_argument(*find_argument(argument), name, {.text = text}, where, reading);
    }
    if (!conversion.note.empty()) reading->conversion_notes.push_back(name + ": " + conversion.note);
  } catch (const Refusal& refusal) {
    reading->problems.add(where + ": " + name + " " + refusal.why);
  }
}

// Applies what has to wait until all names are read.
void finish(Reading* reading) {
  const std::vector<std::string> given = reading->given;
  for (const auto& [name, where] : reading->places) {  // what the command line says precedes names in the file
    const std::span names = where == kCommandLine ? std::span(given).subspan(reading->given_in_file) : std::span(given);
    convert(name, std::get<Converted>(find_foreign(name)->meaning), names, reading);
  }
  reading->model.apply(reading->arguments, &reading->problems);
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
    for (const auto& [key, text] : entry.value.pairs) {
      flat.push_back({without_plain_sections(*prefix + key), {.text = text}, entry.line});
    }
  }
  return flat;
}

void take_entries(const std::vector<YamlEntry>& entries, const std::string& file, Reading* reading) {
  std::map<std::string, const YamlEntry*> first_of;
  const std::vector<YamlEntry> flat = without_sections(entries);
  for (const YamlEntry& entry : flat) {
    const std::string where = fmt::format("{}:{}", file, entry.line);
    const Argument* argument = argument_of(entry.name, entry.value);
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
  std::vector<std::string> more = {};  // further words of a list: 0.3 a 0.7 b
};

bool takes_list(const std::string& name) {
  const Argument* argument = find_argument(name);
  if (argument == nullptr) {
    const ForeignSetting* foreign = find_foreign(name);
    return foreign != nullptr && takes_list(*foreign);
  }
  return std::holds_alternative<ArgumentField<std::vector<std::string>>>(argument->member) ||
         std::holds_alternative<EnumField<std::vector<std::string>>>(argument->member);
}

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
      const bool is_list = takes_list(option.name);
      while (is_list && i + 1 < args.size() && is_value(args[i + 1])) option.more.push_back(args[++i]);
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
  if (!option.more.empty()) {
    ArgumentValue list{.form = ArgumentValue::Form::list, .items = {*option.value}};
    list.items.insert(list.items.end(), option.more.begin(), option.more.end());
    return list;
  }
  const bool is_yaml = option.value->starts_with('[') || option.value->starts_with('{');
  const Argument* argument = find_argument(option.name);
  const ForeignSetting* foreign = find_foreign(option.name);
  const bool is_text = argument != nullptr
                           ? std::holds_alternative<ArgumentField<std::string>>(argument->member) ||
                                 std::holds_alternative<EnumField<std::string>>(argument->member)
                           : foreign != nullptr && std::holds_alternative<DescribesModel>(foreign->meaning);
  const bool is_quoted = option.value->size() > 1 && option.value->front() == '\'' && option.value->back() == '\'';
  if (is_yaml && !is_text) return parse_yaml_value(*option.value, option.name);
  const bool is_mapping = argument != nullptr &&
                          std::holds_alternative<ArgumentField<std::map<std::string, std::string>>>(argument->member);
  if (is_mapping) return mapping_of(*option.value);
  // Scripts that keep '99,1,0' in an array pass the quotes on.
  return {.text = is_quoted ? option.value->substr(1, option.value->size() - 2) : *option.value};
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
    take(meant.name, command_line_value(meant), kCommandLine, reading);
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
  finish(&reading);
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
  reading.given_in_file = reading.given.size();
  for (const Option& option : options) take_option(option, &line, &reading);
  finish(&reading);
  reading.problems.throw_if_any(kErrors);
  line.given = reading.given;
  line.notes = reading.notes();
  const LrArguments& lr = line.arguments.lr;
  if (lr.lr_scheduler_type == "constant" && (lr.warmup_steps > 0 || lr.warmup_ratio > 0 || lr.warmup_samples > 0)) {
    line.notes.push_back("lr_scheduler_type: constant begins with the warm-up, as in Megatron and ROLL; HF ignores it");
  }
  if (parse_options.extra != nullptr) line.arguments.extra = parse_options.extra->yaml();
  return line;
}

void set_argument(const Argument& argument, const std::string& text, TrainingArguments* arguments) {
  try {
    assign(argument_for(argument, text), {.text = text}, arguments);
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
