#include "core/mesh/machines.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "core/base/config_error.h"
#include "core/base/refused_combinations.h"

namespace concord {
namespace {

constexpr const char* kShareInstead =
    "or set save_on_each_node to false and output_dir to a folder on a file system that all machines share";

// Returns the sizes that shard the model: "tensor_model_parallel_size 2, pipeline_model_parallel_size 4".
std::string sizes_text(const RankLayout& layout) {
  std::string text;
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, size);
  };
  add("tensor_model_parallel_size", layout.tp());
  add("pipeline_model_parallel_size", layout.pp());
  add("expert_model_parallel_size", layout.ep());
  if (layout.etp() != layout.tp()) add("expert_tensor_parallel_size", layout.etp());
  return text;
}

// Returns the number of distinct shards of the dense layers, or of the expert layers, on |ranks|.
int64_t parts_on(const RankLayout& layout, const RankRange& ranks, bool of_experts) {
  std::set<std::tuple<int64_t, int64_t, int64_t>> parts;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const RankCoordinates at = layout.coordinates(rank);
    parts.insert(of_experts ? std::tuple(at.pp, at.etp, at.ep) : std::tuple(at.pp, at.tp, int64_t{0}));
  }
  return static_cast<int64_t>(parts.size());
}

}  // namespace

std::string RankRange::to_string() const {
  return size() == 1 ? fmt::format("rank {}", begin) : fmt::format("ranks {}-{}", begin, end - 1);
}

RankRange Machines::ranks_of(size_t machine) const {
  return {first[machine], machine + 1 < first.size() ? first[machine + 1] : world};
}

size_t Machines::machine_of(int64_t rank) const {
  return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), rank) - first.begin()) - 1;
}

int64_t Machines::backup_rank(int64_t rank) const {
  const size_t own = machine_of(rank), next = (own + 1) % first.size();
  return next == own ? rank : first[next] + (rank - first[own]) % ranks_of(next).size();
}

Machines machines_from(std::span<const int64_t> first_ranks, std::span<const int64_t> local_worlds) {
  Machines machines{.first = {}, .world = static_cast<int64_t>(first_ranks.size())};
  for (int64_t rank = 0; rank < machines.world; ++rank) {
    if (first_ranks[static_cast<size_t>(rank)] == rank) machines.first.push_back(rank);
  }
  for (int64_t rank = 0; rank < machines.world; ++rank) {
    const int64_t first = first_ranks[static_cast<size_t>(rank)], local = local_worlds[static_cast<size_t>(rank)];
    const RankRange expected{first, first + local};
    if (first >= 0 && first <= rank && machines.ranks_of(machines.machine_of(rank)) == expected) continue;
    throw ConfigError(
        fmt::format("rank {} is one of {} on its machine and has the local rank {}, so the ranks of the machines are "
                    "mixed; number those of a machine one after another: start the job with `concord launch`, "
                    "torchrun, srun --distribution=block or mpirun --map-by slot",
                    rank, local, rank - first));
  }
  return machines;
}

void check_machines_are_whole(const RankLayout& layout, const Machines& machines, bool shards_state) {
  if (machines.first.size() < 2) return;
  for (size_t i = 0; i < machines.first.size(); ++i) {
    const RankRange ranks = machines.ranks_of(i);
    for (const bool of_experts : {false, true}) {
      const int64_t all = layout.pp() * (of_experts ? layout.etp() * layout.ep() : layout.tp());
      const int64_t there = parts_on(layout, ranks, of_experts);
      if (there == all) continue;
      throw ConfigError(fmt::format(
          "save_on_each_node: every machine writes whole checkpoints, but machine {} ({}) has {} of the {} parts of {} "
          "({}); choose sizes whose parts fit on each machine, {}",
          i, ranks.to_string(), there, all, of_experts ? "the experts" : "the model", sizes_text(layout),
          kShareInstead));
    }
  }
  if (!shards_state) return;
  throw ConfigError(
      refusal_message(Refused::sharded_state_on_each_node,
                      fmt::format("save_on_each_node with use_distributed_optimizer, over the {} data-parallel ranks on "
                                  "{} machines,",
                                  layout.dp() * layout.cp(), machines.first.size())));
}

int64_t first_of_stage(const RankLayout& layout, int64_t rank, const std::optional<RankRange>& within) {
  const int64_t stage = layout.coordinates(rank).pp;
  if (!within) return layout.rank_at(0, 0, 0, stage);
  int64_t first = within->begin;
  while (layout.coordinates(first).pp != stage) ++first;
  return first;
}

}  // namespace concord
