// What the routers of a model with experts did between two log lines: how evenly tokens were spread, and their losses.
// Everything stays on the devices until it is taken: one reduction and one wait for the device per log line. Not in
// checkpoints: the first line after a resumed step has the steps since then. Threads: the one that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/models/expert_config.h"
#include "core/models/model_options.h"
#include "core/pipeline/model_stage.h"
#include "trainer/report/history.h"

namespace concord {

struct RouterRecord;

// What RouterLog says of the |chosen| [layers][experts] tokens and, if not empty, the |dropped| ones. Pure.
NamedValues load_metrics(const std::vector<std::vector<double>>& chosen,
                         const std::vector<std::vector<double>>& dropped, const std::vector<bool>& sparse);

class RouterLog {
 public:
  RouterLog(ParallelContext& job, const ExpertConfig& experts, const ModelOptions& options)
      : job_(job),
        experts_(experts),
        sequence_parallel_(options.sequence_parallel),
        has_capacity_(options.moe.expert_capacity_factor > 0) {}

  // After a step, of which |stages| are this rank's.
  void add(const std::vector<std::unique_ptr<ModelStage>>& stages);

  // Of the steps since the last call, over all ranks; none for a model without experts:
  //   expert_load_max_layer_N  tokens of the fullest expert of layer N, as a multiple of an even share
  //   expert_load_min_layer_N  the same for the emptiest one
  //   load_imbalance           the mean of the former over layers: 1 is even
  //   token_drop_rate_layer_N  the share of the choices of tokens in layer N that experts had no room for, and
  //   token_drop_rate          its mean over layers, if experts have a capacity
  //   router_aux_loss          the mean over micro-batches, with its coefficient, if it is on
  //   router_z_loss            the same
  // Every rank calls it. Waits: for all ranks.
  NamedValues take();

 private:
  void add(const RouterRecord& record);

  ParallelContext& job_;
  const ExpertConfig experts_;
  const bool sequence_parallel_;
  const bool has_capacity_;
  at::Tensor chosen_;   // fp32 [layers, experts] of this rank's tokens
  at::Tensor dropped_;  // the same
  at::Tensor losses_;   // fp32 [2], sums over micro-batches
  bool has_balancing_ = false, has_z_ = false;
  int64_t micro_batches_ = 0;
};

}  // namespace concord
