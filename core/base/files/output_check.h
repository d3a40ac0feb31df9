// Checks that a command may write to the path that the user has given. Existing files are rejected without --overwrite;
// the command's own inputs always are, by whatever name or link, and so is the folder of a running job
// (core/base/files/run_lock.h). Threads: any.
#pragma once

#include <string>
#include <vector>

namespace concord {

struct OutputRules {
  bool overwrite = false;                // --overwrite was given
  std::vector<std::string> inputs = {};  // files and folders that the command reads; they need not exist
  bool in_live_run = false;              // accept the folder of a running job, since this process may belong to it
};

// Throws ConfigError unless |path| can become a new file, or an existing regular file can be replaced. Messages
// name |argument| ("--out"). An empty |path|, and "-" for standard output, pass.
void check_output_file(const std::string& argument, const std::string& path, const OutputRules& rules);

struct OutputArgument {
  std::string argument;  // "--svg"
  std::string path;
};

// Checks each file like check_output_file(), and that no two arguments name the same one, standard output included.
void check_output_files(const std::vector<OutputArgument>& outputs, const OutputRules& rules);

// Throws ConfigError if an input of |rules| is in the folder |path|, which |argument| would replace.
void check_replaced_folder(const std::string& argument, const std::string& path, const OutputRules& rules);

// Throws ConfigError with host and pid if |path| is in the output folder of a running job.
void check_outside_live_runs(const std::string& argument, const std::string& path);

}  // namespace concord
