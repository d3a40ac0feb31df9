// The flat memory of one buffer of a bucket plan; parameters and their gradients are views into it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/data_parallel/bucket_plan.h"
#include "core/mesh/process_group.h"
#include "core/parallel/parameter.h"

namespace concord {

// A part of a buffer, in elements.
struct BufferRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
// Returns the intersection of both ranges, with size 0 if they are disjoint.
BufferRange intersection(const BufferRange& a, const BufferRange& b);

// Owns both tensors. Moves the values of its parameters into the first one; the parameters keep their values and stay
// leaves. Threads: one at a time.
class GradBuffer {
 public:
  // |plan| was computed from the list |parameters|. |group| has the ranks that hold the same parameters.
  GradBuffer(BucketPlan::Buffer plan, const std::vector<Parameter*>& parameters, ProcessGroup& group);

  const BucketPlan::Buffer& plan() const { return plan_; }
  ProcessGroup& group() const { return *group_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // indexed by slots
  const at::Tensor& values() const { return values_; }                       // flat, in the parameters' type
  const at::Tensor& grads() const { return grads_; }                         // flat, in the plan's grad_dtype

  // Returns the parts that this rank updates: its shards of the buckets, or everything.
  std::vector<BufferRange> owned() const;
  BufferRange shard(size_t bucket, int64_t index) const;

  static at::Tensor part(const at::Tensor& flat, const BufferRange& range);
  // Returns the gradient of a slot, in the parameter's shape.
  at::Tensor grad_of(const BucketPlan::Slot& slot) const;

 private:
  BucketPlan::Buffer plan_;
  std::vector<Parameter*> parameters_;
  ProcessGroup* group_;
  at::Tensor values_;
  at::Tensor grads_;
};

}  // namespace concord
