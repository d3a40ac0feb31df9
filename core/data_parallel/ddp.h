// Reduces gradients over the ranks that train the same parameters, in parallel with the rest of backward (Megatron's
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
// its |uses| additions. A bucket whose parameters are all ready is reduced immediately, on the group's own stream.
// Reductions are issued in the plan's order, in whatever order buckets become ready, so that all ranks make the same
// calls.
//
// Threads: one at a time: the thread that computes, or autograd's thread while that one waits in backward.
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

  // |chunks| has one entry per model chunk of this rank. Chunks after the first have one bucket per buffer, since its
  // reduction overlaps with the backward of another chunk. Sets the parameters' sinks. Throws ConfigError unless all
  // types are f32, bf16 or f16. Parameters and |job| must outlive this object.
  DistributedDataParallel(std::vector<Chunk> chunks, ParallelContext& job, const DataParallelOptions& options = {});
  ~DistributedDataParallel();  // removes the sinks and hooks; values stay in the flat memory
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  const DataParallelOptions& options() const { return options_; }
  ParallelContext& job() const { return *job_; }
  std::vector<const GradBuffer*> buffers() const;
  const BucketPlan& plan(size_t chunk) const;

  // Starts a step of |micro_batches|. Marks all gradients as zero; buffers are cleared lazily: on the first
  // accumulation, in flush_grads() or at reduction. With |defer_reduction| no reduction starts before start_grad_sync()
  // or finish_grad_sync(), so that the gradients of this rank can be examined; the reduced ones are bitwise identical.
  // Throws ConfigError if |micro_batches| is less than 1.
  void begin_step(int64_t micro_batches, bool defer_reduction = false);
  // Flushes this step's gradients into the buffers, so that callers can read or modify them before the reduction. This
  // includes gradients of vectors that autograd has stored, which are copied together; gradients without additions
  // become zero.
  void flush_grads();
  // Call instead of begin_step() and flush_grads() if the gradients are already in the buffers, because a replay
  // executed everything that was enqueued from an earlier begin_step() to flush_grads()
  // (core/torch/graphed_callable.h), without calling this object. Enqueues nothing.
  void set_step_replayed(int64_t micro_batches);
  // Checks gradients before their reduction like check_for_nan_in_grad. Throws Error with the rank and the parameter.
  // Waits: for the device.
  void require_finite_grads();

  // Starts the reductions that have not started yet. finish_grad_sync() does it too; call it directly in schedules that
  // can overlap other work.
  void start_grad_sync();
  // Waits for the reductions: later work of the current stream sees this rank's parts (GradBuffer::owned) reduced.
  // Throws Error with the lagging rank if one was lost.
  void finish_grad_sync();

  // Call after the distributed optimizer has written its shards: all-gathers them. With overlap_param_gather it only
  // starts, in the order in which forward uses buckets, and Parameter::used() waits, like Work::wait, until that
  // parameter has arrived. Does nothing without the distributed optimizer.
  void gather_parameters();
  void finish_param_gather();  // waits for all of them

 private:
  class Reducer;  // one chunk

  const DataParallelOptions options_;
  ParallelContext* job_;
  std::vector<std::unique_ptr<Reducer>> chunks_;
};

}  // namespace concord
