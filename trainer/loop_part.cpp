#include "trainer/loop_part.h"

#include <ATen/ops/tensor.h>

#include "trainer/arguments/arguments.h"

namespace concord {

void StepAgreement::all_reduce(ParallelContext& job) const {
  if (job.world() == 1) return;
  const at::Tensor values = at::tensor(values_, at::TensorOptions(at::kLong)).to(job.torch_device());
  job.world_group().all_reduce(values, ReduceOp::kMax).wait();
  const at::Tensor agreed = values.to(at::kCPU);
  for (size_t i = 0; i < results_.size(); ++i) results_[i](agreed.const_data_ptr<int64_t>()[i]);
}

StepInterval::StepInterval(IntervalStrategy strategy, double steps, int64_t max_steps)
    : steps_(strategy == IntervalStrategy::steps ? steps_of(steps, max_steps) : 0),
      every_epoch_(strategy == IntervalStrategy::epoch) {}

bool StepInterval::is_due(int64_t step, bool ends_epoch) const {
  return concord::is_due(step, steps_) || (ends_epoch && every_epoch_);
}

}  // namespace concord
