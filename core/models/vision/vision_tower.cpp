#include "core/models/vision/vision_tower.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/base/config_error.h"
#include "core/models/vision/patch_layout.h"
#include "core/ops/attention/attention.h"
#include "core/ops/attention/rope.h"
#include "core/ops/attention/rope_angles.h"
#include "core/ops/linear.h"
#include "core/ops/norm/layer_norm.h"
#include "core/ops/norm/rms_norm.h"
#include "core/parallel/recompute.h"

namespace concord {

// Shapes in names: p patches, h the tower's hidden size, c columns of heads side by side.

using at::Tensor;

namespace {

constexpr double kTowerEps = 1e-6;
constexpr double kTowerTheta = 10000;

Tensor indices_on(at::Device device, const std::vector<int64_t>& numbers) {
  return at::tensor(numbers, at::kLong).to(device);
}

}  // namespace

struct VisionTower::Layout {
  std::vector<int64_t> frames;   // boundaries of the segments that attend to each other
  std::vector<int64_t> windows;  // in blocks with windows
  Tensor cos, sin;               // [p, head size / 2]
  Tensor order;                  // merged tokens, window by window; undefined: as they come
};

VisionTower::VisionTower(const LayerContext& context)
    : context_(context),
      vision_(context.config.vision),
      patch_embed_(find_linear("patch_embed.proj")),
      positions_(context.find(fmt::format("{}pos_embed.weight", kTower))),
      merger_(find_merger("merger.")) {
  const TowerNames names = tower_names(vision_.kind);
  const bool gated = vision_.kind == TowerKind::qwen2_5;
  for (int64_t i = 0; i < vision_.depth; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    const bool is_full = std::ranges::find(vision_.full_blocks, i) != vision_.full_blocks.end();
    blocks_.push_back({.norm1 = find_norm(block + "norm1"),
                       .norm2 = find_norm(block + "norm2"),
                       .qkv = find_linear(block + "attn.qkv"),
                       .proj = find_linear(block + "attn.proj"),
                       .in = find_linear(block + (gated ? "mlp.gate_proj" : names.mlp_in)),
                       .out = find_linear(block + (gated ? "mlp.down_proj" : names.mlp_out)),
                       .up = gated ? find_linear(block + "mlp.up_proj") : Linear{},
                       .windowed = vision_.window_size > 0 && !is_full});
  }
  for (size_t i = 0; i < vision_.deepstack.size(); ++i) {
    deepstack_.push_back(find_merger(fmt::format("deepstack_merger_list.{}.", i)));
  }
}

VisionTower::Norm VisionTower::find_norm(const std::string& name) const {
  return {context_.find(kTower + name + ".weight"), context_.find(kTower + name + ".bias")};
}

VisionTower::Linear VisionTower::find_linear(const std::string& name) const {
  return {context_.find(kTower + name + ".weight"), context_.find(kTower + name + ".bias")};
}

VisionTower::Merger VisionTower::find_merger(const std::string& prefix) const {
  const TowerNames names = tower_names(vision_.kind);
  return {find_norm(prefix + names.merger_norm), find_linear(prefix + names.merger_in),
          find_linear(prefix + names.merger_out)};
}

Tensor VisionTower::apply(const Norm& norm, const Tensor& x) const {
  if (vision_.kind == TowerKind::qwen2_5) return rms_norm(x, norm.weight->used(), kTowerEps);
  return layer_norm(x, norm.weight->used(), norm.bias->used(), kTowerEps);
}

Tensor VisionTower::apply(const Linear& linear, const Tensor& x) {
  return concord::linear(x, linear.weight->used(), value_of(linear.bias), linear.weight->grad_sink());
}

// Deepstack mergers normalize the merged patches, the last merger each patch.
Tensor VisionTower::merge(const Merger& merger, const Tensor& x_ph) const {
  const int64_t merged = vision_.merged_size();
  const bool after = merger.norm.weight->value.size(0) == merged && merged != vision_.hidden_size;
  const Tensor normed = after ? apply(merger.norm, x_ph.view({-1, merged})) : apply(merger.norm, x_ph);
  return apply(merger.out, at::gelu(apply(merger.in, normed.view({-1, merged}))));
}

Tensor VisionTower::mlp(const TowerBlock& block, const Tensor& x_ph) const {
  const Tensor inner = apply(block.in, x_ph);
  switch (vision_.kind) {
    case TowerKind::qwen3: return apply(block.out, at::gelu(inner, "tanh"));
    case TowerKind::qwen2: return apply(block.out, inner * (inner * 1.702).sigmoid());
    case TowerKind::qwen2_5: break;
  }
  return apply(block.out, at::silu(inner) * apply(block.up, x_ph));
}

Tensor VisionTower::run(const TowerBlock& block, const Tensor& x_ph, const Layout& layout) const {
  const int64_t heads = vision_.num_heads;
  const Tensor qkv_pc = apply(block.qkv, apply(block.norm1, x_ph));
  const Heads each = rope_qkv(qkv_pc, layout.cos, layout.sin, heads, heads);
  const Tensor seen =
      attention(each.q, each.k, each.v, {.causal = false}, block.windowed ? layout.windows : layout.frames);
  const Tensor half_ph = x_ph + apply(block.proj, seen.flatten(1));
  return half_ph + mlp(block, apply(block.norm2, half_ph));
}

Tensor VisionTower::embed(const Tensor& pixels, const MediaGrids& grids) const {
  const Tensor weight = patch_embed_.weight->used().flatten(1);
  const Tensor x_ph = concord::linear(pixels.to(weight.scalar_type()), weight, value_of(patch_embed_.bias));
  if (positions_ == nullptr) return x_ph;
  const auto side = std::llround(std::sqrt(static_cast<double>(vision_.num_position_embeddings)));
  const TableTaps taps = table_taps(grids, vision_.tokens.merge, side);
  const Tensor weights = at::tensor(taps.weights, at::kFloat).to(x_ph.device()).view({-1, 4, 1});
  const Tensor rows =
      positions_->used().index_select(0, indices_on(x_ph.device(), taps.rows)).view({-1, 4, vision_.hidden_size});
  return x_ph + (rows * weights).sum(1).to(x_ph.scalar_type());
}

VisionTower::Layout VisionTower::layout_of(const MediaGrids& grids, at::Device device) const {
  const int64_t merge = vision_.tokens.merge, patches = merge * merge;
  const PatchPositions positions = patch_positions(grids, merge);
  const RopeFrequencies frequencies = rope_frequencies({.rope_theta = kTowerTheta, .head_dim = vision_.head_dim() / 2});
  const RopeAngles rows = rope_angles(frequencies, indices_on(device, positions.rows));
  const RopeAngles columns = rope_angles(frequencies, indices_on(device, positions.columns));
  const bool is_double = patch_embed_.weight->value.scalar_type() == at::kDouble;
  const auto wide = [&](const Tensor& x) { return is_double ? x.to(at::kDouble) : x; };
  Layout layout{frame_boundaries(grids),
                {},
                wide(at::cat({rows.cos, columns.cos}, -1)),
                wide(at::cat({rows.sin, columns.sin}, -1)),
                {}};
  if (vision_.window_size == 0) return layout;
  const WindowLayout windows = window_layout(grids, merge, vision_.window_side());
  layout.windows = windows.boundaries;
  layout.order = indices_on(device, windows.order);
  const auto moved = [&](const Tensor& x) {
    return x.view({-1, patches, x.size(-1)}).index_select(0, layout.order).flatten(0, 1);
  };
  layout.cos = moved(layout.cos);
  layout.sin = moved(layout.sin);
  return layout;
}

void VisionTower::check(const Tensor& pixels, const MediaGrids& grids) const {
  int64_t patches = 0;
  check_grids(grids, vision_.tokens.merge);
  for (const MediaGrid& grid : grids) patches += grid.patches();
  if (pixels.dim() == 2 && pixels.is_floating_point() && pixels.size(0) == patches &&
      pixels.size(1) == vision_.pixels()) {
    return;
  }
  throw ConfigError(
      fmt::format("batch: pixel values are {} [{}]; expected floats [{}, {}], a row for each patch of the "
                  "grids",
                  c10::toString(pixels.scalar_type()), fmt::join(pixels.sizes(), ", "), patches, vision_.pixels()));
}

VisionFeatures VisionTower::forward(const Tensor& pixels, const MediaGrids& grids) const {
  check(pixels, grids);
  const at::Device device = patch_embed_.weight->value.device();
  const auto layout = std::make_shared<const Layout>(layout_of(grids, device));
  Tensor x_ph = embed(pixels.to(device), grids);
  const int64_t unit = vision_.tokens.merge * vision_.tokens.merge;
  if (layout->order.defined()) {
    x_ph = x_ph.view({-1, unit, vision_.hidden_size}).index_select(0, layout->order).flatten(0, 1);
  }
  const bool again = context_.recompute.granularity == RecomputeGranularity::full;
  VisionFeatures features;
  features.deepstack.resize(deepstack_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x_ph = recompute_if(again, context_, x_ph,
                        [this, i, layout](const Tensor& input_ph) { return run(blocks_[i], input_ph, *layout); });
    for (size_t j = 0; j < deepstack_.size(); ++j) {
      if (vision_.deepstack[j] == static_cast<int64_t>(i)) features.deepstack[j] = merge(deepstack_[j], x_ph);
    }
  }
  features.tokens = merge(merger_, x_ph);
  if (layout->order.defined()) features.tokens = features.tokens.index_select(0, layout->order.argsort());
  return features;
}

}  // namespace concord
