// Sums over the steps since the last log line. Plain values.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "trainer/data/token_batch.h"

namespace concord {

struct LogWindow {
  int64_t tokens = 0;  // tokens over all ranks, excluding padding
  int64_t samples = 0;
  double squared_lengths = 0;
  int64_t patches = 0;
  double squared_patches = 0;
  double seconds = 0;       // time of the steps before the run was resumed
  double save_seconds = 0;  // time that steps waited for checkpoints; not saved in checkpoints
  int64_t steps = 0;
  int64_t skipped = 0;
  int64_t untrained = 0;  // skipped steps that had nothing to train on: iterations_to_skip, or no labels
  double last_grad_norm = std::numeric_limits<double>::quiet_NaN();  // norm of the last step that was not skipped
  double largest_grad_norm = std::numeric_limits<double>::quiet_NaN();

  // Adds a step. |trained|: a loss and gradients were computed.
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
    patches += contents.patches;
    squared_patches += contents.squared_patches;
  }
};

}  // namespace concord
