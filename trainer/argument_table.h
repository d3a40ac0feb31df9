// The one description of every argument; arguments.h says what is made of it. Threads: constants.
#pragma once

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/arguments.h"

namespace concord {

// A number that counts steps: a whole one from 1, or a share of all steps between 0 and 1.
struct StepsMember {
  double TrainingArguments::* member;
};

using ArgumentMember =
    std::variant<bool TrainingArguments::*, int64_t TrainingArguments::*, double TrainingArguments::*, StepsMember,
                 std::string TrainingArguments::*, std::vector<std::string> TrainingArguments::*,
                 std::map<std::string, std::string> TrainingArguments::*>;

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

// A name that users of HF, ROLL or Megatron know, for something that is not there. The values in |neutral| ask for what
// happens anyway, and are taken; any other is refused with |instead|.
struct RefusedArgument {
  std::string_view name;  // may end in '*': all names that begin like it
  std::vector<std::string_view> neutral;
  std::string_view instead;
};

std::span<const ArgumentGroup> argument_groups();
std::span<const RefusedArgument> refused_arguments();

const Argument* find_argument(std::string_view name);                 // null where there is none
const RefusedArgument* find_refused_argument(std::string_view name);  // null where there is none
// Its value as YAML has it.
std::string argument_text(const Argument& argument, const TrainingArguments& arguments);
// The values of those that name something to read. Not all of them are there: a tokenizer may have a name of its own.
std::vector<std::string> input_paths(const TrainingArguments& arguments);
// The known name with the fewest letters changed; empty where none is near.
std::string nearest_argument(std::string_view name);

}  // namespace concord
