// The one description of every setting; arguments.h lists what follows from it. A new setting is a field of a struct in
// training_arguments.h, or of an options struct of core that is a member there, and an entry in one of the tables
// table_*.cpp. If only some texts are allowed, its type is an enumeration with names (core/base/enum_names.h). Threads:
// constants.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/arguments/arguments.h"

namespace concord {

// A value in TrainingArguments; field (table_columns.h) creates it from the members that lead there.
template <class Value>
struct ArgumentField {
  Value& (*of)(TrainingArguments&);
  const Value& (*of_const)(const TrainingArguments&);

  Value& operator()(TrainingArguments& arguments) const { return of(arguments); }
  const Value& operator()(const TrainingArguments& arguments) const { return of_const(arguments); }
};

// A value of an enumeration with names (core/base/enum_names.h), or a list of such values, as their names.
template <class Names>  // std::string or std::vector<std::string>
struct EnumField {
  std::span<const std::string_view> allowed;
  Names (*get)(const TrainingArguments&);
  void (*set)(TrainingArguments&, const Names&);  // names that are |allowed|

  Names operator()(const TrainingArguments& arguments) const { return get(arguments); }
};

// A number of steps: an integer from 1, or a fraction of all steps between 0 and 1.
struct StepsField {
  ArgumentField<double> field;
};

using ArgumentMember = std::variant<ArgumentField<bool>, ArgumentField<int64_t>, ArgumentField<double>, StepsField,
                                    ArgumentField<std::string>, ArgumentField<std::vector<std::string>>,
                                    ArgumentField<std::map<std::string, std::string>>, EnumField<std::string>,
                                    EnumField<std::vector<std::string>>>;

// Allowed numbers. Bounds that are |open| are excluded.
struct ArgumentRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

// How a setting is compared with a checkpoint's on resume (trainer/checkpoint/resume_check.h), and the flag that
// allows a difference.
enum class Resume {
  undecided,   // in no table: every setting states one of the others
  may_differ,  // not compared
  model,       // compared as the model's config.json
  adapter,     // compared as adapter_config.json
  optimizer,   // compared as the optimizer and its precision; --no_load_optim
  objective,   // compared by its text; --no_load_optim
  schedule,    // compared as the curves of learning rate and weight decay; --override_opt_param_scheduler
  data,        // compared as the samples and their order; --ignore_data_skip
  seed,        // compared by its text; --no_load_rng
};

struct Argument {
  std::string_view name;
  ArgumentMember member;
  std::string_view help = "";
  ArgumentRange range = {};
  bool is_input = false;  // a text that names a file or folder to read
  Resume resume = Resume::undecided;
  std::string_view below_one = "";  // the argument that takes values between 0 and 1 given under this name
};

struct ArgumentGroup {
  std::string_view title;
  std::span<const Argument> arguments;
};

std::span<const ArgumentGroup> argument_groups();
std::span<const Argument* const> all_arguments();  // every group, in order
// Arguments of a launcher, on the command line of train and launch only: not in files, nor passed on to ranks.
std::span<const Argument> launch_arguments();

// Return null if there is no such argument.
const Argument* find_argument(std::string_view name);  // by its own name, or an alias
const Argument* find_launch_argument(std::string_view name);
// Returns |argument|, or the one of its column below_one if |text| is a number between 0 and 1.
const Argument& argument_for(const Argument& argument, const std::string& text);
// Returns whether |name| is an option of `concord train` itself: --config, --help, --json or --print_config.
bool is_program_option(std::string_view name);
// Returns whether |name| is an option of the program or its launcher, an argument, or a name of another program's.
bool is_known_name(std::string_view name);
// Sets the value of |argument|, as the command line does. Throws ConfigError unless |text| has its type and is allowed.
void set_argument(const Argument& argument, const std::string& text, TrainingArguments* arguments);
// Returns |text| as a YAML string.
std::string yaml_text(const std::string& text);
// Returns the value of |argument| as YAML.
std::string argument_text(const Argument& argument, const TrainingArguments& arguments);
// Returns the names that the value of |argument| can have, or the items of a list; empty: any.
std::span<const std::string_view> allowed_names(const Argument& argument);
// Returns the help of |argument| with the names that it can have.
std::string argument_help(const Argument& argument);
// Returns name and value, as YAML, of every argument.
std::vector<std::pair<std::string, std::string>> printed_arguments(const TrainingArguments& arguments);
// Returns the names of the settings that differ from those of a run of |world| processes for which none is given.
std::set<std::string> changed_arguments(const TrainingArguments& arguments, int64_t world);
// Returns the values of the arguments that name an input. Some are not paths: a tokenizer may be a built-in name.
std::vector<std::string> input_paths(const TrainingArguments& arguments);
// Returns the known name with the smallest edit distance; empty if none is near.
std::string nearest_argument(std::string_view name);

}  // namespace concord
