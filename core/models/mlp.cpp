#include "core/models/mlp.h"

#include <fmt/core.h>

#include <utility>

#include "core/ops/swiglu.h"
#include "core/parallel/parallel_linear.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; c this rank's columns of gate and up side by side.

using at::Tensor;

GatedMlp::GatedMlp(const LayerContext& context, std::string name)
    : context_(context),
      name_(std::move(name)),
      gate_up_(context.find(name_ + "gate_up_proj.weight")),
      gate_up_bias_(context.find(name_ + "gate_up_proj.bias")),
      down_(context.find(name_ + "down_proj.weight")),
      down_bias_(context.find(name_ + "down_proj.bias")) {}

Tensor GatedMlp::gate_up(const Tensor& normed_pbh) const {
  const ParallelLinearOptions options{.name = name_ + "gate_up_proj", .sequence_parallel = context_.sequence_parallel};
  return column_parallel_linear(normed_pbh, gate_up_->used(), value_of(gate_up_bias_), *context_.tp, options,
                                gate_up_->grad_sink());
}

Tensor GatedMlp::down(const Tensor& both_sbc) const {
  const ParallelLinearOptions options{.name = name_ + "down_proj", .sequence_parallel = context_.sequence_parallel};
  return row_parallel_linear(swiglu(both_sbc), down_->used(), value_of(down_bias_), *context_.tp, options,
                             down_->grad_sink());
}

Mlp::Mlp(const LayerContext& context, int64_t number)
    : context_(context),
      norm_(find_norm(context, number, context.config.norms.before_mlp)),
      gated_(context, fmt::format("model.layers.{}.mlp.", number)) {}

Tensor Mlp::gate_up(const Tensor& x_pbh) const { return gated_.gate_up(normed(x_pbh, norm_, context_)); }

Tensor Mlp::whole(const Tensor& x_pbh) const {
  return gated_.down(recompute_if(recomputes_module(context_.recompute, "layernorm"), context_, x_pbh,
                                  [this](const Tensor& input_pbh) { return gate_up(input_pbh); }));
}

Tensor Mlp::forward(const Tensor& x_pbh) const {
  return recompute_if(recomputes_module(context_.recompute, "mlp"), context_, x_pbh,
                      [this](const Tensor& input_pbh) { return whole(input_pbh); });
}

}  // namespace concord
