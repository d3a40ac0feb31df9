// Runs one rank's list of a schedule: every step of training uses it, with one stage or many.
//
// Example, given ParallelContext& job, Stage& first_chunk, Stage& second_chunk:
//   #include "core/schedule/passes.h"
//   #include "core/schedule/schedules.h"
//   Schedule schedule = complete_schedule(make_schedule({.kind = "zb-v", .pp = 4, .microbatches = 16}));
//   Executor executor(schedule, {&first_chunk, &second_chunk}, job);
//   executor.run();   // all micro-batches, forward and backward; once per step
//
// Transfers use the pp group, joined ones as one batch, in parallel with the computations: a receive is posted with its
// buffer at its place in the schedule, and waited for when its value is needed; once an output has been sent, only its
// graph is kept. Stages on one rank pass their tensors directly. A schedule without backwards (evaluation) runs
// without autograd and keeps nothing. A single stage costs only its computations.
//
// Errors. A failure in an action is thrown by run() with the action and a report of where each rank of the
// pipeline stood in its list: as Error with its status (PEER_LOST, TIMEOUT: another rank), as ConfigError if it was
// one, else as Error (INTERNAL), with the original exception nested in it. A pipeline of several ranks cannot run again
// then. A peer that dies ends every rank's run in this way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/pipeline/executor_options.h"
#include "core/pipeline/stage.h"
#include "core/schedule/schedule.h"

namespace concord {

// Called for each computation of a run: before it begins, when its inputs from other ranks have arrived, and after its
// end.
using ActionWatch = std::function<void(const Action& action, bool begins)>;

// Threads: one at a time, always the same.
class Executor {
 public:
  // |schedule| is a complete one (passes.h), the same on all ranks of the pipeline; |stages| are this rank's in
  // ascending order. |stages| and |job| must outlive the executor. Throws ConfigError if check_schedule() rejects the
  // schedule, if its sizes differ from the job's, or if the ranks' schedules differ. Waits: for the other ranks of the
  // pipeline.
  Executor(Schedule schedule, std::vector<Stage*> stages, ParallelContext& job, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Schedule& schedule() const;

  // One step. Waits: where the host is the current stream, for the transfers of this rank; else for nothing.
  void run();
  // Sets the watch of subsequent runs. An empty function removes it.
  void watch(ActionWatch watch);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace concord
