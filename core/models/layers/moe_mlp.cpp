#include "core/models/layers/moe_mlp.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "core/models/layers/router_record.h"
#include "core/ops/gated_activation.h"
#include "core/ops/moe/grouped_linear.h"
#include "core/ops/moe/moe_capacity.h"
#include "core/ops/moe/moe_permute.h"
#include "core/ops/visit_type.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/mappings.h"

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

Tensor padded_rows(const Tensor& x, int64_t rows, int64_t padding = 0) {
  return x.size(0) == rows ? x : at::constant_pad_nd(x, {0, 0, 0, rows - x.size(0)}, padding);
}

// Avoids a narrow of all rows: its backward is a copy.
Tensor first_rows(const Tensor& x, int64_t rows) { return x.size(0) == rows ? x : x.narrow(0, 0, rows); }

int64_t largest(int64_t own, ProcessGroup& group, at::Device device) {
  const Tensor number = at::full({1}, own, at::TensorOptions(device).dtype(at::kLong));
  group.all_reduce(number, ReduceOp::kMax).wait();
  return number.item<int64_t>();
}

// [p, b, n] -> [rows, n], where rows beyond p b are |padding|.
Tensor as_rows(const Tensor& x_pbn, int64_t rows, int64_t padding = 0) {
  return padded_rows(x_pbn.flatten(0, 1), rows, padding);
}

// [rows, experts]: 1 for the expert of a row, else 0. As a matrix, so that the sum over the rows of an expert, which is
// the derivative of its bias, is a product: in the same order every time.
Tensor expert_of_row(const Tensor& rows, const Tensor& ends) {
  const Tensor row_n1 = at::arange(rows.size(0), ends.options()).unsqueeze(1);
  const Tensor before_end_ne = row_n1 < ends;
  const Tensor before_begin_ne = at::constant_pad_nd(before_end_ne.narrow(1, 0, ends.size(0) - 1), {1, 0}, 0);
  return before_end_ne.logical_xor(before_begin_ne).to(rows.scalar_type());
}

}  // namespace

MoeMlp::MoeMlp(const LayerContext& context, int64_t number) : context_(context), number_(number) {
  const std::string layer = fmt::format("model.layers.{}.", number);
  norm_ = find_norm(context, number, context.config.norms.before_mlp);
  router_ = context.find(layer + "mlp.router.weight");
  router_bias_ = context.find(layer + "mlp.router.logit_bias");
  bias_ = context.find(layer + "mlp.router.bias");
  const ExpertConfig& experts = context.config.experts;
  const bool whole = experts.has_biases();
  gate_up_ = context.find(layer + (whole ? experts.gate_up : "mlp.experts.gate_up_proj.weight"));
  gate_up_bias_ = whole ? context.find(layer + experts.gate_up + "_bias") : nullptr;
  down_ = context.find(layer + (whole ? experts.down : "mlp.experts.down_proj.weight"));
  down_bias_ = whole ? context.find(layer + experts.down + "_bias") : nullptr;
  shared_gate_ = context.find(layer + "mlp.shared_expert_gate.weight");
  const auto module = [&](const std::string& weight) { return layer + weight.substr(0, weight.rfind('.')); };
  const bool splits = context.sequence_parallel;
  router_adapter_ = {context, layer + "mlp.router", {{module(experts.router), experts.num_experts}}, splits};
  shared_gate_adapter_ = {context, layer + "mlp.shared_expert_gate", {{layer + "mlp.shared_expert_gate", 1}}, splits};
  if (whole) {
    const std::vector<std::string> tensors{layer + experts.gate_up, layer + experts.down};
    gate_up_adapter_ = {context, tensors, 0};
    down_adapter_ = {context, tensors, 1};
  } else {
    const int64_t inner = experts.intermediate_size / context.etp->size();
    gate_up_adapter_ = {
        context, layer + "mlp.experts.gate_up_proj", {{module(experts.gate), inner}, {module(experts.up), inner}}};
    down_adapter_ = {context, layer + "mlp.experts.down_proj", {{module(experts.down), context.config.hidden_size}}};
  }
  if (context.config.experts.shared_intermediate_size > 0)
    shared_.emplace(context, layer + context.config.experts.shared);
  split_tokens_ = context.sequence_parallel || context.etp->ranks() != context.tp->ranks();
  // Ranks of different micro-batches, which may be of different lengths.
  uneven_tokens_ = !is_inside(sharing().ranks(), context.tp_cp->ranks());
}

Residual MoeMlp::forward(const Residual& stream, const SharedInputs& inputs) const {
  if (recomputes_module(context_.recompute, RecomputeModule::mlp)) {
    const auto again = [this, inputs](const Tensor& x_pbh) { return branch(normed(x_pbh, norm_, context_), inputs); };
    const Tensor sum_pbh = stream.sum(context_);
    return {sum_pbh, recompute_if(true, context_, sum_pbh, again)};
  }
  const auto [sum_pbh, y_pbh] =
      of_normed(stream, norm_, context_, [&](const Tensor& normed_pbh) { return branch(normed_pbh, inputs); });
  return {sum_pbh, y_pbh};
}

Tensor MoeMlp::branch(const Tensor& normed_pbh, const SharedInputs& inputs) const {
  const Routing routing = route(normed_pbh, inputs);
  const int64_t tokens = max_tokens_per_rank(normed_pbh, inputs);
  if (!shared_) return chosen_experts(normed_pbh, tokens, routing, {});
  Tensor both_sbc, shared_pbh;
  const bool overlaps = context_.moe.shared_expert_overlap;
  const SharedHalves halves{{[&] { both_sbc = shared_->gate_up(normed_pbh); }, overlaps},
                            {[&] { shared_pbh = shared_output(both_sbc, normed_pbh); }, overlaps}};
  const Tensor chosen_pbh = chosen_experts(normed_pbh, tokens, routing, halves);
  return chosen_pbh.add(shared_pbh);
}

Tensor MoeMlp::router_logits(const Tensor& normed_pbh) const {
  const auto wide = ops::sum_type(normed_pbh.scalar_type());
  const bool is_wide = context_.config.experts.fp32_router;
  return router_adapter_.whole(normed_pbh, *router_, router_bias_, is_wide ? std::optional(wide) : std::nullopt);
}

Routing MoeMlp::route(const Tensor& normed_pbh, const SharedInputs& inputs) const {
  const ExpertConfig& experts = context_.config.experts;
  const Tensor logits_pbe = router_logits(normed_pbh);
  Routing routing = route_tokens(logits_pbe,
                                 {.top_k = experts.num_experts_per_tok,
                                  .pre_softmax = !experts.softmax_after_topk,
                                  .normalise = experts.norm_topk_prob,
                                  .sigmoid = experts.sigmoid_scores,
                                  .scale = experts.routed_scaling_factor,
                                  .groups = experts.n_group,
                                  .top_groups = experts.topk_group},
                                 value_of(bias_));
  if (inputs->router) {
    routing.weights = with_router_losses(logits_pbe, routing, number_, context_, inputs->router);
  }
  if (has_capacity()) drop_choices(&routing, inputs);
  if (!experts.wide_weights) routing.weights = routing.weights.to(normed_pbh.scalar_type());
  return routing;
}

void MoeMlp::drop_choices(Routing* routing, const SharedInputs& inputs) const {
  const int64_t count = context_.config.experts.num_experts, k = context_.config.experts.num_experts_per_tok;
  const int64_t tokens = routing->experts.size(0) * routing->experts.size(1);
  const int64_t capacity = expert_capacity(tokens, k, count, context_.moe.expert_capacity_factor);
  const Tensor kept_pbk = within_capacity(*routing, count, capacity, context_.moe.token_drop_policy);
  if (inputs->router) {
    const Tensor lost = kept_pbk.logical_not().flatten().to(at::kFloat);
    inputs->router->layers[static_cast<size_t>(number_)].dropped =
        at::zeros({count}, lost.options()).scatter_add_(0, routing->experts.flatten(), lost);
  }
  routing->weights = routing->weights * kept_pbk.to(routing->weights.scalar_type());
  routing->experts = routing->experts.masked_fill(kept_pbk.logical_not(), count);
}

// Layers of a micro-batch have the same numbers, which ranks tell each other once.
int64_t MoeMlp::max_tokens_per_rank(const Tensor& normed_pbh, const SharedInputs& inputs) const {
  const int64_t own = normed_pbh.size(0) * normed_pbh.size(1);
  if (!uneven_tokens_) return own;
  if (inputs->max_tokens_per_rank == 0) inputs->max_tokens_per_rank = largest(own, sharing(), normed_pbh.device());
  return inputs->max_tokens_per_rank;
}

int64_t MoeMlp::capacity_per_expert(int64_t tokens) const {
  const int64_t count = context_.config.experts.num_experts, k = context_.config.experts.num_experts_per_tok;
  const int64_t ranks = split_tokens_ ? context_.etp->size() : 1;
  return ranks * expert_capacity(tokens, k, count, context_.moe.expert_capacity_factor);
}

Tensor MoeMlp::chosen_experts(const Tensor& normed_pbh, int64_t rows, const Routing& routing,
                              const SharedHalves& shared) const {
  ProcessGroup& etp = *context_.etp;
  const int64_t own = normed_pbh.size(0) * normed_pbh.size(1);
  // A rank's share of the gradient of tokens and weights is that of its part of the experts.
  const auto into = [&](const Tensor& x_pbn) {
    const Tensor own_rows = as_rows(x_pbn, rows);
    return split_tokens_ ? gather_into_region(own_rows, etp, 0) : copy_to_region(own_rows, etp);
  };
  const Tensor x_th = into(normed_pbh), weights_tk = into(routing.weights);
  const int64_t count = context_.config.experts.num_experts;
  const Tensor own_experts = as_rows(routing.experts, rows, has_capacity() ? count : 0);
  const Tensor experts_tk = split_tokens_ ? gather(own_experts, etp, 0).take() : own_experts;
  // Choices that were dropped are those of one more expert, after all others.
  const ExpertOrder order = order_by_expert(experts_tk, has_capacity() ? count + 1 : count);
  const Tensor results = dispatch_and_combine(moe_permute(x_th, order), order.ends.narrow(0, 0, count),
                                              has_capacity() ? capacity_per_expert(rows) : rows, shared);
  const Tensor partial_th = moe_combine(results, weights_tk, order);
  const Tensor y = split_tokens_ ? reduce_scatter_to_region(partial_th, etp, 0) : reduce_from_region(partial_th, etp);
  return (rows == own ? y : y.narrow(0, 0, own)).view(normed_pbh.sizes());
}

// Without padding the host does not know how many rows experts take. On one rank the last of them then gets what is
// left of the most that they may: rows with weight 0, which change nothing.
Tensor MoeMlp::dispatch_and_combine(const Tensor& rows, const Tensor& ends, int64_t room,
                                    const SharedHalves& shared) const {
  ProcessGroup& ep = *context_.ep;
  if (context_.moe.pad_expert_input_to_capacity) {
    const CapacityPlaces places = capacity_places(ends, rows.size(0), room);
    const MoeDispatch plan = plan_even_dispatch(ends.size(0), room, ep, rows.device());
    return unpad_from_capacity(dispatched(pad_to_capacity(rows, places), plan, shared), places);
  }
  if (ep.size() > 1) {
    const MoeDispatch plan = plan_dispatch(ends, ep);
    const int64_t sent = std::accumulate(plan.sent.begin(), plan.sent.end(), int64_t{0});
    return padded_rows(dispatched(first_rows(rows, sent), plan, shared), rows.size(0));
  }
  if (shared.first.run) shared.first.run();
  Tensor filled = ends;
  int64_t most = rows.size(0);
  if (has_capacity()) {
    most = std::min(most, room * ends.size(0));
    filled = ends.clone();
    filled.narrow(0, ends.size(0) - 1, 1).fill_(most);
  }
  const Tensor results = padded_rows(run_experts(first_rows(rows, most), filled), rows.size(0));
  if (shared.second.run) shared.second.run();
  return results;
}

Tensor MoeMlp::dispatched(const Tensor& rows, const MoeDispatch& plan, const SharedHalves& shared) const {
  ProcessGroup& ep = *context_.ep;
  const Tensor own = dispatch_rows(rows, plan, ep, shared.first);
  return combine_rows(run_experts(own, plan.order.ends), plan, ep, shared.second);
}

// A stack whose inputs come first in files is [experts, in, out].
Tensor MoeMlp::expert_linear(const Tensor& rows, const Parameter& stack, const ExpertAdapter& adapter,
                             const Tensor& ends) const {
  const GradSink* sink = stack.grad_sink();
  if (!context_.config.experts.are_inputs_first()) {
    return adapter.added_to(grouped_linear(rows, stack.used(), ends, sink), rows, ends);
  }
  const Tensor turned = stack.used().transpose(1, 2);
  if (sink == nullptr) return adapter.added_to(grouped_linear(rows, turned, ends), rows, ends);
  GradSink turned_sink = *sink;
  turned_sink.main = sink->main.transpose(1, 2);
  return adapter.added_to(grouped_linear(rows, turned, ends, &turned_sink), rows, ends);
}

Tensor MoeMlp::run_experts(const Tensor& rows, const Tensor& ends) const {
  const GatedActivation& activation = context_.config.activation;
  Tensor both = expert_linear(rows, *gate_up_, gate_up_adapter_, ends), chosen_ne;
  if (gate_up_bias_ != nullptr) {
    chosen_ne = expert_of_row(both, ends);
    both = at::addmm(both, chosen_ne, gate_up_bias_->used());
  }
  const auto activated = [both, activation] { return gated_activation(both, activation); };
  const Tensor inner = activated();
  const Tensor y = expert_linear(inner, *down_, down_adapter_, ends);
  if (recomputes_module(context_.recompute, RecomputeModule::moe_act)) recompute_values(inner, {y}, activated);
  if (gate_up_bias_ == nullptr) return y;
  // What the ranks of etp have is added up, and the bias must be in it once.
  const double share = 1.0 / static_cast<double>(context_.etp->size());
  return at::addmm(y, chosen_ne, down_bias_->used(), 1, share);
}

Tensor MoeMlp::shared_output(const Tensor& both_sbc, const Tensor& normed_pbh) const {
  const Tensor y_pbh = shared_->down(both_sbc);
  if (shared_gate_ == nullptr) return y_pbh;
  const Tensor gate_pb1 = shared_gate_adapter_.whole(normed_pbh, *shared_gate_, nullptr);
  return y_pbh.mul(gate_pb1.sigmoid());
}

}  // namespace concord
