// The one description of every argument; arguments.h says what is made of it. A new setting is a field of a struct in
// training_arguments.h, or of an options struct of core that is a member there, and a line in table.cpp. Threads:
// constants.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/arguments/arguments.h"

namespace concord {

// A value somewhere in TrainingArguments; field in table.cpp makes it from the members on the way there.
template <class Value>
struct ArgumentField {
  Value& (*of)(TrainingArguments&);
  const Value& (*of_const)(const TrainingArguments&);

  Value& operator()(TrainingArguments& arguments) const { return of(arguments); }
  const Value& operator()(const TrainingArguments& arguments) const { return of_const(arguments); }
};

// A number that counts steps: a whole one from 1, or a share of all steps between 0 and 1.
struct StepsField {
  ArgumentField<double> field;
};

using ArgumentMember = std::variant<ArgumentField<bool>, ArgumentField<int64_t>, ArgumentField<double>, StepsField,
                                    ArgumentField<std::string>, ArgumentField<std::vector<std::string>>,
                                    ArgumentField<std::map<std::string, std::string>>>;

// Of a number; |open| ends do not belong to it.
struct ArgumentRange {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  bool open_least = false;
  bool open_most = false;
};

struct Argument {
  std::string_view name;
  ArgumentMember member;
  std::string_view help;
  ArgumentRange range = {};
  std::vector<std::string_view> choices = {};  // of a text or of the items of a list; empty: any
  bool is_input = false;                       // a text that names a file or folder to read, where there is one
};

struct ArgumentGroup {
  std::string_view title;
  std::vector<Argument> arguments;
};

// What other programs call |argument|; values mean the same there.
struct ArgumentAlias {
  std::string_view name;
  std::string_view argument;
};
// What they call a value of it.
struct ValueAlias {
  std::string_view argument;
  std::string_view value;
  std::string_view meaning;
};

// Names from other programs that have no effect here, whatever their value. They are reported and do not end a run. A
// '*' in a name matches any letters.
struct IgnoredArguments {
  std::string_view why;
  std::vector<std::string_view> names;
};

// A name that users of other programs know, for something that does not exist or has another form here. The values in
// |neutral| request what happens anyway, and are accepted; any other is refused with |instead|.
struct RefusedArgument {
  std::string_view name;  // with '*' as above
  std::vector<std::string_view> neutral;
  std::string_view instead;
};

std::span<const ArgumentGroup> argument_groups();
std::span<const ArgumentAlias> argument_aliases();
std::span<const IgnoredArguments> ignored_arguments();
std::span<const RefusedArgument> refused_arguments();

// Each is null if there is none. Where a name is both ignored and refused by a '*', it is ignored.
const Argument* find_argument(std::string_view name);  // by any of its names
const IgnoredArguments* find_ignored_argument(std::string_view name);
const RefusedArgument* find_refused_argument(std::string_view name);
// |value| of |argument| under the name used here; itself if it has no other name.
std::string_view canonical_value(std::string_view argument, std::string_view value);
// What is put before the names in a mapping called |name| where such mappings are sections of a file of another
// program: "training." for torchtitan's, "" for Megatron's.
std::optional<std::string> section_prefix(std::string_view name);
// Whether it is one of the above.
bool is_known_name(std::string_view name);
// |text| as a string of YAML.
std::string yaml_text(const std::string& text);
// Its value as YAML has it.
std::string argument_text(const Argument& argument, const TrainingArguments& arguments);
// The name and the text of every argument.
std::vector<std::pair<std::string, std::string>> printed_arguments(const TrainingArguments& arguments);
// The values of those that name something to read. Not all of them are there: a tokenizer may have a name of its own.
std::vector<std::string> input_paths(const TrainingArguments& arguments);
// The known name with the fewest letters changed; empty if none is near.
std::string nearest_argument(std::string_view name);

}  // namespace concord
