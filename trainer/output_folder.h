// The folder a run writes to. One run each: what another run has left there is not mixed with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace concord {

// Makes |folder| where it is not there, and looks whether it can be written to. What another run has left
// (metrics.jsonl, trainer_state.json, checkpoints, ...) is removed with |overwrite|, else refused; other files stay.
// Throws ConfigError. For one process of a job.
void prepare_output_folder(const std::filesystem::path& folder, bool overwrite);

// The same without changing anything.
void check_output_folder(const std::filesystem::path& folder, bool overwrite);

// folder/checkpoint-<step>, oldest first.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
// Removes the oldest but |limit| of them; 0: none. For one process of a job. Throws std::runtime_error.
void keep_newest(const std::filesystem::path& folder, int64_t limit);
std::filesystem::path checkpoint_folder(const std::filesystem::path& folder, int64_t step);

}  // namespace concord
