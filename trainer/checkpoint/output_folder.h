// The folder a run writes to. One run per folder: files of different runs are not mixed.
//
// A run leaves its mark there, kRunMark, and nothing is ever removed from a folder without it: Concord removes only
// what it wrote. A restarted attempt finds the mark of its own job, continues in the folder, and removes nothing.
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

struct OutputRequest {
  std::filesystem::path folder;
  bool overwrite = false;  // an existing run may be deleted
  std::vector<std::filesystem::path> inputs =
      {};                                  // files that this run reads; must not be among those that would be removed
  std::string job = {};                    // identical in every attempt of a job, see output_request
  bool is_unique_job = true;               // no other job has that name; false: torchrun's, which users choose
  bool is_restarted = false;               // not the first attempt
  bool resumes = false;                    // resumes the run in the folder, if that is possible
  std::filesystem::path resume_from = {};  // the checkpoint that the user named; empty: the newest of |folder|
};

// Returns whether the launcher (ours or torchrun) has started this process after an attempt that failed.
bool is_restarted_attempt();

// Returns the request of |arguments|. Inputs are those that the arguments name, and |more|; job and attempt come from
// the environment, where the launcher (ours or torchrun) sets them.
OutputRequest output_request(const TrainingArguments& arguments, const std::vector<std::string>& more);

// Throws ConfigError if another job holds the lock of the folder. Call in a process that does not hold the lock, before
// it reads files that the other job may be writing.
void check_not_in_use(const OutputRequest& request);

// Locks the folder for the job of |request| (core/base/files/run_lock.h), and creates it if it does not exist. For the
// processes that write there. Throws ConfigError if it cannot be written to or another job holds the lock.
std::unique_ptr<RunLock> lock_output_folder(const OutputRequest& request);
// Like lock_output_folder(), for a launcher: the ranks that it starts share its lock, which it holds while they are
// restarted. Sets kRunLockVariable.
std::unique_ptr<RunLock> lock_for_ranks(const OutputRequest& request);

// Throws ConfigError if the folder cannot be written to, or if it holds a different run that may not be deleted, was
// not written by Concord, or holds an input of this run. Changes nothing.
void check_output_folder(const OutputRequest& request);

// Like check_output_folder(), but then creates the folder if it does not exist, removes the files of an earlier run
// (metrics.jsonl, trainer_state.json, checkpoints, ...; other files stay), and leaves the mark. Call in one process of
// a job, after all other checks.
void prepare_output_folder(const OutputRequest& request);

bool has_run_mark(const std::filesystem::path& folder);
void leave_run_mark(const std::filesystem::path& folder, const std::string& job = {});

// Returns the step in the name of a checkpoint's folder; nullopt unless the name is checkpoint-<step>.
std::optional<int64_t> checkpoint_step(const std::filesystem::path& path);
// Returns whether |path| is a checkpoint that Concord wrote: a folder with a manifest or metadata. Anything else that
// is called checkpoint-<step> is neither read nor removed.
bool is_own_checkpoint(const std::filesystem::path& path);
// Returns everything that is called folder/checkpoint-<step>, oldest first.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
// Like checkpoints_in(), but without entries that Concord did not write.
std::vector<std::filesystem::path> own_checkpoints_in(const std::filesystem::path& folder);
// Returns the step of the newest own checkpoint from which a run can be resumed.
std::optional<int64_t> newest_resumable_step(const std::filesystem::path& folder);
// Returns the steps of all checkpoints from which a run can be resumed, oldest first.
std::vector<int64_t> resumable_steps(const std::filesystem::path& folder);
// Renames checkpoints of steps after |step| to checkpoint-<step>.not-on-all-machines, with .2 etc. if that name exists.
// Returns the new names. Call in one process of a machine. Throws std::runtime_error.
std::vector<std::string> rename_newer_checkpoints(const std::filesystem::path& folder, int64_t step);
// Removes the oldest own checkpoints until |limit| are left; 0: none. The newest and |best|, which may be empty, are
// kept even if they are more than |limit|, as in HF. Call in one process of a job. Throws std::runtime_error.
void rotate_checkpoints(const std::filesystem::path& folder, int64_t limit, const std::filesystem::path& best = {});
std::filesystem::path checkpoint_folder(const std::filesystem::path& folder, int64_t step);

}  // namespace concord
