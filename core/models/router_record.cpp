#include "core/models/router_record.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
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

Tensor summed_over_tokens(const Tensor& chosen_be, const LayerContext& context) {
  const Tensor sum_be = chosen_be.clone();
  if (context.cp->size() > 1) context.cp->all_reduce(sum_be).wait();
  if (context.sequence_parallel && context.tp->size() > 1) context.tp->all_reduce(sum_be).wait();
  return sum_be;
}

// d loss / d score of a token for each expert, [1 or b, e]: the counts times a number.
Tensor score_factors(const RouterRecord& record, size_t number) {
  const RouterLosses& losses = record.losses;
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double scaled = losses.coefficient * real(record.experts);
  const double choices = real(record.choices), tokens = real(record.tokens());
  const Tensor& counts_be = record.layers[number].chosen_by_all;
  if (losses.balancing == Balancing::sequence_aux) {
    return counts_be * (scaled / (choices * real(record.row_tokens) * tokens));  // 1 / (S^2 B)
  }
  if (losses.balancing == Balancing::aux) return counts_be.sum(0, true) * (scaled / (choices * tokens * tokens));
  Tensor of_all_be = at::zeros({1, record.experts}, counts_be.options());
  for (const RouterRecord::Layer& layer : record.layers) {
    if (layer.chosen_by_all.defined()) of_all_be = of_all_be + layer.chosen_by_all.sum(0, true);
  }
  const double rows = real(record.sparse_layers) * tokens;
  return of_all_be * (scaled / (rows * rows));
}

Tensor logits_grad(const Tensor& logits_pbe, const RouterRecord& record, size_t number) {
  const Tensor wide_pbe = logits_pbe.to(ops::sum_type(logits_pbe.scalar_type()));
  const Tensor scores_pbe = at::softmax(wide_pbe, -1);
  const RouterLosses& losses = record.losses;
  Tensor grad_pbe = at::zeros({}, scores_pbe.options());
  if (losses.balances()) {
    const Tensor factors_be = score_factors(record, number).to(scores_pbe.scalar_type());
    const Tensor mean_pb1 = (scores_pbe * factors_be).sum(-1, true);
    grad_pbe = scores_pbe * (factors_be - mean_pb1);  // softmax's derivative
  }
  if (losses.z_coefficient > 0) {
    const double factor = 2 * losses.z_coefficient / static_cast<double>(record.tokens());
    grad_pbe = grad_pbe + scores_pbe * at::logsumexp(wide_pbe, -1, true) * factor;
  }
  return (grad_pbe * record.weight).to(logits_pbe.scalar_type());
}

void write(RouterRecord& record, size_t number, const Tensor& logits_pbe, const Routing& routing,
           const LayerContext& context) {
  const at::NoGradGuard no_grad;
  RouterRecord::Layer& layer = record.layers[number];
  layer.chosen = count_choices(routing.experts, record.experts);
  const RouterLosses& losses = record.losses;
  const Tensor wide_pbe = logits_pbe.to(ops::sum_type(logits_pbe.scalar_type()));
  if (losses.balances()) {
    layer.chosen_by_all = summed_over_tokens(layer.chosen, context);
    layer.scores = at::softmax(wide_pbe, -1).sum(0);
  }
  if (losses.z_coefficient > 0) layer.squared_z = at::logsumexp(wide_pbe, -1).square().sum();
}

}  // namespace

Tensor with_router_losses(const Tensor& logits_pbe, const Routing& routing, int64_t number, const LayerContext& context,
                          const std::shared_ptr<RouterRecord>& record) {
  const auto index = static_cast<size_t>(number);
  write(*record, index, logits_pbe, routing, context);
  if (!record->losses.any()) return routing.weights;
  const auto run = [&] { return ops::Forward{routing.weights.view_as(routing.weights), {logits_pbe}}; };
  return ops::differentiable("router_losses", {routing.weights, logits_pbe}, run,
                             [index, record](const ops::Backward& b) {
                               return ops::Tensors{b.grad, logits_grad(b.saved[0], *record, index)};
                             });
}

Tensor router_loss_parts(const RouterRecord& record) {
  const at::NoGradGuard no_grad;
  const double z_factor = record.losses.z_coefficient / static_cast<double>(record.tokens());
  Tensor parts;
  for (size_t i = 0; i < record.layers.size(); ++i) {
    const RouterRecord::Layer& layer = record.layers[i];
    if (!layer.scores.defined() && !layer.squared_z.defined()) continue;
    const Tensor none = at::zeros({}, (layer.scores.defined() ? layer.scores : layer.squared_z).options());
    const Tensor balancing = layer.scores.defined() ? (layer.scores * score_factors(record, i)).sum() : none;
    const Tensor own = at::stack({balancing, layer.squared_z.defined() ? layer.squared_z * z_factor : none});
    parts = parts.defined() ? parts + own : own;
  }
  return parts;
}

}  // namespace concord
