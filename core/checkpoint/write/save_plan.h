// The tensors of a save, and the file and position of each: the same value on every rank.
//
// A save has sets of tensors, each in separate files: the weights, and others (the optimizer's state). Every rank knows
// the tensors of its own stage; the plan covers all stages. Pure; threads: any.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/hf_plan.h"

namespace concord {

struct SavePlan {
  struct Set {
    std::string stem;  // prefix of its file names
    HfFolderPlan folder;
    // Tensors that this rank's stage shares with an earlier one, which writes them.
    std::set<std::string> of_earlier_stages;
    size_t first_tensor = 0;  // index of the set's first tensor over all sets
  };
  // The position of a tensor, and its index over all sets and files.
  struct Place {
    size_t file;  // index in the set
    const safetensors::TensorInfo* tensor;
    uint64_t begin;  // offset of its first byte in the file
    size_t number;
  };

  std::vector<Set> sets;
  size_t tensor_count = 0;
  uint64_t total_bytes = 0;  // sum over all tensors

  Place find(size_t set, const std::string& tensor) const;  // throws std::out_of_range
};

// Serialises the tensors of a stage for the other stages, and parses them.
std::string list_text(const std::vector<safetensors::TensorShape>& tensors);
std::vector<safetensors::TensorShape> parse_list(const std::string& text);

// |stems| are the prefixes of the sets; |lists| has the list_text() of every stage for each set. Throws ConfigError if
// two stages have the same tensor in different shapes or types.
SavePlan plan_save(const std::vector<std::string>& stems, const std::vector<std::vector<std::string>>& lists,
                   int64_t max_shard_bytes, int64_t own_stage);

}  // namespace concord
