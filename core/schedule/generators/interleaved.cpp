// Interleaved 1F1B in Megatron's order (forward_backward_pipelining_with_interleaving): forwards run over the chunks in
// the order of chunk_steps, backwards in the same order with the chunks reversed.
#include <algorithm>

#include "core/schedule/generators/generators.h"

namespace concord::generators {

void interleaved(const Sizes& sizes, Schedule* schedule) {
  const std::vector<ChunkStep> steps = chunk_steps(sizes);
  const size_t total = steps.size();
  for (int rank = 0; rank < sizes.pp; ++rank) {
    std::vector<Action>& actions = schedule->ranks[static_cast<size_t>(rank)];
    const auto add = [&](ActionKind kind, int chunk, int microbatch) {
      actions.push_back({.stage = chunk * sizes.pp + rank, .microbatch = microbatch, .kind = kind});
    };
    const size_t warmup =
        std::min(static_cast<size_t>(2 * (sizes.pp - rank - 1) + (sizes.vpp - 1) * sizes.group), total);
    for (size_t i = 0; i < total + warmup; ++i) {
      if (i < total) add(ActionKind::forward, steps[i].chunk, steps[i].microbatch);
      if (i >= warmup) add(ActionKind::backward, sizes.vpp - 1 - steps[i - warmup].chunk, steps[i - warmup].microbatch);
    }
    schedule->activation_limit.push_back(static_cast<int64_t>(std::min(warmup + 1, total)));
  }
}

}  // namespace concord::generators
