// Statistics of MoE routers between two log lines: the balance of tokens over experts, and the router losses. They stay
// on the device until take(): one all-reduce and one wait per log line. They are not saved in checkpoints: the first
// line of a resumed run covers the steps since then. Threads: training thread only.
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

// Returns the metrics of RouterLog for the |chosen| [layers][experts] tokens and, if not empty, the |dropped| ones.
// Pure.
NamedValues load_metrics(const std::vector<std::vector<double>>& chosen,
                         const std::vector<std::vector<double>>& dropped, const std::vector<bool>& sparse);

class RouterLog {
 public:
  RouterLog(ParallelContext& job, const ExpertConfig& experts, const ModelOptions& options)
      : job_(job),
        experts_(experts),
        sequence_parallel_(options.sequence_parallel),
        has_capacity_(options.moe.expert_capacity_factor > 0) {}

  // Adds a step. |stages| are this rank's. Call after each step.
  void add(const std::vector<std::unique_ptr<ModelStage>>& stages);

  // Returns metrics of the steps since the last call, over all ranks; empty for a model without experts:
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
  at::Tensor chosen_;   // this rank's tokens per expert, fp32 [layers, experts]
  at::Tensor dropped_;  // dropped tokens per expert, fp32 [layers, experts]
  at::Tensor losses_;   // sums over micro-batches, fp32 [2]
  bool has_balancing_ = false, has_z_ = false;
  int64_t micro_batches_ = 0;
};

}  // namespace concord
