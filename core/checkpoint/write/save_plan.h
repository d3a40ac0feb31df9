// Which tensors a save consists of, and where each of them goes: the same value on every rank.
//
// A save has sets of tensors, each in files of its own: the weights, and more (the optimizer's state). Every rank knows
// the tensors of its own stage, and all stages together make the plan. Pure; threads: any.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/hf_plan.h"

namespace concord {

struct SavePlan {
  struct Set {
    std::string stem;  // what the names of its files begin with
    HfFolderPlan folder;
    // Tensors that this rank's stage shares with an earlier one, which writes them.
    std::set<std::string> of_earlier_stages;
    size_t first_tensor = 0;  // number of the set's first tensor among those of all sets
  };
  // A tensor's place, and its number over all sets and files.
  struct Place {
    size_t file;  // of the set
    const safetensors::TensorInfo* tensor;
    uint64_t begin;  // of its first byte in the file
    size_t number;
  };

  std::vector<Set> sets;
  size_t tensor_count = 0;
  uint64_t total_bytes = 0;  // of all tensors

  Place find(size_t set, const std::string& tensor) const;  // throws std::out_of_range
};

// The tensors of a stage as text, for the other stages, and back.
std::string list_text(const std::vector<safetensors::TensorShape>& tensors);
std::vector<safetensors::TensorShape> parse_list(const std::string& text);

// |stems| of the sets, and for each the list_text of every stage. Throws ConfigError where two stages have the same
// tensor in different shapes or types.
SavePlan plan_save(const std::vector<std::string>& stems, const std::vector<std::vector<std::string>>& lists,
                   int64_t max_shard_bytes, int64_t own_stage);

}  // namespace concord
