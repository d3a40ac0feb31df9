// Stochastic gradient descent with momentum, like torch.optim.SGD without dampening, one update of a weight w:
//   g   = g + weight_decay w
//   b_t = momentum b + g
//   w_t = w - lr b_t
// A loop over flat memory on the host; core/optim/rules/update_rule.cpp has the same update for devices.
#pragma once

#include <cstdint>

#include "core/optim/flat_memory.h"

namespace concord {

struct SgdStep {
  float grad_scale;
  float weight_decay;
  float momentum;
  float lr;
};

// Updates the elements [begin, end). Threads: any, one per element.
void sgd(const SgdStep& step, const MomentumArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
