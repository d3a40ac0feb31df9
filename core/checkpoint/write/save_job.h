// A save that runs in parallel with training.
//
// It has phases. In the constructor all ranks agree on the plan, rank 0 creates the folder, and the data is copied:
// parameters and state may change afterwards. Then every rank writes its part on its own threads, and when all ranks
// have finished, rank 0 completes the folder and renames it. If each machine has its own folder
// (HfSaveOptions::writers), the first rank on it does what rank 0 does, and in a last phase, when all folders are
// renamed, older ones are removed. Between phases the ranks must agree on the thread that computes: in a training loop
// after each step, by the maximum of progress() over all ranks, in a reduction that the loop makes anyway; or by
// wait(). So background threads use no communicator and never wait for another rank.
//
// A replicated save (replication.h) has these phases too, with a folder per machine. The constructor then also waits
// until the copies have been received from the previous machine.
//
// Example, given std::span<Parameter* const> parameters, ParallelContext& job:
//   #include "core/mesh/agreement.h"
//   #include "core/checkpoint/write/save_job.h"
//   SaveJob save("out/model", parameters, job, {}, SaveJob::Source::copy);
//   while (!save.is_done()) {
//     // ... a step ...
//     const int64_t slowest = all_reduce_scalar(job, static_cast<int64_t>(save.progress()), ReduceOp::kMax);
//     save.advance(static_cast<SaveJob::Progress>(slowest));
//   }
//
// Throws like save_hf_weights (hf_weights.h), on all ranks. Threads: the thread that computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/background_task.h"
#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/write/chunk_writer.h"
#include "core/checkpoint/write/global_save_plan.h"
#include "core/checkpoint/write/save_files.h"
#include "core/mesh/parallel_context.h"

namespace concord {

class SaveJob {
 public:
  // The source for the writing threads: the parameters themselves, which must not change until the save is done; or a
  // copy. On a device the copy is made there if its memory allows, and the constructor does not wait for it. Otherwise
  // it is made in host memory within options.memory_limit, and the constructor waits until the rest is written.
  enum class Source { live, copy };

  // All ranks call it. |previous| is the plan of an earlier save, which is reused if nothing has changed.
  SaveJob(std::string folder, std::span<Parameter* const> parameters, ParallelContext& context, HfSaveOptions options,
          Source source, std::shared_ptr<const GlobalSavePlan> previous = nullptr);
  // Abandons an unfinished save and removes its temporary folder. Waits: for writes in progress.
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  // Progress of this rank. The maximum over all ranks is the progress of the save.
  enum class Progress : int64_t { through, busy, failed };
  Progress progress() const;  // never waits
  bool is_done() const { return phase_ == Phase::done; }
  // All ranks call it with the maximum progress of all: starts the next phase when all have finished, throws the error
  // if one has failed. Waits: for all ranks, if one has failed, or if a replicated save is written.
  void advance(Progress of_all_ranks);
  // All ranks call it: completes the save. Throws if one of them fails. Waits: for all ranks.
  void wait();

  const std::string& folder() const { return folder_; }
  std::shared_ptr<const GlobalSavePlan> plan() const { return plan_; }
  // A checksum over all tensors, on the ranks that created folders, once the save is done; equal for equal values.
  uint32_t digest() const { return digest_; }

 private:
  enum class Phase { writing, finishing, tidying, done };

  void divide_among_machines();
  void begin();
  void next_phase();
  [[noreturn]] void fail();
  void copy_on_device(std::vector<SaveChunk>* chunks);
  void start(void (SaveJob::*phase)());
  void write_part();
  void finish_folder();
  void sum_written();
  void tidy();
  bool is_leader() const { return context_.rank() == writers_.begin; }
  bool has_several_folders() const { return options_.writers || machines_; }
  void abandon() noexcept;

  std::string folder_;
  ParallelContext& context_;
  HfSaveOptions options_;
  RankRange writers_;                 // ranks that write this folder
  std::optional<Machines> machines_;  // of a replicated save
  Source source_;
  std::shared_ptr<const GlobalSavePlan> plan_;
  std::string nonce_;
  std::optional<SaveFolder> made_;  // only on the leader
  std::optional<SaveFiles> files_;
  std::optional<ChunkWriter> writer_;
  WrittenTensors written_;  // by all ranks; known to the leader when they have finished
  Phase phase_ = Phase::writing;
  uint32_t digest_ = 0;
  BackgroundTask task_;  // the current phase
};

}  // namespace concord
