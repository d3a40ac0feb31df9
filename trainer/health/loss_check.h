// check_for_nan_in_loss_and_grad for the loss. The losses of a step's micro-batches are copied in parallel with the
// computation and checked when the update has waited for the device anyway: a run with finite losses needs no extra
// wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/mesh/parallel_context.h"
#include "core/torch/host_copy.h"

namespace concord {

class LossCheck {
 public:
  // |losses| has one element for each micro-batch of this rank; empty except on the last stage. Enqueues the copy.
  LossCheck(const at::Tensor& losses, const ParallelContext& job);

  // Throws Error with the rank, the micro-batch and |step| for the first that is not finite. Waits: for the copy.
  void require_finite(int64_t step) const;

 private:
  const ParallelContext& job_;
  HostCopy losses_;
};

// The same immediately, for a step that has failed: |losses| of tokens, undefined for micro-batches that did not come
// to theirs. Waits: for the device.
void require_finite_losses(std::span<const at::Tensor> losses, int64_t step, const ParallelContext& job);

}  // namespace concord
