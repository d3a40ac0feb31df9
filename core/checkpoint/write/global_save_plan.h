// The global plan of a save, agreed on by all ranks before the first byte is written: the tensors, and which rank
// writes which part. Threads: the thread that computes.
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

// The plan shared by the saves of a job as long as their tensors do not change; created by the first save.
struct GlobalSavePlan {
  std::vector<std::pair<std::string, std::vector<safetensors::TensorShape>>>
      own_sets;  // sets of this rank: stem, tensors
  int64_t max_shard_bytes = 0;
  SavePlan plan;
};

// All ranks call it. Returns |previous|, which may be null, if nothing has changed on any rank. Runs |first| before; if
// that throws on one rank, all throw (run_and_propagate_errors). Waits: for all ranks.
std::shared_ptr<const GlobalSavePlan> create_global_plan(std::span<Parameter* const> parameters,
                                                         const HfSaveOptions& options, ParallelContext& context,
                                                         std::shared_ptr<const GlobalSavePlan> previous,
                                                         const std::function<void()>& first);

// Returns the chunks that this rank writes, as views of the parameters and the state.
std::vector<SaveChunk> own_chunks(const GlobalSavePlan& plan, std::span<Parameter* const> parameters,
                                  const HfSaveOptions& options, const ParallelContext& context);

}  // namespace concord
