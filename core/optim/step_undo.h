// What a step overwrites, kept so that the step can be undone exactly: fp32 weights and moments. (No formula can do it:
// rounding loses their values.) Only for the optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/optim/segment.h"

namespace concord {

// Threads: one at a time; copies are work of the current stream.
class StepUndo {
 public:
  // Before a step. Allocates as much memory as weights and moments have at the first call, and keeps it.
  void keep(const std::vector<Segment>& segments);
  // Weights and moments as they were; 16-bit parameters, and those of segments on the host, do not follow.
  void restore() const;

 private:
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> kept_;
};

}  // namespace concord
