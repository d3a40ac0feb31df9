#include "core/models/layers/mlp.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/split_with_sizes.h>
#include <fmt/core.h>

#include <utility>
#include <vector>

#include "core/ops/gated_activation.h"
#include "core/ops/precision/fp8_layer.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; c this rank's columns of gate and up side by side.

using at::Tensor;

GatedMlp::GatedMlp(const LayerContext& context, std::string name)
    : context_(context),
      name_(std::move(name)),
      gate_up_(context.find(name_ + "gate_up_proj.weight")),
      gate_up_bias_(context.find(name_ + "gate_up_proj.bias")),
      down_(context.find(name_ + "down_proj.weight")),
      down_bias_(context.find(name_ + "down_proj.bias")),
      down_adapter_(context, name_ + "down_proj", {{name_ + "down_proj", context.config.hidden_size}}, true),
      gate_up_fp8_(context.add_fp8(gate_up_->spec.name)),
      down_fp8_(context.add_fp8(down_->spec.name)) {
  const int64_t both = gate_up_->spec.dims.front().size / context.tp->size();
  std::vector<LayerAdapter::Module> modules{{name_ + "gate_proj", both / 2}, {name_ + "up_proj", both / 2}};
  if (context.config.fused_gate_up) modules = {{name_ + "gate_up_proj", both}};
  gate_up_adapter_ = {context, name_ + "gate_up_proj", modules, context.sequence_parallel};
}

Tensor GatedMlp::gate_up(const Tensor& normed_pbh) const {
  const ParallelLinearOptions options{
      .name = name_ + "gate_up_proj", .sequence_parallel = context_.sequence_parallel, .fp8 = gate_up_fp8_};
  return gate_up_adapter_.column(normed_pbh, *gate_up_, gate_up_bias_, options);
}

Tensor GatedMlp::down(const Tensor& both_sbc) const {
  const ParallelLinearOptions options{
      .name = name_ + "down_proj", .sequence_parallel = context_.sequence_parallel, .fp8 = down_fp8_};
  const auto activated = [both_sbc, activation = context_.config.activation] {
    return gated_activation(both_sbc, activation);
  };
  const Tensor inner_sbc = activated();
  const Tensor y_pbh = down_adapter_.row(inner_sbc, *down_, down_bias_, options);
  if (recomputes_module(context_.recompute, RecomputeModule::mlp_act)) recompute_values(inner_sbc, {y_pbh}, activated);
  return y_pbh;
}

Tensor GatedMlp::forward(const Tensor& normed_pbh) const {
  const bool plain = gate_up_bias_ == nullptr && down_bias_ == nullptr && context_.tp->size() == 1 &&
                     context_.config.activation.kind == GatedActivation::Kind::silu && gate_up_adapter_.is_off() &&
                     down_adapter_.is_off();
  if (gate_up_fp8_ == nullptr || !plain) return down(gate_up(normed_pbh));
  return fp8_mlp(normed_pbh, {gate_up_->used(), gate_up_->grad_sink(), gate_up_fp8_},
                 {down_->used(), down_->grad_sink(), down_fp8_});
}

Mlp::Mlp(const LayerContext& context, int64_t number)
    : context_(context),
      norm_(find_norm(context, number, context.config.norms.before_mlp)),
      gated_(context, fmt::format("model.layers.{}.mlp.", number)) {}

Tensor Mlp::in_tiles(const Tensor& normed_pbh) const {
  const int64_t positions = normed_pbh.size(0), tiles = context_.mlp_tiles;
  if (tiles == 1) return gated_.forward(normed_pbh);
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < tiles; ++i) sizes.push_back((i + 1) * positions / tiles - i * positions / tiles);
  std::vector<Tensor> outputs;
  // The gradients of split tensors are concatenated; those of narrowed ones would be added, each as large as the whole.
  for (const Tensor& tile_pbh : at::split_with_sizes(normed_pbh, sizes, 0)) {
    outputs.push_back(recompute_if(true, context_, tile_pbh, [this](const Tensor& x) { return gated_.forward(x); }));
  }
  return at::cat(outputs, 0);
}

Residual Mlp::whole(const Residual& stream) const {
  const auto [sum_pbh, y_pbh] =
      of_normed(stream, norm_, context_, [this](const Tensor& normed_pbh) { return in_tiles(normed_pbh); });
  return {sum_pbh, y_pbh};
}

Residual Mlp::forward(const Residual& stream) const {
  if (!recomputes_module(context_.recompute, RecomputeModule::mlp)) return whole(stream);
  const Tensor sum_pbh = stream.sum(context_);
  return {sum_pbh, recompute_if(true, context_, sum_pbh,
                                [this](const Tensor& input_pbh) { return whole({input_pbh}).branch_pbh; })};
}

}  // namespace concord
