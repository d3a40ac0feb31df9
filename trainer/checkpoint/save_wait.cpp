#include "trainer/checkpoint/save_wait.h"

#include <fmt/core.h>

namespace concord {

std::string to_string(const SaveWait& wait) {
  return fmt::format(
      "training waited {:.2g} s at step {} for the checkpoint of step {}, which took {:.2g} s to write; with at least "
      "{} "
      "steps between checkpoints (save_steps; here {}) it would not wait. This is logged once",
      wait.waited, wait.step, wait.previous, wait.seconds, wait.fitting_interval(), wait.step - wait.previous);
}

}  // namespace concord
