// Options of a subcommand that are settings of `concord train`. Type, default, range, choices and, unless a subcommand
// words it differently, help come from the table (trainer/arguments/table.h). Threads: one at a time.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/arguments/training_arguments.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace concord {

struct SettingOption {
  std::string_view name;
  std::optional<std::string_view> help = {};  // nullopt: that of the table
  std::string_view spellings = {};  // as CLI11 reads them, e.g. "--pp,--pipeline_model_parallel_size"; empty: --name
  bool shows_default = true;
};

// Adds an option to |app| that sets the argument of this name in |arguments|, which holds the default and outlives
// |app|. A mapping is given as name=value pairs, separated by commas. Parsing throws ConfigError for a value that the
// table does not allow.
CLI::Option* add_setting(CLI::App* app, const SettingOption& option, TrainingArguments* arguments);
void add_settings(CLI::App* app, std::initializer_list<SettingOption> options, TrainingArguments* arguments);

// Adds --nproc of a command that starts its own ranks.
void add_nproc(CLI::App* app, TrainingArguments* arguments);
// Adds --dtype, the type in which a model is loaded.
void add_dtype(CLI::App* app, std::string* dtype);

}  // namespace concord
