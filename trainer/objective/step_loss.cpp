#include "trainer/objective/step_loss.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "trainer/objective/pair_objective.h"

namespace concord {

int64_t counted_in(const MicroBatch& batch, const LossRule& rule) {
  return rule.pairs ? counted_pairs(batch) : batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
}

std::vector<double> loss_weights(std::span<const MicroBatch> batches, const LossRule& rule) {
  std::vector<double> weights(batches.size(), 1);
  if (rule.per_token) return weights;
  const double share = static_cast<double>(rule.cp) / static_cast<double>(batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    // Without counted tokens the loss is 0, not 0 / 0.
    weights[i] = share / static_cast<double>(std::max<int64_t>(1, counted_in(batches[i], rule)));
  }
  return weights;
}

std::vector<double> router_loss_weights(std::span<const MicroBatch> batches, const LossRule& rule) {
  std::vector<double> weights(batches.size(), static_cast<double>(rule.cp) / static_cast<double>(batches.size()));
  if (!rule.per_token) return weights;
  for (size_t i = 0; i < batches.size(); ++i) weights[i] = static_cast<double>(counted_in(batches[i], rule));
  return weights;
}

at::Tensor logged_losses(const ModelStage& stage, std::span<const double> weights, const LossRule& rule) {
  if (!stage.is_last()) return at::zeros({0}, at::TensorOptions().dtype(at::kFloat));
  const double ranks = rule.per_token ? 1 : static_cast<double>(rule.cp * rule.dp);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < weights.size(); ++i) {
    parts.push_back(stage.token_losses()[i].sum().to(at::kFloat).mul(weights[i] / ranks));
  }
  return at::stack(parts);
}

}  // namespace concord
