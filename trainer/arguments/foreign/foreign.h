// The table of settings of other programs and their meaning here, from which reading (arguments.h) and the page
// docs/foreign-settings.md follow. A name is an alias of an argument, is converted into other arguments, describes the
// model, has no effect, or is refused with what to use instead. The rules, in this order:
// - what chooses an implementation has no effect if results are the same;
// - what describes the model must agree with its config.json, or makes one (model_description.h);
// - what has a counterpart here is an alias or converted;
// - what changes results and does not exist here is refused.
// Names of torchtitan and of DeepSpeed's files are prefixed with their section: "training.steps". Threads: constants.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/enum_names.h"
#include "trainer/arguments/training_arguments.h"
#include "trainer/arguments/yaml.h"

namespace concord {

// Programs that share a name are listed under the first of them.
enum class ForeignProgram { huggingface, trl, llama_factory, roll, megatron, flagscale, torchtitan };
template <>
inline constexpr std::string_view kEnumNames<ForeignProgram>[] = {
    "Hugging Face Trainer", "TRL", "LLaMA-Factory", "ROLL", "Megatron", "FlagScale", "torchtitan"};

// The same setting under another name: values have the same meaning and unit.
struct SameArgument {
  std::string_view argument;
};

// Arguments here, with their values as on the command line, that express a setting of another program.
struct Conversion {
  std::vector<std::pair<std::string, std::string>> arguments = {};
  std::string note = {};  // what the user should know; empty: nothing
};

using ForeignValues = std::map<std::string, ArgumentValue, std::less<>>;

struct Converted {
  std::string_view as;  // what it becomes, for the page: "recompute_granularity: full"
  // Throws Refusal (values.h). |arguments| are those that all other names set; |given| are all settings that are
  // converted. Arguments that are given by their own names, or by an alias, are not changed by a conversion.
  Conversion (*convert)(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues& given);
  bool takes_list = false;
};

// Describes the model; model_description.h knows what its values mean.
struct DescribesModel {};

struct WithoutEffect {
  std::string_view why;
};

// The values in |neutral|, in lower case, request what happens anyway, and are accepted.
struct NotSupported {
  std::vector<std::string_view> neutral;
  std::string_view instead;
};

struct ForeignSetting {
  std::string_view name;  // may contain a '*', which matches any characters
  ForeignProgram program;
  std::variant<SameArgument, Converted, DescribesModel, WithoutEffect, NotSupported> meaning;
};

std::span<const ForeignSetting> foreign_settings();

// Whether an option of the command line takes all words up to the next one, as lists of Megatron's do.
bool takes_list(const ForeignSetting& setting);

// Returns null if no program has |name|. A name without '*' precedes patterns, and patterns earlier in the table later
// ones.
const ForeignSetting* find_foreign(std::string_view name);

// Another program's name for a value of |argument|.
struct ValueAlias {
  std::string_view argument;
  std::string_view value;
  std::string_view meaning;
};
std::span<const ValueAlias> value_aliases();
// Returns the name used here for |value| of |argument|, or |value| if it has no other name.
std::string_view canonical_value(std::string_view argument, std::string_view value);

// Returns the prefix of the names in a mapping called |name|, if such mappings are sections in files of another
// program: "training." for torchtitan, "" for Megatron and ROLL.
std::optional<std::string> section_prefix(std::string_view name);

// Returns |name| without the sections at its start that only group settings: "strategy_args.strategy_config.fp16".
std::string without_plain_sections(std::string name);

// Returns docs/foreign-settings.md.
std::string foreign_settings_page();

}  // namespace concord
