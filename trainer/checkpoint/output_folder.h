// The folder a run writes to. One run per folder: files of different runs are not mixed.
//
// A run leaves its mark there, kRunMark, and nothing is ever removed from a folder without it: what Concord did not
// write is not Concord's to remove. An attempt that a launcher has restarted finds the mark of its own job, continues
// in the folder, and removes nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/files/run_lock.h"
#include "trainer/arguments/arguments.h"

namespace concord {

inline constexpr const char* kRunMark = ".concord-run.json";
inline constexpr const char* kLeaderFile = "leader.txt";  // of the launchers of a job on several machines

struct OutputRequest {
  std::filesystem::path folder;
  bool overwrite = false;                          // an existing run may be deleted
  std::vector<std::filesystem::path> inputs = {};  // what this run reads; must not be among what would be removed
  std::string job = {};                            // the same in every attempt of a job, see output_request
  bool is_unique_job = true;                       // no other job has that name; false: torchrun's, which users choose
  bool is_restarted = false;                       // not the first attempt
  bool resumes = false;                            // continues the run that is there, if it can be resumed
  std::filesystem::path resume_from = {};          // the checkpoint that was named; empty: the newest of |folder|
};

// Whether the launcher (ours or torchrun) has started this process after an attempt that failed.
bool is_restarted_attempt();

// What |arguments| ask for. Inputs are those that they name, and |more|; the job and its attempt are what the launcher
// (ours or torchrun) has set in the environment.
OutputRequest output_request(const TrainingArguments& arguments, const std::vector<std::string>& more);

// Throws ConfigError if another job holds the lock of the folder. For a process that does not hold it, before it reads
// what that job may be writing.
void check_not_in_use(const OutputRequest& request);

// Locks the folder for the job of |request| (core/base/files/run_lock.h), and creates it if it does not exist. For the
// processes that write there. Throws ConfigError if it cannot be written to or another job holds the lock.
std::unique_ptr<RunLock> lock_output_folder(const OutputRequest& request);
// Like lock_output_folder(), for a launcher: the ranks that it starts share its lock, which it holds while they are
// restarted. Sets kRunLockVariable.
std::unique_ptr<RunLock> lock_for_ranks(const OutputRequest& request);

// Whether a run can go to the folder. Changes nothing. Throws ConfigError if it cannot be written to; if it holds
// another run that may not be deleted, was not written by Concord, or holds an input of this run.
void check_output_folder(const OutputRequest& request);

// The same, then creates the folder if it does not exist, removes what another run has left (metrics.jsonl,
// trainer_state.json, checkpoints, ...; other files stay), and leaves the mark. For one process of a job, when nothing
// else can go wrong any more.
void prepare_output_folder(const OutputRequest& request);

bool has_run_mark(const std::filesystem::path& folder);
void leave_run_mark(const std::filesystem::path& folder, const std::string& job = {});

// The step in the name of a checkpoint's folder; none where it is no such name.
std::optional<int64_t> checkpoint_step(const std::filesystem::path& path);
// Whether |path| is a checkpoint that Concord wrote: a folder with a manifest or metadata. Whatever else is called
// checkpoint-<step> is neither read nor removed.
bool is_own_checkpoint(const std::filesystem::path& path);
// All that is called folder/checkpoint-<step>, oldest first.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
// Like checkpoints_in(), without what Concord did not write.
std::vector<std::filesystem::path> own_checkpoints_in(const std::filesystem::path& folder);
// The newest of these that a run can be resumed from.
std::optional<int64_t> newest_resumable_step(const std::filesystem::path& folder);
// All that a run can be resumed from, oldest first.
std::vector<int64_t> resumable_steps(const std::filesystem::path& folder);
// Gives checkpoints of later steps than |step| another name, checkpoint-<step>.not-on-all-machines, with .2 and so on
// where there is one by that name. Returns the new names. For one process of a machine. Throws std::runtime_error.
std::vector<std::string> rename_newer_checkpoints(const std::filesystem::path& folder, int64_t step);
// Removes the oldest own checkpoints until |limit| are left; 0: none. The newest and |best|, which may be empty, stay
// even where these are more than |limit|, as in HF. For one process of a job. Throws std::runtime_error.
void rotate_checkpoints(const std::filesystem::path& folder, int64_t limit, const std::filesystem::path& best = {});
std::filesystem::path checkpoint_folder(const std::filesystem::path& folder, int64_t step);

}  // namespace concord
