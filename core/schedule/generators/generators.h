// Shared internals of the schedule generators; other code uses schedules.h, which checks the sizes first.
#pragma once

#include "core/schedule/schedule.h"

namespace concord::generators {

struct Sizes {
  int pp;
  int vpp;
  int microbatches;
  int group;  // microbatch_group_size_per_vp_stage
};

// Generators. Each fills |schedule->ranks| and |schedule->activation_limit|; the other fields are already set.
void gpipe(const Sizes& sizes, Schedule* schedule);
void one_f_one_b(const Sizes& sizes, Schedule* schedule);
void interleaved(const Sizes& sizes, Schedule* schedule);
void zb_h1(const Sizes& sizes, Schedule* schedule);
void zb_v(const Sizes& sizes, Schedule* schedule);
void forward_only(const Sizes& sizes, Schedule* schedule);

// Megatron's order of forwards over the chunks: groups of |group| micro-batches, each through all chunks before the
// next. For two chunks, groups of 3 and 5 micro-batches: micro-batch 0 1 2 0 1 2 3 4 3 4, chunk 0 0 0 1 1 1 0 0 1 1.
struct ChunkStep {
  int chunk;
  int microbatch;
  bool operator==(const ChunkStep&) const = default;
};
std::vector<ChunkStep> chunk_steps(const Sizes& sizes);

// Appends numbered actions of one rank: the n-th call for a stage and kind is its micro-batch n. Calls past the last
// micro-batch do nothing. The schedule of few micro-batches is thus that of many with the others omitted, which keeps
// it legal, since micro-batches are independent of each other.
class Numbering {
 public:
  Numbering(int stages, int microbatches, std::vector<Action>* actions);
  void add(ActionKind kind, int stage);
  int added(ActionKind kind, int stage) const { return next_[index(kind, stage)]; }

 private:
  static constexpr size_t kKinds = 4;  // the computations
  size_t index(ActionKind kind, int stage) const {
    return static_cast<size_t>(stage) * kKinds + static_cast<size_t>(kind);
  }
  int microbatches_;
  std::vector<Action>* actions_;
  std::vector<int> next_;
};

// Inserts a weight gradient for every input gradient: where a rank would otherwise wait if each computation took one
// unit of time, and before a forward that would exceed activation_limit. The order of the other actions is unchanged.
void fill_weight_gradients(Schedule* schedule);

}  // namespace concord::generators
