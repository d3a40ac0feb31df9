#include "core/models/moe_mlp.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <fmt/core.h>

#include "core/models/router_record.h"
#include "core/ops/grouped_linear.h"
#include "core/ops/linear.h"
#include "core/ops/moe_permute.h"
#include "core/ops/swiglu.h"
#include "core/ops/visit_type.h"
#include "core/parallel/mappings.h"
#include "core/parallel/moe_dispatch.h"
#include "core/parallel/moves.h"

namespace concord {

// Shapes in names: p, b, h as in layer_context.h; e experts, k choices of a token; t tokens of all ranks of etp.

using at::Tensor;

namespace {

bool is_inside(const RankGroup& inner, const RankGroup& outer) {
  for (int64_t i = 0; i < inner.size(); ++i) {
    if (!outer.index_of(inner[i])) return false;
  }
  return true;
}

int64_t largest(int64_t own, ProcessGroup& group, at::Device device) {
  const Tensor number = at::full({1}, own, at::TensorOptions(device).dtype(at::kLong));
  group.all_reduce(number, ReduceOp::kMax).wait();
  return number.item<int64_t>();
}

// [p, b, n] -> [rows, n], where rows beyond p b are 0.
Tensor as_rows(const Tensor& x_pbn, int64_t rows) {
  const Tensor own = x_pbn.flatten(0, 1);
  return own.size(0) == rows ? own : at::constant_pad_nd(own, {0, 0, 0, rows - own.size(0)});
}

}  // namespace

MoeMlp::MoeMlp(const LayerContext& context, int64_t number) : context_(context), number_(number) {
  const std::string layer = fmt::format("model.layers.{}.", number);
  norm_ = find_norm(context, number, context.config.norms.before_mlp);
  router_ = context.find(layer + "mlp.router.weight");
  bias_ = context.find(layer + "mlp.router.bias");
  gate_up_ = context.find(layer + "mlp.experts.gate_up_proj.weight");
  down_ = context.find(layer + "mlp.experts.down_proj.weight");
  shared_gate_ = context.find(layer + "mlp.shared_expert_gate.weight");
  if (context.config.experts.shared_intermediate_size > 0)
    shared_.emplace(context, layer + context.config.experts.shared);
  split_tokens_ = context.sequence_parallel || context.etp->ranks() != context.tp->ranks();
  // Ranks of different micro-batches, which may be of different lengths.
  uneven_tokens_ = !is_inside(context.etp->ranks(), context.tp->ranks());
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

// 16-bit weights in fp32 are other tensors, so their gradient does not go to the sink, but through autograd.
Tensor MoeMlp::router_logits(const Tensor& normed_pbh) const {
  const auto wide = ops::sum_type(normed_pbh.scalar_type());
  if (!context_.config.experts.wide_router || wide == normed_pbh.scalar_type()) {
    return concord::linear(normed_pbh, router_->used(), {}, router_->grad_sink());
  }
  return at::linear(normed_pbh.to(wide), router_->used().to(wide));
}

Routing MoeMlp::route(const Tensor& normed_pbh, const SharedInputs& inputs) const {
  const ExpertConfig& experts = context_.config.experts;
  const Tensor logits_pbe = router_logits(normed_pbh);
  Routing routing = route_tokens(logits_pbe,
                                 {.top_k = experts.num_experts_per_tok,
                                  .pre_softmax = true,
                                  .normalise = experts.norm_topk_prob,
                                  .sigmoid = experts.sigmoid_scores,
                                  .scale = experts.routed_scaling_factor,
                                  .groups = experts.n_group,
                                  .top_groups = experts.topk_group},
                                 value_of(bias_));
  if (inputs->router) {
    routing.weights = with_router_losses(logits_pbe, routing, number_, context_, inputs->router);
  }
  if (!experts.wide_weights) routing.weights = routing.weights.to(normed_pbh.scalar_type());
  return routing;
}

Tensor MoeMlp::chosen_experts(const Tensor& normed_pbh, const Routing& routing) const {
  ProcessGroup& etp = *context_.etp;
  const int64_t own = normed_pbh.size(0) * normed_pbh.size(1);
  const int64_t rows = uneven_tokens_ ? largest(own, etp, normed_pbh.device()) : own;
  // A rank's share of the gradient of tokens and weights is that of its part of the experts.
  const auto into = [&](const Tensor& x_pbn) {
    const Tensor own_rows = as_rows(x_pbn, rows);
    return split_tokens_ ? gather_into_region(own_rows, etp, 0) : copy_to_region(own_rows, etp);
  };
  const Tensor x_th = into(normed_pbh), weights_tk = into(routing.weights);
  const Tensor own_experts = as_rows(routing.experts, rows);
  const Tensor experts_tk = split_tokens_ ? gather(own_experts, etp, 0).take() : own_experts;
  const ExpertOrder order = order_by_expert(experts_tk, context_.config.experts.num_experts);
  const Tensor results = on_their_ranks(moe_permute(x_th, order), order.ends);
  const Tensor partial_th = moe_combine(results, weights_tk, order);
  const Tensor y = split_tokens_ ? reduce_scatter_to_region(partial_th, etp, 0) : reduce_from_region(partial_th, etp);
  return (rows == own ? y : y.narrow(0, 0, own)).view(normed_pbh.sizes());
}

Tensor MoeMlp::on_their_ranks(const Tensor& rows, const Tensor& ends) const {
  ProcessGroup& ep = *context_.ep;
  if (ep.size() == 1) return run_experts(rows, ends);
  const MoeDispatch plan = plan_dispatch(ends, ep);
  return return_rows(run_experts(dispatch_rows(rows, plan, ep), plan.order.ends), plan, ep);
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
