#include "trainer/arguments/extra_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

template <class Number>
Number number_of(std::string_view name, const std::string& text, const char* kind) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  throw ConfigError(fmt::format("{} is {}, but must be {}", name, quoted(text), kind));
}

bool bool_of(std::string_view name, const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  throw ConfigError(fmt::format("{} is {}, but must be true or false", name, quoted(text)));
}

struct YamlOf {
  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const double* value) const {
    char text[64];
    const auto result = std::to_chars(text, text + sizeof text, *value);
    return {text, result.ptr};
  }
  std::string operator()(const std::string* value) const { return yaml_text(*value); }
};

}  // namespace

void ExtraArguments::add(const std::string& name, Target value, const std::string& help) {
  constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz0123456789_";
  if (name.empty() || name.find_first_not_of(kLetters) != std::string::npos) {
    throw ConfigError(fmt::format("{} cannot be the name of an argument; use a-z, 0-9 and _", quoted(name)));
  }
  if (has(name) || is_known_name(name)) {
    throw ConfigError(fmt::format("there is an argument {} already; choose another name for yours", quoted(name)));
  }
  list_.push_back({name, value, help});
}

const ExtraArguments::Extra* ExtraArguments::find(std::string_view name) const {
  const auto found = std::ranges::find(list_, name, &Extra::name);
  return found == list_.end() ? nullptr : &*found;
}

bool ExtraArguments::has(std::string_view name) const { return find(name) != nullptr; }

bool ExtraArguments::is_flag(std::string_view name) const {
  const Extra* found = find(name);
  return found != nullptr && std::holds_alternative<bool*>(found->value);
}

void ExtraArguments::set(std::string_view name, const std::string& text, bool is_quoted) {
  const Target& target = find(name)->value;
  if (is_quoted && !std::holds_alternative<std::string*>(target)) {
    throw ConfigError(fmt::format("{} is the string {}, but must be a number, true or false", name, quoted(text)));
  }
  if (bool* const* flag = std::get_if<bool*>(&target)) **flag = bool_of(name, text);
  if (int64_t* const* number = std::get_if<int64_t*>(&target)) **number = number_of<int64_t>(name, text, "an integer");
  if (double* const* number = std::get_if<double*>(&target)) **number = number_of<double>(name, text, "a number");
  if (std::string* const* word = std::get_if<std::string*>(&target)) **word = text;
}

std::map<std::string, std::string> ExtraArguments::yaml() const {
  std::map<std::string, std::string> texts;
  for (const Extra& extra : list_) texts[extra.name] = std::visit(YamlOf(), extra.value);
  return texts;
}

std::string ExtraArguments::help() const {
  std::string text = list_.empty() ? "" : "\nOf this program\n";
  for (const Extra& extra : list_) {
    const std::string name = fmt::format("--{} {}", extra.name, std::visit(YamlOf(), extra.value));
    text += fmt::format("  {:<46}  {}\n", name, extra.help);
  }
  return text;
}

}  // namespace concord
