// Sum of squares and number of zeros of a gradient, on the host, in fp64. One pass over flat memory in blocks of a
// fixed size that are added in order, so that the result does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/optim/flat_memory.h"

namespace concord {

struct GradSums {
  double squares = 0;  // not finite if an element is not
  int64_t zeros = 0;
};

struct GradPart {
  FlatGrads grads;
  int64_t count = 0;
};
GradSums sum_grads(const std::vector<GradPart>& parts, bool count_zeros);

// Returns the factor that reduces a gradient norm to at most |limit|, as in Megatron and PyTorch; 1 if |limit| is 0.
double clip_factor(double norm, double limit);

}  // namespace concord
