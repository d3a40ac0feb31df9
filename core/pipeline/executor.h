// Runs one rank's list of a schedule: what every step of training goes through, with one stage or many.
//
//   Schedule schedule = complete_schedule(make_schedule({.kind = "zb-v", .pp = 4, .microbatches = 16}));
//   Executor executor(schedule, {&first_chunk, &second_chunk}, job);
//   executor.run();   // all micro-batches, forward and backward; once a step
//
// Transfers go over the pp group, joined ones as one batch, beside the computations: a receive is posted with its
// buffer where the schedule has it, and waited for where its value is needed; of an output that was sent only its graph
// is kept. Stages on one rank hand their tensors over. A schedule without backwards (evaluation) runs without autograd
// and keeps nothing. One stage alone costs its computations.
//
// Errors. What goes wrong in an action comes out of run() with the action and a report of where each rank of the
// pipeline stood in its list: as Error with its status (PEER_LOST, TIMEOUT: another rank), as ConfigError where it was
// one, else as Error (INTERNAL). The executor cannot run again then. A peer that dies ends every rank's run in this
// way.
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

// What becomes of a run after its warm-up.
enum class Resume { go_on, again, stop };

// Threads: one at a time, always the same.
class Executor {
 public:
  // |schedule| is a complete one (passes.h), the same on all ranks of the pipeline; |stages| are this rank's in
  // ascending order, and live as long as the executor, as |job| does. Throws ConfigError for a schedule that the
  // checker refuses, for sizes that are not the job's, and where ranks have different schedules. Waits: for the other
  // ranks of the pipeline.
  Executor(Schedule schedule, std::vector<Stage*> stages, ParallelContext& job, const ExecutorOptions& options = {});
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const Schedule& schedule() const;

  // One step. Waits: where the host is the current stream, for the transfers of this rank; else for nothing.
  void run();

  // The same for a step that begins before the one before it is known to be right: it goes as far as it can be taken
  // back (warm_up.h, before this rank's first backward) and asks |after_warm_up|, once. With |again| what was computed
  // and sent so far is thrown away, random numbers are drawn once more, and the step begins anew; with |stop| it is
  // thrown away, and run returns false: the step has not been. All ranks of the pipeline have to get the same answer.
  // Gradients of the step before may be used until then, and are to be cleared by |after_warm_up|. Waits: with |again|
  // and |stop|, for the transfers of the warm-up.
  bool run(const std::function<Resume()>& after_warm_up);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace concord
