// Batch size ramp-up: Megatron's rampup_batch_size. Pure.
#pragma once

#include <cstdint>

namespace concord {

// Grows from |start| samples to the full batch in equal steps of |increment|, distributed over the first |samples|.
struct BatchRamp {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;

  // Returns the size of the batch after |consumed| samples; |full| is the final one.
  int64_t rows_after(int64_t consumed, int64_t full) const {
    if (consumed > samples) return full;
    const int64_t increments = (full - start) / increment;
    const double samples_per_increment = static_cast<double>(samples) / static_cast<double>(increments);
    return start + static_cast<int64_t>(static_cast<double>(consumed) / samples_per_increment) * increment;
  }
  bool operator==(const BatchRamp&) const = default;
};

}  // namespace concord
