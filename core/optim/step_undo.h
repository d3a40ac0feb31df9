// What a step overwrites, kept so that the step can be taken back to the last bit: fp32 weights and moments. (No
// formula does it: rounding loses what they were.) Only for the optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/optim/segment.h"

namespace concord {

// Threads: one at a time; copies are work of the current stream.
class StepUndo {
 public:
  // Before a step. Takes as much memory as weights and moments have at the first call, and keeps it.
  void keep(const std::vector<Segment>& segments);
  // Weights and moments as they were; 16-bit parameters, and those of segments on the host, do not follow.
  void restore() const;

 private:
  std::vector<at::Tensor> live_;
  std::vector<at::Tensor> kept_;
};

}  // namespace concord
