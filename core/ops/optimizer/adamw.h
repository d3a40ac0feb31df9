// One step of AdamW for lists of flat tensors of one device, on the current stream; what it computes is in
// core/optim/adamw.h. A backend can register a kernel that reads and writes each element once.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/ops/optimizer/adamw_step.h"

namespace concord {

struct AdamWLists {
  std::vector<at::Tensor> weights;  // written; fp32 or fp64
  std::vector<at::Tensor> m, v;     // written; of the same type
  std::vector<at::Tensor> values;   // written: the 16-bit parameters that follow the weights; or empty
  std::vector<at::Tensor> grads;    // of any floating type
};

// With |factor|, one number in the device's memory, that is what gradients are multiplied by instead of the step's
// grad_scale, and nothing is changed where it is not finite. Only a device without a kernel waits for it.
void adamw_(const AdamWLists& lists, const AdamWStep& step, const std::optional<at::Tensor>& factor = {});

// Such a factor, float [1]: 1 / divisor, less where the norm is above |max_norm| (0: no clipping). The norm is the root
// of |squares| [1]; NaN where it or |loss| is not finite. The bits are those of clip_factor (core/optim).
at::Tensor update_factor(const at::Tensor& squares, const std::optional<at::Tensor>& loss, double max_norm,
                         double divisor);

}  // namespace concord
