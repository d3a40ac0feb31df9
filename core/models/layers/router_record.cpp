#include "core/models/layers/router_record.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include "core/ops/derivative.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace {

// Shapes in names: p, b as in layer_context.h; e experts, k choices.

using at::Tensor;

// How often each expert is among the choices, per row. Whole numbers, so that the order of additions does not matter.
Tensor count_choices(const Tensor& experts_pbk, int64_t count) {
  const Tensor of_rows_bn = experts_pbk.transpose(0, 1).flatten(1);
  const Tensor counts_be = at::zeros({of_rows_bn.size(0), count}, of_rows_bn.options().dtype(at::kFloat));
  return counts_be.scatter_add_(1, of_rows_bn, at::ones_like(of_rows_bn, counts_be.options()));
}

Tensor summed_over_tokens(const Tensor& chosen_be, const LayerContext& context, bool over_dp = false) {
  const Tensor sum_be = chosen_be.clone();
  ProcessGroup& group = over_dp ? *context.dp_cp : *context.cp;
  if (group.size() > 1) group.all_reduce(sum_be).wait();
  if (context.sequence_parallel && context.tp->size() > 1) context.tp->all_reduce(sum_be).wait();
  return sum_be;
}

// What losses balance; a sum of sigmoids may be 0.
Tensor balanced_scores(const Tensor& wide_pbe, const ExpertConfig& experts) {
  if (!experts.sigmoid_scores) return at::softmax(wide_pbe, -1);
  const Tensor sigmoids_pbe = at::sigmoid(wide_pbe);
  return sigmoids_pbe / (sigmoids_pbe.sum(-1, /*keepdim=*/true) + 1e-20);
}

// Returns the tokens for which an expert is among the best scores, if the router did not choose by the scores alone.
Tensor counted_choices(const Tensor& scores_pbe, const Tensor& chosen_be, const ExpertConfig& experts) {
  if (experts.bias.empty() && experts.n_group == 1) return chosen_be;
  return count_choices(std::get<1>(at::topk(scores_pbe, experts.num_experts_per_tok, -1)), experts.num_experts);
}

// Adds a micro-batch to the counts of the step, and returns them.
Tensor counted_in_step(CountsOfStep& step, size_t number, const Tensor& counted_be, const LayerContext& context) {
  const Tensor own_be = summed_over_tokens(counted_be.sum(0, true), context, /*over_dp=*/true);
  Tensor& so_far = step.layers[number];
  so_far = so_far.defined() ? so_far + own_be : own_be;
  return so_far;
}

// d loss / d score of a token for each expert, [..., 1 or b, e]: the counts times a number. |counts_be| is
// chosen_by_all of a layer, or of several, stacked.
Tensor score_factors(const RouterRecord& record, const Tensor& counts_be) {
  const RouterLosses& losses = record.losses;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double scaled = losses.coefficient * real(record.experts);
  const double choices = real(record.choices), tokens = real(record.tokens());
  switch (losses.balancing) {
    case Balancing::sequence_aux:
      return counts_be * (scaled / (choices * real(record.row_tokens) * tokens));  // 1 / (S^2 B)
    case Balancing::aux: return counts_be.sum(-2, true) * (scaled / (choices * tokens * tokens));
    case Balancing::global_aux: return counts_be / counts_be.sum(-1, true) * (scaled / tokens);
    default: break;
  }
  const Tensor all_be =
      record.chosen_in_all_layers.defined() ? record.chosen_in_all_layers : chosen_in_own_layers(record);
  const double rows = real(record.sparse_layers) * tokens;
  return all_be * (scaled / (rows * rows));
}

Tensor logits_grad(const Tensor& logits_pbe, const RouterRecord& record, size_t number, const ExpertConfig& experts) {
  const Tensor wide_pbe = logits_pbe.to(ops::sum_type(logits_pbe.scalar_type()));
  const RouterLosses& losses = record.losses;
  Tensor grad_pbe = at::zeros({}, wide_pbe.options());
  if (losses.balances()) {
    const Tensor scores_pbe = balanced_scores(wide_pbe, experts);
    const Tensor factors_be = score_factors(record, record.layers[number].chosen_by_all).to(scores_pbe.scalar_type());
    const Tensor mean_pb1 = (scores_pbe * factors_be).sum(-1, true);
    // Softmax's derivative, and that of s / sum s, whose s have s (1 - s).
    grad_pbe = scores_pbe * (factors_be - mean_pb1);
    if (experts.sigmoid_scores) grad_pbe = grad_pbe * (1 - at::sigmoid(wide_pbe));
  }
  if (losses.z_coefficient > 0) {
    const double factor = 2 * losses.z_coefficient / static_cast<double>(record.tokens());
    grad_pbe = grad_pbe + at::softmax(wide_pbe, -1) * at::logsumexp(wide_pbe, -1, true) * factor;
  }
  return (grad_pbe * record.weight).to(logits_pbe.scalar_type());
}

void write(RouterRecord& record, size_t number, const Tensor& logits_pbe, const Routing& routing,
           const LayerContext& context) {
  const at::NoGradGuard no_grad;
  RouterRecord::Layer& layer = record.layers[number];
  layer.chosen = count_choices(routing.experts, record.experts);
  const RouterLosses& losses = record.losses;
  if (!losses.any()) return;
  const Tensor wide_pbe = logits_pbe.to(ops::sum_type(logits_pbe.scalar_type()));
  if (losses.balances()) {
    const Tensor scores_pbe = balanced_scores(wide_pbe, context.config.experts);
    const Tensor counted_be = counted_choices(scores_pbe, layer.chosen, context.config.experts);
    layer.scores = scores_pbe.sum(0);
    if (losses.balancing != Balancing::global_aux) {
      layer.chosen_by_all = summed_over_tokens(counted_be, context);
    } else if (!layer.chosen_by_all.defined()) {  // when it is recomputed, other micro-batches have been added
      layer.chosen_by_all = counted_in_step(*record.step, number, counted_be, context);
    }
  }
  if (losses.z_coefficient > 0) layer.squared_z = at::logsumexp(wide_pbe, -1).square().sum();
}

// For one kernel instead of one for each layer: the tensors are so small that launching costs more than the sums.
std::vector<Tensor> of_layers(const RouterRecord& record, Tensor RouterRecord::Layer::* which) {
  std::vector<Tensor> there;
  for (const RouterRecord::Layer& layer : record.layers) {
    if ((layer.*which).defined()) there.push_back(layer.*which);
  }
  return there;
}

}  // namespace

Tensor with_router_losses(const Tensor& logits_pbe, const Routing& routing, int64_t number, const LayerContext& context,
                          const std::shared_ptr<RouterRecord>& record) {
  const auto index = static_cast<size_t>(number);
  write(*record, index, logits_pbe, routing, context);
  if (!record->losses.any()) return routing.weights;
  const auto run = [&] { return ops::Forward{routing.weights.view_as(routing.weights), {logits_pbe}}; };
  return ops::differentiable("router_losses", {routing.weights, logits_pbe}, run,
                             [index, record, &experts = context.config.experts](const ops::Backward& b) {
                               return ops::Tensors{b.grad, logits_grad(b.saved[0], *record, index, experts)};
                             });
}

Tensor chosen_in_own_layers(const RouterRecord& record) {
  const std::vector<Tensor> counts_be = of_layers(record, &RouterRecord::Layer::chosen_by_all);
  return counts_be.empty() ? Tensor() : at::cat(counts_be).sum(0, true);
}

Tensor router_loss_parts(const RouterRecord& record) {
  const at::NoGradGuard no_grad;
  Tensor balancing, z;
  if (const auto scores_be = of_layers(record, &RouterRecord::Layer::scores); !scores_be.empty()) {
    const Tensor counts_lbe = at::stack(of_layers(record, &RouterRecord::Layer::chosen_by_all));
    balancing = (at::stack(scores_be) * score_factors(record, counts_lbe)).sum();
  }
  if (const auto squares = of_layers(record, &RouterRecord::Layer::squared_z); !squares.empty()) {
    z = at::stack(squares).sum() * (record.losses.z_coefficient / static_cast<double>(record.tokens()));
  }
  if (!balancing.defined() && !z.defined()) return {};
  const Tensor none = at::zeros({}, (balancing.defined() ? balancing : z).options());
  return at::stack({balancing.defined() ? balancing : none, z.defined() ? z : none});
}

}  // namespace concord
