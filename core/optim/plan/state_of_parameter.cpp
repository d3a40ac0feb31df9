#include "core/optim/plan/state_of_parameter.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "core/checkpoint/hf_plan.h"

namespace concord {

bool takes_blocks(const ShardSpec& parameter) {
  std::vector<int64_t> elements;
  for (const GlobalTensor& tensor : global_tensors(parameter)) {
    elements.push_back(
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<int64_t>()));
  }
  return takes_blocks(elements);
}

bool takes_muon(const ShardSpec& parameter) {
  const std::string& name = parameter.name;
  if (name == "model.embed_tokens.weight" || name == "lm_head.weight" || name == "score.weight") return false;
  return parameter.dims.size() - (parameter.stacked ? 1 : 0) == 2 && !name.ends_with("bias");
}

StatePlan plan_state(const OptimizerOptions& options, const ShardSpec& parameter, bool has_main) {
  StatePlan plan = plan_state(options, has_main);
  if (options.optimizer == OptimizerType::muon && takes_muon(parameter)) {
    std::erase_if(plan.tensors, [](const StatePlan::Tensor& tensor) { return tensor.key == "exp_avg_sq"; });
  }
  for (StatePlan::Tensor& tensor : plan.tensors) {
    if (has_scales(tensor.type) && !takes_blocks(parameter)) tensor.type = StateType::fp32;
  }
  return plan;
}

int64_t next_host_piece(int64_t size, int64_t left, const HostShare& share) {
  const int64_t most = std::min(left, std::max(share.piece, share.unit));
  return size <= most ? size : most / share.unit * share.unit;
}

}  // namespace concord
