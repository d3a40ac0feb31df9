// What a log line says of the steps since the last one. Plain values.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "trainer/data/token_batch.h"

namespace concord {

struct LogWindow {
  int64_t tokens = 0;  // of all ranks, without padding
  int64_t samples = 0;
  double squared_lengths = 0;
  double seconds = 0;       // of steps before the run was resumed
  double save_seconds = 0;  // that steps waited for checkpoints; not part of a checkpoint
  int64_t steps = 0;
  int64_t skipped = 0;
  int64_t untrained = 0;  // of these, those that had nothing to train on: iterations_to_skip, or no labels
  double last_grad_norm = std::numeric_limits<double>::quiet_NaN();  // of a step that was not skipped
  double largest_grad_norm = std::numeric_limits<double>::quiet_NaN();

  // |trained|: a loss and gradients were computed.
  void add_step(bool trained, bool updated, double grad_norm) {
    ++steps;
    if (!updated) {
      ++skipped;
      if (!trained) ++untrained;
      return;
    }
    last_grad_norm = grad_norm;
    largest_grad_norm = std::fmax(largest_grad_norm, grad_norm);
  }
  void add_batch(const BatchContents& contents) {
    tokens += contents.tokens;
    samples += contents.samples;
    squared_lengths += contents.squared_lengths;
  }
};

}  // namespace concord
