// All that a user can say about a training run: one struct (training_arguments.h), read from YAML and from the command
// line, checked as a whole, printed back as YAML that parses to the same.
//
// Example, given const std::vector<std::string>& args, int64_t world:
//   #include <iostream>
//   CommandLine line = parse_command_line(args);                 // reads the file of --config too
//   check_arguments(line.arguments, world);                      // values, and relations between them
//   line.arguments = resolve_arguments(line.arguments, world);   // what follows from others
//   std::cout << to_yaml(line.arguments);                        // --print_config
//
// Names and defaults are those of HF's and ROLL's TrainingArguments, or Megatron's if these have none, unless a comment
// there says otherwise. Every name is described once, in the tables of table.h, from which reading, checking, printing,
// the help, the options of other subcommands and the comparison on resume follow. Other programs' names for the same
// setting are accepted; names of unsupported features are rejected with the alternative; names without effect are
// reported (foreign.cpp). Nothing here needs libtorch or waits. Threads: plain values and pure functions, except
// parse_command_line, which reads a file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/schedules.h"
#include "trainer/arguments/extra_arguments.h"
#include "trainer/arguments/training_arguments.h"

namespace concord {

// The command line of `concord train`.
struct CommandLine {
  TrainingArguments arguments;
  std::vector<std::string> given;  // names of arguments that were set, by the file or the command line
  std::string config;              // the file; empty: none
  std::vector<std::string> notes;  // names without effect, and why; printed before the run
  bool print_config = false;
  bool help = false;
  bool json = false;
};

// Reads |args|, the command line after "train": `--name value`, `--name=value`, `--flag`, `--no_flag`; '-' is '_' in
// names. The file of --config is read first, whatever the order, so that the command line wins; the last of several
// values on the command line wins. Throws one ConfigError with all mistakes: unknown names with the nearest known one,
// values of the wrong type or out of range, names of unsupported features.
struct ParseOptions {
  ExtraArguments* extra = nullptr;                   // additional arguments; their variables are set
  std::map<std::string, std::string> defaults = {};  // by name, instead of those of TrainingArguments
};
CommandLine parse_command_line(std::span<const std::string> args, const ParseOptions& options = {});

// Sets the arguments in |yaml|, or in TOML if |file| ends in .toml, and returns their names. Throws like
// parse_command_line(), also for invalid YAML, with "file:line" in front; then sets nothing.
std::vector<std::string> read_yaml(std::string_view yaml, const std::string& file, TrainingArguments* arguments);

// Returns |arguments| with those set that follow from others: gradient_accumulation_steps by global_batch_size (if
// |world| is known), eval_strategy auto, sequence_parallel of one rank. Pure; resolving twice changes nothing.
TrainingArguments resolve_arguments(TrainingArguments arguments, int64_t world);

// Throws one ConfigError with all values that the table does not allow; otherwise with all relations that do not hold,
// between arguments and with the number of processes. |world| 0: not known yet. Resolves a copy of |arguments| first.
void check_arguments(const TrainingArguments& arguments, int64_t world);

// The pipeline schedule of a step; one stage is a pipeline too.
ScheduleRequest schedule_request(const TrainingArguments& arguments);

// Return rampup_batch_size and iterations_to_skip as numbers. Throw ConfigError unless all values are integers.
std::optional<BatchRamp> batch_ramp(const StepArguments& steps);
std::vector<int64_t> skipped_steps(const StepArguments& steps);

// Every argument, in groups, each with its help as a comment. read_yaml gives the same arguments back.
std::string to_yaml(const TrainingArguments& arguments);

std::string arguments_help();  // for --help

// Whether resume_from_checkpoint asks for the newest checkpoint of output_dir.
bool resumes_from_newest(const TrainingArguments& arguments);

// Returns |steps_or_ratio|, or that fraction of |total| if it is below 1; at least 1.
int64_t steps_of(double steps_or_ratio, int64_t total);
// Returns the steps between two log lines of a run of |total| steps. If logging_steps is 0: a fiftieth of them, at
// least 1 and at most 10.
int64_t logging_steps(const LoggingArguments& logging, int64_t total);
// Returns eval_steps. If it is 0: logging_steps, or HF's 500 if that is 0 too.
double eval_steps(const TrainingArguments& arguments);

}  // namespace concord
