#include "trainer/arguments/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <optional>
#include <sstream>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr int kDeepest = 6;

// Handles the parser's events, so that nothing is built from rejected input. depth_ 1 is the list of names, 2 a value,
// more a mapping or a list in a mapping.
class EntryReader : public YAML::EventHandler {
 public:
  explicit EntryReader(std::string file) : file_(std::move(file)) {}

  std::vector<YamlEntry> take() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    refuse(mark, fmt::format("the anchor {} is not supported; write the value itself where it is needed",
                             quoted("&" + name)));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases (*name) are not supported; write the value itself");
  }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { add_scalar(mark, "null", false); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& text) override {
    if (!tag.empty() && tag != "?" && tag != "!") {
      refuse(mark, fmt::format("the tag {} is not supported; write the value without it", quoted(tag)));
    }
    add_scalar(mark, text, tag == "!");
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (depth_ == 0) refuse(mark, "expected `name: value` lines, got a list");
    begin_value(mark, ArgumentValue::Form::list);
  }
  void OnSequenceEnd() override {
    if (--depth_ > 1) add_scalar({}, std::exchange(inner_list_, std::nullopt).value_or(""), false);
  }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (depth_ == 0) {
      depth_ = 1;
    } else {
      begin_value(mark, ArgumentValue::Form::mapping);
    }
  }
  void OnMapEnd() override {
    if (--depth_ > 1) prefixes_.pop_back();
  }

 private:
  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& why) const {
    throw ConfigError(fmt::format("{}:{}: {}", file_, mark.line + 1, why));
  }

  void begin_value(const YAML::Mark& mark, ArgumentValue::Form form) {
    if (depth_ > 1) return begin_inner_value(mark, form);
    if (!have_name_) refuse(mark, "expected a name, got a list or a mapping");
    have_name_ = false;
    entries_.back().value.form = form;
    depth_ = 2;
    have_key_ = false;
    prefixes_ = {""};
  }

  void begin_inner_value(const YAML::Mark& mark, ArgumentValue::Form form) {
    const bool is_in_mapping = entries_.back().value.form == ArgumentValue::Form::mapping && have_key_ && !inner_list_;
    if (!is_in_mapping || depth_ == kDeepest) {
      refuse(mark, "nested values are not supported; use a list or a mapping of plain values");
    }
    entries_.back().value.is_nested = true;
    ++depth_;
    if (form == ArgumentValue::Form::list) {
      inner_list_ = "";
    } else {
      prefixes_.push_back(prefixes_.back() + key_ + ".");
      have_key_ = false;
    }
  }

  void add_scalar(const YAML::Mark& mark, const std::string& text, bool quoted) {
    if (depth_ == 0) {
      if (text == "null" && !quoted) return;  // an empty file
      refuse(mark, fmt::format("expected `name: value` lines, got {}", concord::quoted(text)));
    }
    if (depth_ == 1) {
      add_to_names(mark, text, quoted);
    } else if (inner_list_) {
      *inner_list_ += (inner_list_->empty() ? "" : ",") + text;
    } else if (entries_.back().value.form == ArgumentValue::Form::list) {
      entries_.back().value.items.push_back(text);
    } else if (!have_key_) {
      key_ = text;
      have_key_ = true;
    } else {
      entries_.back().value.pairs.emplace_back(prefixes_.back() + key_, text);
      have_key_ = false;
    }
  }

  void add_to_names(const YAML::Mark& mark, const std::string& text, bool quoted) {
    if (!have_name_) {
      entries_.push_back({.name = text, .value = {}, .line = mark.line + 1});
    } else {
      entries_.back().value.text = text;
      entries_.back().value.quoted = quoted;
    }
    have_name_ = !have_name_;
  }

  std::string file_;
  std::vector<YamlEntry> entries_;
  int depth_ = 0;
  bool have_name_ = false;  // the last entry has no value yet
  bool have_key_ = false;   // the last key of a mapping has no value yet
  std::string key_;
  std::vector<std::string> prefixes_;      // keys of each open mapping begin with its prefix
  std::optional<std::string> inner_list_;  // the items so far of a list in a mapping
};

// YAML forbids tabs in indentation, and parsers handle them differently.
void refuse_tabs(std::string_view text, const std::string& file) {
  int line = 1;
  bool in_front = true;
  for (const char letter : text) {
    if (letter == '\t' && in_front) {
      throw ConfigError(fmt::format("{}:{}: the line is indented with a tab; YAML allows only spaces", file, line));
    }
    if (letter == '\n') {
      ++line;
      in_front = true;
    } else if (letter != ' ') {
      in_front = false;
    }
  }
}

}  // namespace

void reject_control_characters(std::string_view text, const std::string& file) {
  int line = 1;
  for (const char letter : text) {
    if (letter == '\n') ++line;
    const auto code = static_cast<unsigned char>(letter);
    if ((code < 0x20 && letter != '\n' && letter != '\r' && letter != '\t') || code == 0x7f) {
      throw ConfigError(
          fmt::format("{}:{}: unexpected control character (code {}); is this a YAML file?", file, line, int{code}));
    }
  }
}

std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxYaml) {
    throw ConfigError(
        fmt::format("{}: file has {} bytes; the limit for a configuration is {}", file, text.size(), kMaxYaml));
  }
  reject_control_characters(text, file);
  refuse_tabs(text, file);
  std::istringstream stream{std::string(text)};
  EntryReader reader(file);
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(reader)) {
      EntryReader second(file);
      if (parser.HandleNextDocument(second)) {
        throw ConfigError(fmt::format("{}: file contains several documents (---); expected one", file));
      }
    }
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("{}:{}: invalid YAML: {}", file, error.mark.line + 1, one_line(error.msg)));
  }
  return reader.take();
}

ArgumentValue parse_yaml_value(const std::string& text, const std::string& name) {
  const std::vector<YamlEntry> entries = parse_yaml("value: " + text, "--" + name);
  if (entries.size() != 1) throw ConfigError(fmt::format("--{}: {} is not a single value", name, quoted(text)));
  return entries.front().value;
}

}  // namespace concord
