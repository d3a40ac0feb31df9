// One chunk of DistributedDataParallel: its buffers, the gradients that have arrived, the reductions in flight. Used
// only by ddp.cpp.
#pragma once

#include <utility>

#include "core/data_parallel/ddp.h"

namespace concord {

class DistributedDataParallel::Reducer {
 public:
  Reducer(DistributedDataParallel& ddp, Chunk parameters, bool one_bucket);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  const BucketPlan& plan() const { return plan_; }
  const std::vector<std::unique_ptr<GradBuffer>>& buffers() const { return buffers_; }

  void begin_step(int64_t micro_batches, bool defer_reduction);
  void flush_grads();
  void set_step_replayed(int64_t micro_batches);
  void require_finite_grads();
  void start_grad_sync();
  void finish_grad_sync();
  void gather_parameters();
  void finish_param_gather();

 private:
  struct Bucket {
    GradBuffer* buffer;
    size_t index;         // index in the buffer
    int64_t missing = 0;  // number of parameters that are not ready
    bool issued = false;
    Work reduction = {};
    Work gathering = {};
    bool gathers = false;
  };
  struct Arrival {
    size_t bucket;  // index in buckets_
    BucketPlan::Slot slot;
    int64_t missing = 0;  // number of additions until it is ready
    // Shared with GradSink: the gradient is that of the last step, and nothing has been added in this one.
    std::shared_ptr<bool> is_stale = std::make_shared<bool>(false);
  };
  // A gradient of a vector that autograd has stored. Small ones are copied to their buffers together, to save launches.
  struct Waiting {
    size_t parameter;
    at::Tensor grad;
  };

  void make_buffers(bool one_bucket);
  void attach(size_t index);
  void wait_for(size_t index);
  void added(size_t index);
  void move_grad(size_t index, const at::Tensor& value);
  void move_waiting();
  void issue_ready();
  void issue(Bucket& bucket);
  void expect_grads(int64_t micro_batches, bool defer_reduction);
  void clear_matrices(const Bucket& bucket);
  void settle(const Bucket& bucket);
  void scale(const at::Tensor& grads, bool expert) const;
  void check_finite(const Bucket& bucket) const;
  ReduceOp reduce_op() const;

  DistributedDataParallel& ddp_;
  const Chunk parameters_;
  BucketPlan plan_;
  std::vector<std::unique_ptr<GradBuffer>> buffers_;
  std::vector<Bucket> buckets_;    // in the plan's order
  std::vector<Arrival> arrivals_;  // one per parameter
  size_t next_ = 0;                // the first bucket that was not issued yet
  std::vector<Waiting> waiting_;   // at most one per parameter
  bool overlaps_;
  bool defers_reduction_ = false;  // reductions are deferred in this step
};

}  // namespace concord
