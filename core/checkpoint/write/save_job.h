// A save that goes on while the job trains.
//
// It has phases. In its constructor all ranks agree on what goes where, rank 0 makes the folder, and what is to be
// written is copied: afterwards parameters and state may change. Then every rank writes its part on threads of its own,
// and when all of them are through rank 0 completes the folder and gives it its name. If each machine has a folder of
// its own (HfSaveOptions::writers), the first rank on it does what rank 0 does, and in a last phase, when all folders
// have their names, what becomes possible by that: older ones are removed. Between phases the ranks have to
// agree, on the thread that computes: in a training loop after each step, by the maximum of progress() over all ranks,
// in a reduction that it makes anyway; or by wait(). So threads in the background use no communicator, and no rank
// waits in them for another one.
//
// Example, given std::span<Parameter* const> parameters, ParallelContext& job:
//   #include "core/mesh/agreement.h"
//   #include "core/checkpoint/write/save_job.h"
//   SaveJob save("out/model", parameters, job, {}, SaveJob::Source::copy);
//   while (!save.is_done()) {
//     // ... a step ...
//     const int64_t slowest = reduced(job, static_cast<int64_t>(save.progress()), ReduceOp::kMax);
//     save.advance(static_cast<SaveJob::Progress>(slowest));
//   }
//
// Errors: as save_hf_weights (hf_weights.h), on all ranks. Threads: the one that computes.
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
  // What the threads read: the parameters themselves, which must not change until it is done; or a copy. On a device
  // the copy is made there if its memory allows, and the constructor does not wait for it; else, and on the host, it is
  // made in host memory within options.memory_limit, and the constructor waits until the rest is written.
  enum class Source { live, copy };

  // All ranks. |previous| is the plan of an earlier save: where nothing has changed it need not be made again.
  SaveJob(std::string folder, std::span<Parameter* const> parameters, ParallelContext& context, HfSaveOptions options,
          Source source, std::shared_ptr<const GlobalSavePlan> previous = nullptr);
  // Abandons what is not done and removes its temporary folder. Waits: for what the threads are writing just now.
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  // Where a rank is in its phase; the largest over all ranks is where the save is.
  enum class Progress : int64_t { through, busy, failed };
  Progress progress() const;  // of this rank. Never waits
  bool is_done() const { return phase_ == Phase::done; }
  // All ranks, with the largest progress of all: begins the next phase when all are through, throws the error when one
  // has failed. Waits: for all ranks, where one has failed.
  void advance(Progress of_all_ranks);
  // All ranks: the rest of it. Throws where one of them fails. Waits: for all ranks.
  void wait();

  const std::string& folder() const { return folder_; }
  std::shared_ptr<const GlobalSavePlan> plan() const { return plan_; }
  // A checksum over all tensors, on the ranks that made folders when it is done; the same for the same values.
  uint32_t digest() const { return digest_; }

 private:
  enum class Phase { writing, finishing, tidying, done };

  void begin();
  void next_phase();
  [[noreturn]] void fail();
  void copy_on_device(std::vector<SaveChunk>* chunks);
  void start(void (SaveJob::*phase)());
  void write_part();
  void finish_folder();
  void tidy();
  bool is_leader() const { return context_.rank() == writers_.begin; }
  void abandon() noexcept;

  std::string folder_;
  ParallelContext& context_;
  HfSaveOptions options_;
  RankRange writers_;
  Source source_;
  std::shared_ptr<const GlobalSavePlan> plan_;
  std::string nonce_;
  std::optional<SaveFolder> made_;  // on the leader
  std::optional<SaveFiles> files_;
  std::optional<ChunkWriter> writer_;
  Phase phase_ = Phase::writing;
  uint32_t digest_ = 0;
  BackgroundTask task_;  // of the phase
};

}  // namespace concord
