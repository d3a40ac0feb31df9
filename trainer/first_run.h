// The run of a user who has nothing yet: a small Qwen2-like model on a corpus whose entropy is known, so that the
// loss can be watched on its way to a floor that no model can go below.
#pragma once

#include <string>
#include <vector>

#include "trainer/arguments/arguments.h"

namespace concord {

// Whether |line| names neither a configuration nor a model nor data: then it asks for this run.
bool is_first_run(const CommandLine& line);

// Fills in what |line| does not specify, including nproc. Names files in output_dir/input, which are not written yet.
void complete_first_run(CommandLine* line);

// Writes the corpus, the model's config.json and config.yaml (all arguments, with the floor), and sets loss_floor.
// |world|: the number of processes on all machines.
// Returns what to tell the user. Throws ConfigError for a folder that cannot be made, std::runtime_error for a full
// disk.
struct FirstRun {
  std::string config;  // the YAML file
  std::string introduction;
};
FirstRun write_first_run(TrainingArguments* arguments, int64_t world);

}  // namespace concord
