// One step of AdamW for lists of flat tensors of one device, on the current stream; what it computes is in
// core/optim/adamw.h. A backend can register a kernel that reads and writes each element once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/ops/adamw_step.h"

namespace concord {

struct AdamWLists {
  std::vector<at::Tensor> weights;  // written; fp32 or fp64
  std::vector<at::Tensor> m, v;     // written; of the same type
  std::vector<at::Tensor> values;   // written: the 16-bit parameters that follow the weights; or empty
  std::vector<at::Tensor> grads;    // of any floating type
};

void adamw_(const AdamWLists& lists, const AdamWStep& step);

}  // namespace concord
