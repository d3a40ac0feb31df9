// Log-probabilities of the reference for all pairs of the training data, computed once before training and kept in a
// file (precompute_ref_log_probs). Every rank holds all of them, 16 bytes per pair. Threads: training thread only.
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
  // Returns log-probabilities [2 pairs] for each micro-batch of |batches|, which are on the host; empty except on the
  // last stage.
  using Compute = std::function<std::vector<at::Tensor>(const std::vector<MicroBatch>& batches)>;

  // Reads the table from output_dir if a run with the same data and reference wrote one; otherwise computes it, in the
  // order of the data, and rank 0 writes it there. Every rank calls it. Waits: for all ranks.
  ReferenceTable(const TrainingPlan& plan, ParallelContext& job, const Compute& compute);

  // Returns the log-probabilities of |batch|, [2 pairs] on the job's device.
  at::Tensor of(const MicroBatch& batch) const;

 private:
  ParallelContext& job_;
  at::Tensor logps_;  // fp64 [pairs, 2], on the host
};

}  // namespace concord
