#include "core/models/moe_mlp.h"

#include <fmt/core.h>

#include "core/models/router_record.h"
#include "core/ops/grouped_linear.h"
#include "core/ops/linear.h"
#include "core/ops/moe_permute.h"
#include "core/ops/swiglu.h"
#include "core/parallel/mappings.h"
#include "core/parallel/moves.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; e experts, k choices of a token; t tokens, s b of them.

using at::Tensor;

MoeMlp::MoeMlp(const LayerContext& context, int64_t number) : context_(context), number_(number) {
  const std::string layer = fmt::format("model.layers.{}.", number);
  norm_ = find_norm(context, number, context.config.norms.before_mlp);
  router_ = context.find(layer + "mlp.router.weight");
  gate_up_ = context.find(layer + "mlp.experts.gate_up_proj.weight");
  down_ = context.find(layer + "mlp.experts.down_proj.weight");
  shared_gate_ = context.find(layer + "mlp.shared_expert_gate.weight");
  if (context.config.experts.shared_intermediate_size > 0) shared_.emplace(context, layer + "mlp.shared_expert.");
}

Tensor MoeMlp::forward(const Tensor& x_pbh, const SharedInputs& inputs) const {
  return recompute_if(recomputes_module(context_.recompute, "mlp"), context_, x_pbh,
                      [this, inputs](const Tensor& input_pbh) { return whole(input_pbh, inputs); });
}

Tensor MoeMlp::whole(const Tensor& x_pbh, const SharedInputs& inputs) const {
  const Tensor normed_pbh = normed(x_pbh, norm_, context_);
  const Tensor chosen_pbh = chosen_experts(normed_pbh, route(normed_pbh, inputs));
  return shared_ ? chosen_pbh.add(shared_expert(normed_pbh)) : chosen_pbh;
}

Routing MoeMlp::route(const Tensor& normed_pbh, const SharedInputs& inputs) const {
  const ExpertConfig& experts = context_.config.experts;
  const Tensor logits_pbe = concord::linear(normed_pbh, router_->used(), {}, router_->grad_sink());
  Routing routing = route_tokens(
      logits_pbe, {.top_k = experts.num_experts_per_tok, .pre_softmax = true, .normalise = experts.norm_topk_prob});
  if (inputs->router) {
    routing.weights = with_router_losses(logits_pbe, routing, number_, context_, inputs->router);
  }
  if (!experts.wide_weights) routing.weights = routing.weights.to(normed_pbh.scalar_type());
  return routing;
}

Tensor MoeMlp::chosen_experts(const Tensor& normed_pbh, const Routing& routing) const {
  ProcessGroup& tp = *context_.tp;
  const bool split = context_.sequence_parallel;
  // A rank's share of the gradient of tokens and weights is that of its part of the experts.
  const auto into = [&](const Tensor& x) { return split ? gather_into_region(x, tp, 0) : copy_to_region(x, tp); };
  const Tensor x_sbh = into(normed_pbh), weights_sbk = into(routing.weights);
  const Tensor experts_sbk = split ? gather(routing.experts, tp, 0).take() : routing.experts;
  const ExpertOrder order = order_by_expert(experts_sbk.flatten(0, 1), context_.config.experts.num_experts);
  const Tensor rows = run_experts(moe_permute(x_sbh.flatten(0, 1), order), order.ends);
  const Tensor partial_sbh = moe_combine(rows, weights_sbk.flatten(0, 1), order).view(x_sbh.sizes());
  return split ? reduce_scatter_to_region(partial_sbh, tp, 0) : reduce_from_region(partial_sbh, tp);
}

Tensor MoeMlp::run_experts(const Tensor& rows, const Tensor& ends) const {
  const Tensor both = grouped_linear(rows, gate_up_->used(), ends, gate_up_->grad_sink());
  return grouped_linear(swiglu(both), down_->used(), ends, down_->grad_sink());
}

Tensor MoeMlp::shared_expert(const Tensor& normed_pbh) const {
  const Tensor y_pbh = shared_->down(shared_->gate_up(normed_pbh));
  if (shared_gate_ == nullptr) return y_pbh;
  const Tensor gate_pb1 = concord::linear(normed_pbh, shared_gate_->used(), {}, shared_gate_->grad_sink());
  return y_pbh.mul(gate_pb1.sigmoid());
}

}  // namespace concord
