// The small network in training, for tests of the optimizer.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "core/data_parallel/finalize_grads.h"
#include "core/optim/optimizer.h"
#include "core/optim/state_precision.h"
#include "tests/processes/small_network.h"

namespace concord::tests {

struct Training {
  SmallNetwork network;
  DistributedDataParallel ddp;
  Optimizer optimizer;

  // With |shards| the state is distributed over all ranks.
  Training(ParallelContext& job, at::ScalarType type, const OptimizerOptions& options, bool shards,
           int64_t width = SmallNetwork::kWidth)
      : network(type, width),
        ddp({replicated(network)}, job,
            {.use_distributed_optimizer = shards,
             .ddp_bucket_size = 100,
             .parameter_alignment = state_alignment(options.precision)}),
        optimizer(ddp, options) {}

  static std::vector<Parameter*> replicated(SmallNetwork& network) {
    for (Parameter* parameter : network.parameters()) parameter->spec.replicated_over = {GroupKind::dp_cp};
    return network.parameters();
  }

  // Steps |first| to |last| - 1; their data follows from their number and the rank.
  void train(const ParallelContext& job, uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) {
      ddp.begin_step(1);
      network.loss(10 + static_cast<uint64_t>(job.rank()) + 100 * i).backward();
      finalize_grads(ddp);
      EXPECT_TRUE(optimizer.step({.lr = 1e-2, .weight_decay = 0.1}).updated);
    }
    ddp.finish_param_gather();
  }

  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> all;
    for (const Parameter* parameter : network.parameters()) all.push_back(parameter->value.detach().clone());
    return all;
  }
};

inline bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return a.size() == b.size();
}

}  // namespace concord::tests
