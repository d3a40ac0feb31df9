// Complete checkpoints in memory, every few steps, for a job that its launcher restarts after a failure. They have the
// format of checkpoints on disk (core/checkpoint/write/save_job.h), in a folder of a file system in memory that the
// launcher owns: it outlives the processes of the ranks, so that all of them, also one that replaces another, find
// their state in it, under any layout. It is gone when the job ends or its machine does. In a job on several machines
// each has the data of its own ranks and a copy of that of the machine before it
// (core/checkpoint/write/replication.h), so that the loss of one machine loses nothing; for the loss of two neighbours
// there are checkpoints on the disk.
//
// All ranks make the same calls. Threads: training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/checkpoint/write/save_job.h"
#include "core/models/auto_model.h"
#include "trainer/plan.h"

namespace concord {

// Returns the launcher's folder for in-memory checkpoints; empty if there is none.
std::string memory_folder();

// Merges the newest checkpoint after step |than| of a job on several machines in a folder of this machine and
// returns the folder. Empty if there is none or it cannot be read; rank 0 logs why. Waits: for all ranks.
std::string restore_from_peers(int64_t than, ParallelContext& job);
// Returns whether the job runs on several machines.
bool has_several_machines();

class InMemoryCheckpoints {
 public:
  // Every |plan|.arguments.recovery.memory_steps steps. Disabled if that is 0, if the launcher has no folder for them,
  // or if two of them do not fit into it, which rank 0 logs. Waits: for all ranks.
  InMemoryCheckpoints(const TrainingPlan& plan, ParallelContext& job);

  bool is_due(int64_t step) const { return every_ > 0 && !save_ && step % every_ == 0; }
  // Starts a checkpoint of |step|. Returns when its contents have been copied, or, in a job on several machines, when
  // it is complete.
  void start(VirtualModels& model, int64_t step, HfSaveOptions options);
  SaveJob::Progress progress() const { return save_ ? save_->progress() : SaveJob::Progress::through; }
  // Call once per step, with the maximum progress over all ranks. Returns whether a checkpoint has become complete. If
  // one cannot be written, which all ranks detect together, rank 0 logs it, and the next one is attempted when it is
  // due. Throws Error if a rank is lost.
  bool advance(SaveJob::Progress of_all_ranks);
  void abandon() { save_.reset(); }
  int64_t newest() const { return newest_; }  // step of the newest complete one of this process; -1: none

 private:
  void switch_off(const std::string& why);
  void give_up_this_one(const std::string& why);

  ParallelContext& job_;
  std::string folder_;
  int64_t every_ = 0;
  std::unique_ptr<SaveJob> save_;
  std::shared_ptr<const GlobalSavePlan> plan_;
  int64_t started_ = -1;
  int64_t newest_ = -1;
  bool is_failing_ = false;  // the last one could not be written, and a warning was logged
};

}  // namespace concord
