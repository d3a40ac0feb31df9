// The sum of squares of a gradient, and its zeros, on the host: a loop over flat memory, in fp64. Both in one pass, and
// in parts of a fixed size that are added in their order, so that the bits do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/optim/flat_memory.h"

namespace concord {

struct GradSums {
  double squares = 0;  // not finite where an element is not
  int64_t zeros = 0;
};

struct GradPart {
  FlatGrads grads;
  int64_t count = 0;
};
GradSums sum_grads(const std::vector<GradPart>& parts, bool count_zeros);

// What gradients are multiplied by, so that their norm is at most |limit|; 1 for a limit of 0. Megatron's and
// PyTorch's.
double clip_factor(double norm, double limit);

}  // namespace concord
