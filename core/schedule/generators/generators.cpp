#include "core/schedule/generators/generators.h"

namespace concord::generators {

std::vector<ChunkStep> chunk_steps(const Sizes& sizes) {
  std::vector<ChunkStep> steps;
  for (int first = 0; first < sizes.microbatches; first += sizes.group) {
    const int end = std::min(first + sizes.group, sizes.microbatches);
    for (int chunk = 0; chunk < sizes.vpp; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) steps.push_back({chunk, microbatch});
    }
  }
  return steps;
}

Numbering::Numbering(int stages, int microbatches, std::vector<Action>* actions)
    : microbatches_(microbatches), actions_(actions), next_(static_cast<size_t>(stages) * kKinds, 0) {}

void Numbering::add(ActionKind kind, int stage) {
  int& next = next_[index(kind, stage)];
  if (next < microbatches_) actions_->push_back({.stage = stage, .microbatch = next, .kind = kind});
  ++next;
}

}  // namespace concord::generators
