// Which tensors a save consists of, and where each of them goes: the same value on every rank.
//
// A save has sets of tensors, each in files of its own: the weights, and more (the optimizer's state). Every rank knows
// the tensors of its own stage; plan_save tells them to all others.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/hf_plan.h"

namespace concord {

// The tensors of one set that this rank's stage has.
struct SetTensors {
  std::string stem;  // what the names of the set's files begin with
  std::vector<safetensors::TensorShape> tensors;
  bool operator==(const SetTensors&) const = default;
};

struct SavePlan {
  struct Set {
    std::string stem;
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

  // What it was made from on this rank.
  std::vector<SetTensors> own_sets;
  int64_t max_shard_bytes = 0;
};

// All ranks call it, with the tensors of their stages. |previous| is returned where nothing has changed on any rank.
// Throws ConfigError where two stages have the same tensor in different shapes or types. Waits: for all ranks.
std::shared_ptr<const SavePlan> plan_save(std::vector<SetTensors> sets, int64_t max_shard_bytes, ParallelContext& job,
                                          std::shared_ptr<const SavePlan> previous = nullptr);

}  // namespace concord
