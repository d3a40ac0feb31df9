#include "core/models/layers/latent_heads.h"

#include <ATen/ops/cat.h>

#include "core/parallel/mappings.h"

namespace concord {

// Shapes in names: p, s, b, h as in layer_context.h; q this rank's heads, n the size of a query or key head, r its part
// with rope, v the size of a value head, c the columns of several parts side by side.

using at::Tensor;

namespace {

constexpr double kLatentEps = 1e-6;  // epsilon of the norms of latents

}  // namespace

LatentHeads::LatentHeads(const LayerContext& context, const std::string& name, const Parameter* norm)
    : context_(context),
      sizes_(context.config.latent),
      name_(name),
      heads_(context.config.num_attention_heads / context.tp->size()),
      norm_(norm),
      down_(context.find(name + "qkv_a_proj.weight")),
      down_bias_(context.find(name + "qkv_a_proj.bias")),
      q_norm_(context.find(name + "q_a_layernorm.weight")),
      q_(context.find(name + (q_norm_ != nullptr ? "q_b_proj.weight" : "q_proj.weight"))),
      kv_norm_(context.find(name + "kv_a_layernorm.weight")),
      kv_(context.find(name + "kv_b_proj.weight")) {
  std::vector<LayerAdapter::Module> latents;
  if (q_norm_ != nullptr) latents.push_back({name + "q_a_proj", sizes_.q_lora_rank});
  latents.push_back({name + "kv_a_proj_with_mqa", sizes_.compressed()});
  down_adapter_ = {context, name + "qkv_a_proj", latents, context.sequence_parallel};
  const std::string q_name = name + (q_norm_ != nullptr ? "q_b_proj" : "q_proj");
  q_adapter_ = {context, q_name, {{q_name, q_->value.size(0)}}, context.sequence_parallel};
  kv_adapter_ = {context, name + "kv_b_proj", {{name + "kv_b_proj", kv_->value.size(0)}}, context.sequence_parallel};
}

ParallelLinearOptions LatentHeads::options(const std::string& layer) const {
  return {.name = name_ + layer, .sequence_parallel = context_.sequence_parallel};
}

std::vector<Tensor> LatentHeads::project(const Tensor& normed_pbh) const {
  const Tensor latents_pbc = down_adapter_.whole(normed_pbh, *down_, down_bias_);
  if (q_norm_ != nullptr) return {latents_pbc};
  return {latents_pbc, q_adapter_.column(normed_pbh, *q_, nullptr, options("q_proj"))};
}

Tensor LatentHeads::normed_latent(const Tensor& latent, const Parameter* norm) const {
  return rms_norm(latent, norm->used(), kLatentEps);
}

// -> sbqn
Tensor LatentHeads::queries(const std::vector<Tensor>& projected) const {
  if (q_norm_ == nullptr) return projected[1].unflatten(-1, {heads_, -1});
  const Tensor normed_pbc = normed_latent(projected[0].narrow(-1, 0, sizes_.q_lora_rank), q_norm_);
  return q_adapter_.column(normed_pbc, *q_, nullptr, options("q_b_proj")).unflatten(-1, {heads_, -1});
}

// Each rank's heads have it whole, and their shares of its gradient add up. -> sbqr
Tensor LatentHeads::shared_key(const Tensor& part_pbr, const LayerInputs& inputs) const {
  const Tensor part_sbr = context_.sequence_parallel ? gather_into_region(part_pbr, *context_.tp, 0)
                                                     : copy_to_region(part_pbr, *context_.tp);
  const Tensor turned_sb1r = rotated(part_sbr.unsqueeze(-2), {inputs.cos, inputs.sin}, context_);
  return turned_sb1r.expand({turned_sb1r.size(0), turned_sb1r.size(1), heads_, turned_sb1r.size(3)});
}

HeadsOfSum LatentHeads::heads_of(const Residual& stream, const LayerInputs& inputs) const {
  HeadsOfSum made;
  const NormedSum input = normed(stream, norm_, context_);
  made.sum_pbh = input.sum;
  const std::vector<Tensor> projected = project(input.normed);
  recompute_norm(input, norm_, context_, projected);
  const int64_t plain = sizes_.qk_nope_head_dim, turned = sizes_.qk_rope_head_dim;
  const Tensor q_sbqn = queries(projected);
  const Tensor q_sbqr = rotated(q_sbqn.narrow(-1, plain, turned), {inputs.cos, inputs.sin}, context_);
  const Tensor compressed_pbc = projected[0].narrow(-1, sizes_.q_lora_rank, sizes_.compressed());
  const Tensor latent_pbc = normed_latent(compressed_pbc.narrow(-1, 0, sizes_.kv_lora_rank), kv_norm_);
  const Tensor kv_sbqc =
      kv_adapter_.column(latent_pbc, *kv_, nullptr, options("kv_b_proj")).unflatten(-1, {heads_, -1});
  const Tensor k_sbqr = shared_key(compressed_pbc.narrow(-1, sizes_.kv_lora_rank, turned), inputs);
  made.heads = {at::cat({q_sbqn.narrow(-1, 0, plain), q_sbqr}, -1), at::cat({kv_sbqc.narrow(-1, 0, plain), k_sbqr}, -1),
                kv_sbqc.narrow(-1, plain, sizes_.v_head_dim).contiguous()};  // a view would keep all of kv in memory
  return made;
}

}  // namespace concord
