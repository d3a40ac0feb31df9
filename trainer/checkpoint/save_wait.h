// A checkpoint that was due while the one before it was still being written, and waited for it. Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace concord {

struct SaveWait {
  int64_t previous = 0;  // step of the checkpoint that was being written
  int64_t step = 0;      // step of the checkpoint that waited
  double seconds = 0;    // that the save of |previous| took, the wait included
  double waited = 0;     // the part of |seconds| after |step|

  // False for a wait of less than 1 % of the save, which is not worth a message.
  bool is_noticeable() const { return waited > 0.01 * seconds; }
  // The least number of steps between two checkpoints with which none would wait: |seconds| in steps of the length that
  // those between the two had.
  int64_t fitting_interval() const {
    return static_cast<int64_t>(std::ceil(static_cast<double>(step - previous) * seconds / (seconds - waited)));
  }
};

// For the log.
std::string to_string(const SaveWait& wait);

}  // namespace concord
