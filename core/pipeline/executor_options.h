// Options of core/pipeline/executor.h; needs no libtorch.
#pragma once

namespace concord {

struct ExecutorOptions {
  // Micro-batches differ in shape, and a stage does not know those of its inputs: each activation is preceded by its
  // shape. It costs a small transfer and a wait of the host for each; gradients have the shape of their output anyway.
  bool variable_seq_lengths = false;
  bool operator==(const ExecutorOptions&) const = default;
};

}  // namespace concord
