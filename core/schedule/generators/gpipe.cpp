// GPipe (Huang et al. 2019): every forward, then every backward.
#include "core/schedule/generators/generators.h"

namespace concord::generators {

void gpipe(const Sizes& sizes, Schedule* schedule) {
  for (int rank = 0; rank < sizes.pp; ++rank) {
    Numbering number(sizes.pp, sizes.microbatches, &schedule->ranks[static_cast<size_t>(rank)]);
    for (int i = 0; i < sizes.microbatches; ++i) number.add(ActionKind::forward, rank);
    for (int i = 0; i < sizes.microbatches; ++i) number.add(ActionKind::backward, rank);
    schedule->activation_limit.push_back(sizes.microbatches);
  }
}

}  // namespace concord::generators
