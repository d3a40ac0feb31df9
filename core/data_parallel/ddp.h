// Gradients reduced over the ranks that train the same parameters, while backward still computes others (Megatron's
// DistributedDataParallel).
//
// Example, given std::vector<Parameter*> parameters, ParallelContext& job, int64_t counted:
//   #include "core/data_parallel/finalize_grads.h"
//   #include "core/optim/optimizer.h"
//   DistributedDataParallel ddp({parameters}, job, {.overlap_grad_reduce = true});
//   Optimizer optimizer(ddp, {});
//   ddp.begin_step(8);
//   // forward and backward of the 8 micro-batches, through any schedule
//   finalize_grads(ddp, {.tokens = counted});
//   optimizer.step({.lr = 1e-4, .weight_decay = 0.1});
//
// A parameter's gradient arrives through its sink (GradSink::added), in backward or later, or as autograd's .grad,
// which is then added to the buffer and freed. After begin_step(n) a parameter is ready when it has received n times
// its |uses| additions; a bucket whose parameters are all ready is reduced immediately, on the group's own stream, in
// the plan's order, in whatever order buckets become ready, so that all ranks make the same calls.
//
// Threads: one at a time: the thread that computes, or autograd's while that one waits in backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/data_parallel/data_parallel_options.h"
#include "core/data_parallel/grad_buffer.h"
#include "core/mesh/parallel_context.h"
#include "core/parallel/parameter.h"

namespace concord {

class DistributedDataParallel {
 public:
  using Chunk = std::vector<Parameter*>;  // in the order in which forward uses them

  // One chunk a model chunk of this rank. Chunks after the first have one bucket a buffer, as there is another chunk's
  // backward to hide its reduction behind. Sets the parameters' sinks. Throws ConfigError if a type is not f32, bf16
  // or f16. Parameters and |job| outlive it.
  DistributedDataParallel(std::vector<Chunk> chunks, ParallelContext& job, const DataParallelOptions& options = {});
  ~DistributedDataParallel();  // takes the sinks and hooks out again; values stay in the flat memory
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  const DataParallelOptions& options() const { return options_; }
  ParallelContext& job() const { return *job_; }
  std::vector<const GradBuffer*> buffers() const;
  const BucketPlan& plan(size_t chunk) const;

  // Gradients become 0, as far as sinks show it; in memory once something is added to them, and in flush_grads or a
  // reduction. The step has so many micro-batches. With |hold| no reduction begins before start_grad_sync or
  // finish_grad_sync, so that gradients can be examined as this rank has computed them; the reduced ones have the same
  // bits. Throws ConfigError for less than 1.
  void begin_step(int64_t micro_batches, bool hold = false);
  // For those who read or write gradients before they are reduced: all that was added in this step is in the buffers,
  // also what autograd has stored of vectors, which are moved together; where nothing was added there are zeros.
  void flush_grads();
  // After begin_step, where the gradients are there already: by a replay of all that was enqueued from an earlier
  // begin_step to flush_grads (core/torch/graphed_callable.h), in which none of this object's functions run.
  void mark_grads_flushed();
  // What check_for_nan_in_grad checks, of gradients that are not reduced yet. Throws Error with the rank and the
  // parameter. Waits: for the device.
  void require_finite_grads();

  // Starts the reductions that have not begun. finish_grad_sync does it too; by itself it is for schedules that have
  // something left to compute meanwhile.
  void start_grad_sync();
  // Afterwards this rank's parts (GradBuffer::owned) are reduced, for the work of the current stream. Throws Error
  // with the rank that is behind if one was lost.
  void finish_grad_sync();

  // After the distributed optimizer has written its shards: every rank's shards to all. With overlap_param_gather it
  // only starts, in the order in which forward uses buckets, and Parameter::used() waits, as Work::wait does, until
  // that parameter is there. Without the distributed optimizer there is nothing to do.
  void gather_parameters();
  void finish_param_gather();  // all of them

 private:
  class Reducer;  // one chunk

  const DataParallelOptions options_;
  ParallelContext* job_;
  std::vector<std::unique_ptr<Reducer>> chunks_;
};

}  // namespace concord
