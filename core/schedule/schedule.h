// A pipeline schedule as data: for each rank of the pipeline the list of its actions, in their order. Pure functions
// make it (schedules.h), complete it (passes.h), check it (check.h), simulate its cost (simulate.h) and print it; an
// executor walks one rank's list. Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/schedule/action.h"

namespace concord {

// Which rank holds which stage.
//   loop   stage s is on rank s % pp: every rank has a chunk before any has its second (Megatron's virtual stages)
//   v      two chunks per rank; the second run of stages goes back from the last rank to the first, so that the first
//          rank holds both ends of the model and the middle of it crosses no link
enum class Placement : uint8_t { loop, v };

std::string_view to_string(Placement placement);

struct Schedule {
  std::string kind;  // "1f1b", ..., or "csv" for one that was read
  int pp = 1;        // ranks of the pipeline
  int vpp = 1;       // chunks per rank
  int microbatches = 1;
  std::vector<int> rank_of_stage;          // pp * vpp entries
  std::vector<std::vector<Action>> ranks;  // pp lists
  std::vector<int64_t> activation_limit;   // of each rank: the most (micro-batch, chunk) activations held at a time

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  int rank_of(int stage) const { return rank_of_stage[static_cast<size_t>(stage)]; }
  bool on_one_rank(int stage, int other) const { return rank_of(stage) == rank_of(other); }

  // Where the values of (stage, micro-batch) stand in an array that has one for each.
  size_t slot(const Action& action) const {
    return static_cast<size_t>(action.stage) * static_cast<size_t>(microbatches) +
           static_cast<size_t>(action.microbatch);
  }
  size_t slots() const { return rank_of_stage.size() * static_cast<size_t>(microbatches); }

  bool operator==(const Schedule&) const = default;
};

// The ranks of stages 0 .. pp*vpp-1. Throws ConfigError for a v of other than two chunks.
std::vector<int> place_stages(Placement placement, int pp, int vpp);

// The stages of |rank|, ascending: its chunks 0 .. vpp-1.
std::vector<int> stages_of(const Schedule& schedule, int rank);

bool has_transfers(const Schedule& schedule);  // false for a schedule of computations only, before add_communication
bool has_reductions(const Schedule& schedule);
bool is_forward_only(const Schedule& schedule);

// The remote value that |action| (a computation) waits for, as the action that produces it: for a forward the stage
// before, for a backward or input_grad the next stage. Nothing at the ends of the model and for weight_grad; may be
// on the same rank. The gradient is given as input_grad, whether or not the producer splits its backward.
std::optional<Action> producer_of(const Schedule& schedule, const Action& action);

// How many activations each rank holds at most: from a forward to the action that frees them (at its end), or only
// during the forward where nothing follows it.
std::vector<int64_t> peak_activations(const Schedule& schedule);

}  // namespace concord
