// One AdamW step for lists of flat tensors on one device, on the current stream; core/optim/adamw.h has the formula. A
// backend can register a kernel that reads and writes each element once.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/ops/optimizer/adamw_step.h"

namespace concord {

struct AdamWLists {
  std::vector<at::Tensor> weights;  // written; fp32 or fp64
  std::vector<at::Tensor> m, v;     // written; same type as the weights
  std::vector<at::Tensor> values;   // written: bf16 or fp16 copies of the weights; or empty
  std::vector<at::Tensor> grads;    // any floating type
};

// If |factor| is given, a result of update_factor, gradients are multiplied by it instead of the step's grad_scale, and
// nothing is updated unless it is finite. Waits: only on a device without a kernel, for |factor|.
void adamw_(const AdamWLists& lists, const AdamWStep& step, const std::optional<at::Tensor>& factor = {});

// Like adamw_() for each group, in order. A device may need fewer launches than for one group after the other.
struct AdamWGroup {
  const AdamWLists& lists;
  AdamWStep step;
};
void adamw_groups_(const std::vector<AdamWGroup>& groups, const std::optional<at::Tensor>& factor = {});

// Returns such a factor, float [1]: 1 / divisor, reduced by clipping if the norm exceeds |max_norm| (0: no clipping).
// The norm is the square root of |squares| [1]; the result is NaN unless it and |loss| are finite. Bitwise identical to
// clip_factor (core/optim). On the device, without waiting; or on the host, if the device's kernel of adamw_ needs it
// there. Waits: in the second case, for the arguments.
at::Tensor update_factor(const at::Tensor& squares, const std::optional<at::Tensor>& loss, double max_norm,
                         double divisor);

}  // namespace concord
