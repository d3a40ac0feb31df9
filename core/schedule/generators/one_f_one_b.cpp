// 1F1B without interleaving (PipeDream-Flush; Megatron's forward_backward_pipelining_without_interleaving).
#include <algorithm>

#include "core/schedule/generators/generators.h"

namespace concord::generators {

void one_f_one_b(const Sizes& sizes, Schedule* schedule) {
  for (int rank = 0; rank < sizes.pp; ++rank) {
    Numbering number(sizes.pp, sizes.microbatches, &schedule->ranks[static_cast<size_t>(rank)]);
    const int warmup = sizes.pp - rank - 1;
    for (int i = 0; i < warmup; ++i) number.add(ActionKind::forward, rank);
    for (int i = 0; i < sizes.microbatches; ++i) {
      number.add(ActionKind::forward, rank);
      number.add(ActionKind::backward, rank);
    }
    schedule->activation_limit.push_back(std::min(sizes.pp - rank, sizes.microbatches));
  }
}

}  // namespace concord::generators
