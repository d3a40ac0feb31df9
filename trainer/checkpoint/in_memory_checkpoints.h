// Complete checkpoints in memory, every few steps, for a job that its launcher starts again after a failure. They are
// what is on the disk otherwise (core/checkpoint/write/save_job.h), in a folder of a file system in memory that the
// launcher owns: it outlives the processes of the ranks, so that all of them, also one that replaces another, find
// their state in it, under any layout. It is gone when the job ends or its machine does. In a job on several machines
// each has the parts of its own ranks and copies of those of the machine before it
// (core/checkpoint/write/replicated_save.h), so that the loss of one machine leaves all of them; for the loss of two
// neighbours there are checkpoints on the disk.
//
// All ranks make the same calls. Threads: the one that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/checkpoint/write/save_job.h"
#include "core/models/auto_model.h"
#include "trainer/plan.h"

namespace concord {

// The launcher's folder for them; empty where there is none.
std::string memory_folder();

// The newest one of a job on several machines that is newer than |than|, put together in a folder of this machine;
// empty where there is none or it cannot be had, which rank 0 then says. Waits: for all ranks.
std::string restore_from_peers(int64_t than, ParallelContext& job);
// Whether this is such a job.
bool has_several_machines();

class InMemoryCheckpoints {
 public:
  // Every |plan|.arguments.recovery.memory_steps steps. Off where that is 0, the launcher has no folder for them, or it
  // has no room for two of them, which rank 0 says. Waits: for all ranks.
  InMemoryCheckpoints(const TrainingPlan& plan, ParallelContext& job);

  bool is_due(int64_t step) const { return every_ > 0 && !save_ && step % every_ == 0; }
  // Returns when what is to be written has been copied; of a job on several machines when it is complete.
  void start(VirtualModels& model, int64_t step, HfSaveOptions options);
  SaveJob::Progress progress() const { return save_ ? save_->progress() : SaveJob::Progress::through; }
  // Once a step, after the ranks have agreed. Returns whether one has become complete. Where one cannot be written,
  // which is the same on all ranks, rank 0 says so, and the next one is tried when it is due. Throws Error where a rank
  // is lost.
  bool advance(SaveJob::Progress of_all_ranks);
  void abandon() { save_.reset(); }
  int64_t newest() const { return newest_; }  // step of the newest complete one of this process; -1: none

 private:
  void switch_off(const std::string& why);
  void give_up_this_one(const std::string& why);
  void save_on_machines(VirtualModels& model, int64_t step, HfSaveOptions options);

  ParallelContext& job_;
  std::string folder_;
  int64_t every_ = 0;
  std::unique_ptr<SaveJob> save_;
  std::shared_ptr<const GlobalSavePlan> plan_;
  bool is_complete_ = false;  // one of several machines, and advance() has not said so yet
  int64_t started_ = -1;
  int64_t newest_ = -1;
  bool is_failing_ = false;  // the last one could not be written, and that was said
};

}  // namespace concord
