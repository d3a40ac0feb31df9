// A batch that grows while a run goes on: Megatron's rampup_batch_size. Pure.
#pragma once

#include <cstdint>

namespace concord {

// From |start| samples to the full batch in equal steps of |increment|, which are spread over the first |samples|.
struct BatchRamp {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;

  // Of the batch that follows |consumed| samples; |full| is the one at the end.
  int64_t rows_after(int64_t consumed, int64_t full) const {
    if (consumed > samples) return full;
    const int64_t increments = (full - start) / increment;
    const double samples_per_increment = static_cast<double>(samples) / static_cast<double>(increments);
    return start + static_cast<int64_t>(static_cast<double>(consumed) / samples_per_increment) * increment;
  }
  bool operator==(const BatchRamp&) const = default;
};

}  // namespace concord
