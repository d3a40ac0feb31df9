// What a save writes, and which rank writes what of it: agreed on by all ranks before the first byte is written.
// Threads: the one that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/write/save_chunks.h"
#include "core/checkpoint/write/save_plan.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// What a job's saves have in common, as long as their tensors do not change: made by the first one.
struct GlobalSavePlan {
  std::vector<std::pair<std::string, std::vector<safetensors::TensorShape>>> own_sets;  // of this rank: stem, tensors
  int64_t max_shard_bytes = 0;
  SavePlan plan;
};

// All ranks. |previous|, which may be null, where nothing has changed on any rank. |first| is run before, and where it
// throws on one rank all of them do (run_and_propagate_errors). Waits: for all ranks.
std::shared_ptr<const GlobalSavePlan> create_global_plan(std::span<Parameter* const> parameters,
                                                         const HfSaveOptions& options, ParallelContext& context,
                                                         std::shared_ptr<const GlobalSavePlan> previous,
                                                         const std::function<void()>& first);

// What this rank writes, as it is in the parameters and the state: views of them.
std::vector<SaveChunk> own_chunks(const GlobalSavePlan& plan, std::span<Parameter* const> parameters,
                                  const HfSaveOptions& options, const ParallelContext& context);

}  // namespace concord
