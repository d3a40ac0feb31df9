// Command lines of this program: one rank of a job, and a run that is continued.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/arguments/training_arguments.h"

namespace concord {

// Returns the path of this program and |args|, the arguments of this process, without those of its launcher
// (launch_arguments).
std::vector<std::string> rank_command(const std::vector<std::string>& args);

// The command line of this process after the program's name.
std::vector<std::string> command_line_args();

// The number of ranks of a command with --nproc (0: not given): those it starts, or those of the job that this process
// is one of already. Throws ConfigError if both are asked for.
int64_t ranks_of_command(int64_t nproc);
// This command line again, in |nproc| processes on this machine. Waits for them; returns the exit code.
int launch_ranks(int64_t nproc);

// Returns the words of a command that continues the run that `train` |args| started: without arguments that say how a
// run begins, and with --resume_from_checkpoint true. Throws ConfigError for invalid |args|.
std::vector<std::string> args_to_continue(const std::vector<std::string>& args);

// The last line of a run that has ended early and can be continued: `continue: ` and the command. Create it before the
// run starts.
class ContinueLine {
 public:
  // |before|: the words of the command before |args|, which are those of train.
  ContinueLine(const TrainingArguments& arguments, std::vector<std::string> before, std::vector<std::string> args);

  // Prints it if the run, which has exited with |exit_code|, can be continued. To standard error if the run has failed
  // or |json|, for which standard output has another use.
  void print(int exit_code, bool json) const;
  // Like print(), but after the message of |error|, which ends the program, or if |error| is that output_dir holds
  // another run.
  void print_after(const std::exception& error) const;

 private:
  struct Checkpoint {
    int64_t step;
    std::filesystem::file_time_type time;
    bool operator==(const Checkpoint&) const = default;
  };
  std::optional<Checkpoint> newest() const;
  bool has_own_checkpoint() const;
  bool is_unfinished() const;
  std::string text() const;

  const TrainingArguments arguments_;
  const std::vector<std::string> before_, args_;
  const std::optional<Checkpoint> first_;  // newest checkpoint before the run
};

}  // namespace concord
