#include "trainer/arguments/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/base/enum_names.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

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
  if (value.is_nested) throw Refusal{"has nested values; use a mapping of plain values"};
  std::map<std::string, std::string> pairs;
  for (const auto& [key, text] : value.pairs) {
    if (!pairs.emplace(key, text).second) throw Refusal{fmt::format("contains the key {} twice", quoted(key))};
  }
  return pairs;
}

}  // namespace

std::string shown(const ArgumentValue& value) {
  if (value.form == ArgumentValue::Form::list) return "a list";
  if (value.form == ArgumentValue::Form::mapping) return "a mapping";
  return (value.quoted ? "the string " : "") + quoted(value.text);
}

bool is_null(const ArgumentValue& value) {
  return value.form == ArgumentValue::Form::scalar && !value.quoted &&
         (value.text == "null" || value.text == "~" || value.text == "Null" || value.text == "NULL");
}

bool read_flag(const ArgumentValue& value) {
  std::string text = scalar(value, "true or false");
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "yes" || text == "on" || text == "1") return true;
  if (text == "false" || text == "no" || text == "off" || text == "0") return false;
  throw Refusal{fmt::format("is {}, but must be true or false", quoted(value.text))};
}

std::optional<double> as_number(const std::string& text) { return parse_number<double>(text); }

void assign(const Argument& argument, const ArgumentValue& value, TrainingArguments* out) {
  static const TrainingArguments defaults;
  const auto set = [&](auto field, auto read) { field(*out) = is_null(value) ? field(defaults) : read(); };
  const auto set_names = [&](auto field, auto read) { field.set(*out, is_null(value) ? field(defaults) : read()); };
  std::visit(Overloaded{
                 [&](ArgumentField<bool> field) { set(field, [&] { return read_flag(value); }); },
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

}  // namespace concord
