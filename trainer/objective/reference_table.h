// Log-probabilities of the reference for all pairs of the training data, computed once before training and kept in a
// file (precompute_ref_log_probs). Every rank has all of them, 16 bytes per pair. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/micro_batch.h"
#include "trainer/plan.h"

namespace concord {

inline constexpr const char* kReferenceFile = "reference_logps.safetensors";

class ReferenceTable {
 public:
  // Of |batches| on the host, on the last stage: log-probabilities [2 pairs] for each micro-batch; else nothing.
  using Compute = std::function<std::vector<at::Tensor>(const std::vector<MicroBatch>& batches)>;

  // From output_dir, where a run with the same data and reference has left them; else computed, all pairs in the order
  // of the data, and written there by rank 0. Every rank calls it. Waits: for all ranks.
  ReferenceTable(const TrainingPlan& plan, ParallelContext& job, const Compute& compute);

  // [2 pairs] on the job's device.
  at::Tensor of(const MicroBatch& batch) const;

 private:
  ParallelContext& job_;
  at::Tensor logps_;  // fp64 [pairs, 2], on the host
};

}  // namespace concord
