// One AdamW step for lists of flat tensors on one device, on the current stream; core/optim/rules/adamw.h has the
// formula. A backend can register a kernel that reads and writes each element once.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/ops/optimizer/adamw_step.h"

namespace concord {

struct AdamWLists {
  std::vector<at::Tensor> weights;  // written; fp32 or fp64; or int16: remainders of |values| (core/torch/remainder.h)
  std::vector<at::Tensor> m, v;     // written; all m of one type, and all v: the weights', bf16, or uint8 for codes
  std::vector<at::Tensor> values;   // written: bf16 or fp16 copies of the weights; or empty
  std::vector<at::Tensor> grads;    // any floating type
  std::vector<at::Tensor> m_scales = {}, v_scales = {};  // written; scales of moments in codes, otherwise empty
};

// If |factor| is given, a result of update_factor, gradients are multiplied by it instead of the step's grad_scale, and
// nothing is updated unless it is finite. Moments in bf16 or in codes (block_codes.h), and weights with a remainder,
// are widened, updated and rounded: in one pass if takes_narrow_state(), otherwise tensor by tensor. Waits: only on a
// device without a kernel, for |factor|.
void adamw_(const AdamWLists& lists, const AdamWStep& step, const std::optional<at::Tensor>& factor = {});

// Like adamw_() for each group, in order. A device may need fewer launches than for one group after the other.
struct AdamWGroup {
  const AdamWLists& lists;
  AdamWStep step;
};
void adamw_groups_(const std::vector<AdamWGroup>& groups, const std::optional<at::Tensor>& factor = {});

// Whether the device has a kernel for moments in bf16 and in codes and for weights with a remainder.
bool takes_narrow_state(c10::Device device);

// Returns such a factor, float [1]: 1 / divisor, reduced by clipping if the norm exceeds |max_norm| (0: no clipping).
// The norm is the square root of |squares| [1]; the result is NaN unless it and |loss| are finite. Bitwise identical to
// clip_factor (core/optim). On the device, without waiting; or on the host, if the device's kernel of adamw_ needs it
// there. Waits: in the second case, for the arguments.
at::Tensor update_factor(const at::Tensor& squares, const std::optional<at::Tensor>& loss, double max_norm,
                         double divisor);

}  // namespace concord
