// Lion (Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2), one update of a weight w:
//   c   = beta1 m + (1 - beta1) g
//   w_t = w - lr (sign(c) + weight_decay w)
//   m_t = beta2 m + (1 - beta2) g
// A loop over flat memory on the host; core/optim/rules/update_rule.cpp has the same update for devices.
#pragma once

#include <cstdint>

#include "core/optim/flat_memory.h"

namespace concord {

struct LionStep {
  float grad_scale;
  float weight_decay;
  float beta1;
  float beta2;
  float lr;
};

// Updates the elements [begin, end). Threads: any, one per element.
void lion(const LionStep& step, const MomentumArrays& arrays, int64_t begin, int64_t end);

}  // namespace concord
