// Forwards only, for evaluation. No activations are kept for a backward, so only the order over the chunks matters.
#include "core/schedule/generators/generators.h"

namespace concord::generators {
namespace {

// In a loop of chunks all ranks use the same order, so every value is available when it is needed.
void forward_loop(const Sizes& sizes, Schedule* schedule) {
  const std::vector<ChunkStep> steps = chunk_steps(sizes);
  for (int rank = 0; rank < sizes.pp; ++rank) {
    for (const ChunkStep& step : steps) {
      schedule->ranks[static_cast<size_t>(rank)].push_back(
          {.stage = step.chunk * sizes.pp + rank, .microbatch = step.microbatch, .kind = ActionKind::forward});
    }
  }
}

// In a v, micro-batch 0 returns to rank r when it has run 2 (pp - r) - 1 forwards of its first chunk; from then on the
// chunks alternate.
void forward_v(const Sizes& sizes, Schedule* schedule) {
  for (int rank = 0; rank < sizes.pp; ++rank) {
    Numbering number(2 * sizes.pp, sizes.microbatches, &schedule->ranks[static_cast<size_t>(rank)]);
    const int there = rank;
    const int back = 2 * sizes.pp - 1 - rank;
    for (int i = 0; i < 2 * (sizes.pp - rank) - 1; ++i) number.add(ActionKind::forward, there);
    for (int i = 0; i < sizes.microbatches; ++i) {
      number.add(ActionKind::forward, back);
      number.add(ActionKind::forward, there);
    }
  }
}

}  // namespace

void forward_only(const Sizes& sizes, Schedule* schedule) {
  schedule->activation_limit.assign(static_cast<size_t>(sizes.pp), 1);
  if (schedule->rank_of_stage == place_stages(Placement::loop, sizes.pp, sizes.vpp)) {
    forward_loop(sizes, schedule);
  } else {
    forward_v(sizes, schedule);
  }
}

}  // namespace concord::generators
