// All that a user can say about a training run: one struct (training_arguments.h), read from YAML and from the command
// line, checked as a whole, printed back as YAML that parses to the same.
//
// Example, given const std::vector<std::string>& words, int64_t world:
//   #include <iostream>
//   CommandLine line = parse_command_line(words);                // reads the file of --config too
//   check_arguments(line.arguments, world);                      // relations between them
//   line.arguments = resolve_arguments(line.arguments, world);   // what follows from others
//   std::cout << to_yaml(line.arguments);                        // --print_config
//
// Names are those of HF's and ROLL's TrainingArguments, and where these have none Megatron's; so are the defaults, but
// for those whose comment there says otherwise. Every name is described once, in table.cpp, from which reading,
// checking, printing and the help follow. Names that other programs have for the same are taken; names of features that
// Concord does not have are refused with what is there instead; names that change nothing here are told to the user
// (foreign.cpp). Nothing here needs libtorch or waits. Threads: plain values and pure functions, but for
// parse_command_line, which reads a file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mesh/rendezvous_options.h"
#include "core/schedule/schedules.h"
#include "trainer/arguments/extra_arguments.h"
#include "trainer/arguments/training_arguments.h"

namespace concord {

// What `concord train` was called with.
struct CommandLine {
  TrainingArguments arguments;
  std::vector<std::string> given;  // names of arguments that were set, by the file or the command line
  std::string config;              // the file, where there was one
  std::vector<std::string> notes;  // what a user should hear before the run: names that change nothing here, and why
  bool print_config = false;
  bool help = false;
  bool json = false;
};

// Reads |words|, the command line after "train": `--name value`, `--name=value`, `--flag`, `--no_flag`; '-' is '_' in
// names. The file of --config is read first, whatever the order, so that the command line wins; of two values on the
// command line the later one does. Throws one ConfigError with all that is wrong: unknown names with the nearest known
// one, values of the wrong type or outside of their range, names of features that are not there.
struct ParseOptions {
  ExtraArguments* extra = nullptr;                   // names of the program's own; their variables are set
  std::map<std::string, std::string> defaults = {};  // by name, instead of those of TrainingArguments
};
CommandLine parse_command_line(std::span<const std::string> words, const ParseOptions& options = {});

// Sets what |yaml| says in |arguments|; returns the names it sets. |file| is for messages. Throws as above, also for
// text that is not YAML, with "file:line" in front; nothing is set then. Where |file| ends in .toml, it is TOML.
std::vector<std::string> read_yaml(std::string_view yaml, const std::string& file, TrainingArguments* arguments);

// Returns |arguments| with those set that follow from others: gradient_accumulation_steps by global_batch_size (if
// |world| is known), eval_strategy auto, sequence_parallel of one rank. Pure; resolving twice changes nothing.
TrainingArguments resolve_arguments(TrainingArguments arguments, int64_t world);

// Throws one ConfigError with all relations that do not hold, between arguments and with the number of processes;
// |world| 0: not known yet. Resolves a copy of |arguments| first.
void check_arguments(const TrainingArguments& arguments, int64_t world);

// The pipeline schedule of a step; one stage is a pipeline too.
ScheduleRequest schedule_request(const TrainingArguments& arguments);

// rampup_batch_size and iterations_to_skip as numbers. Throw ConfigError for what are none.
std::optional<BatchRamp> batch_ramp(const StepArguments& steps);
std::vector<int64_t> skipped_steps(const StepArguments& steps);

// Every argument, in groups, each with its help as a comment. read_yaml gives the same arguments back.
std::string to_yaml(const TrainingArguments& arguments);

std::string arguments_help();  // for --help

// Whether resume_from_checkpoint asks for the newest checkpoint of output_dir.
bool resumes_from_newest(const TrainingArguments& arguments);

// A number of steps from one that may be a share of |total|: at least 1.
int64_t steps_of(double steps_or_ratio, int64_t total);

}  // namespace concord
