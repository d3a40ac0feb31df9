// A pipeline schedule as data: for each rank of the pipeline the ordered list of its actions. Pure functions create it
// (schedules.h), complete it (passes.h), check it (check.h), simulate its cost (simulate.h) and print it; an executor
// walks one rank's list. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/action.h"

namespace concord {

// The assignment of stages to ranks.
//   loop   stage s is on rank s % pp: every rank has a chunk before any has its second (Megatron's virtual stages)
//   v      two chunks per rank; the second half of the stages runs from the last rank back to the first, so that the
//          first rank holds both ends of the model and the middle of it crosses no link
enum class Placement : uint8_t { loop, v };

std::string_view to_string(Placement placement);

struct Schedule {
  std::string kind;  // "1f1b", ..., or "csv" if it was read from a file
  int pp = 1;        // ranks of the pipeline
  int vpp = 1;       // chunks per rank
  int microbatches = 1;
  std::vector<int> rank_of_stage;          // pp * vpp entries
  std::vector<std::vector<Action>> ranks;  // pp lists
  std::vector<int64_t> activation_limit;  // per rank: maximum number of (micro-batch, chunk) activations held at a time

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int rank_of(int stage) const { return rank_of_stage[static_cast<size_t>(stage)]; }
  bool on_one_rank(int stage, int other) const { return rank_of(stage) == rank_of(other); }

  // Returns the index of (stage, micro-batch) in an array with an entry for each.
  size_t slot(const Action& action) const {
    return static_cast<size_t>(action.stage) * static_cast<size_t>(microbatches) +
           static_cast<size_t>(action.microbatch);
  }
  size_t slots() const { return rank_of_stage.size() * static_cast<size_t>(microbatches); }

  bool operator==(const Schedule&) const = default;
};

// Returns the ranks of stages 0 .. pp*vpp-1. Throws ConfigError for a v unless it has two chunks.
std::vector<int> place_stages(Placement placement, int pp, int vpp);

// Returns the stages of |rank|, ascending: its chunks 0 .. vpp-1.
std::vector<int> stages_of(const Schedule& schedule, int rank);

bool has_transfers(const Schedule& schedule);  // false for a schedule of computations only, before add_communication
bool has_reductions(const Schedule& schedule);
bool is_forward_only(const Schedule& schedule);

// Returns the remote value that |action| (a computation) waits for, as the action that produces it: for a forward the
// previous stage, for a backward or input_grad the next stage. nullopt at the ends of the model and for weight_grad;
// the producer may be on the same rank. The gradient is returned as input_grad, whether or not the producer splits its
// backward.
std::optional<Action> producer_of(const Schedule& schedule, const Action& action);

// Returns the maximum number of activations that each rank holds: from a forward to the end of the action that frees
// them, or only during the forward if nothing follows it.
std::vector<int64_t> peak_activations(const Schedule& schedule);

}  // namespace concord
