// A configuration file as a flat list: names, values, lines. Everything else that YAML can do is refused, so that the
// cost of any file is proportional to its length: anchors and aliases, tags, several documents, nesting.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace concord {

struct ArgumentValue {
  enum class Form { scalar, list, mapping };
  Form form = Form::scalar;
  std::string text = {};                // of a scalar
  bool quoted = false;                  // in YAML: text, whatever it looks like
  std::vector<std::string> items = {};  // of a list
  // Keys and values of a mapping. Keys of inner mappings are joined by '.', items of inner lists by ','.
  std::vector<std::pair<std::string, std::string>> pairs = {};
  bool is_nested = false;  // a mapping that contains mappings or lists
};

struct YamlEntry {
  std::string name;
  ArgumentValue value;
  int line = 0;  // from 1
};

inline constexpr size_t kMaxYaml = 1 << 20;

// Throws ConfigError, "file:line: ...", for the first control character, which a terminal would interpret.
void reject_control_characters(std::string_view text, const std::string& file);

// Throws ConfigError, "file:line: ...", for the first thing that cannot be read.
std::vector<YamlEntry> parse_yaml(std::string_view text, const std::string& file);

// Parses a value on the command line that is written as YAML: [a, b], {a: 1}. Errors mention |name|.
ArgumentValue parse_yaml_value(const std::string& text, const std::string& name);

}  // namespace concord
