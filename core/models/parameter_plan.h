// The plan of a stage's parameters, from which their tensors are created: names, shapes, splits and the properties that
// the reduction of gradients needs. Pure values; threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "core/parallel/initialise_weights.h"
#include "core/parallel/shard_spec.h"
#include "core/schedule/layer_layout.h"

namespace concord {

// Members are those of Parameter (core/parallel/parameter.h).
struct ParameterPlan {
  ShardSpec spec;
  WeightInit init;
  int64_t uses = 1;
  bool partial_over_tp = false;
  bool shared_embedding = false;
  bool expert = false;
  bool buffer = false;
  bool frozen = false;
  bool linear = false;
  bool adapter = false;
  std::string norms_of = {};  // initialised with the row norms of this parameter
  int64_t first_row = 0;      // with norms_of: the first such row on this rank
};

struct ParameterPlanOptions {
  int64_t tp = 1;
  int64_t ep = 1;
  int64_t etp = 1;
  bool sequence_parallel = false;
  int64_t make_vocab_size_divisible_by = 128;
  int64_t mlp_tiles = 1;                    // times that a micro-batch uses the parameters of an MLP
  bool borrows_embedding = false;           // a last stage uses that of another chunk of this rank
  const AdapterModules* adapter = nullptr;  // plans its LoRA matrices; freezes other parameters unless it saves them
};

// Plans the parameters of a stage, in the order of use. q, k, v and gate, up are one parameter each, whose pieces have
// HF names, unless they are one tensor in files too (config.fused_qkv, fused_gate_up):
//   model.embed_tokens.weight                         [vocabulary / tp, hidden], rows up to a multiple are padding
//   model.layers.N.input_layernorm.weight
//   model.layers.N.self_attn.qkv_proj.{weight,bias}   pieces q_proj, k_proj, v_proj, each cut by heads
//   model.layers.N.self_attn.{q_norm,k_norm}.weight   cut by heads if one norm spans all heads
//   model.layers.N.self_attn.o_proj.{weight,bias}
// or, for latent attention, with whole latents and their projections split by heads:
//   model.layers.N.self_attn.qkv_a_proj.{weight,bias} pieces q_a_proj, if queries have a latent, kv_a_proj_with_mqa
//   model.layers.N.self_attn.{q_a_layernorm,kv_a_layernorm}.weight
//   model.layers.N.self_attn.{q_b_proj,kv_b_proj,o_proj}.weight  q_proj instead if queries have no latent
// or, for a gated delta net, split by key heads with their value heads:
//   model.layers.N.linear_attn.in_proj.weight         pieces in_proj_qkvz, in_proj_ba
//   model.layers.N.linear_attn.conv1d.weight          [channels, 1, taps], queries, keys and values each cut by heads
//   model.layers.N.linear_attn.{dt_bias,A_log,norm.weight,out_proj.weight}
//   model.layers.N.post_attention_layernorm.weight
//   model.layers.N.mlp.gate_up_proj.{weight,bias}     pieces gate_proj, up_proj
//   model.layers.N.mlp.down_proj.{weight,bias}
// with the norms that config.norms names, as here or before and after attention and MLP; or, in a layer with experts,
// whose weights are stacks with a tensor for each expert in files:
//   model.layers.N.mlp.router.weight                  [experts, hidden]
//   model.layers.N.mlp.router.bias                    [experts], a buffer
//   model.layers.N.mlp.experts.gate_up_proj.weight    [experts / ep, 2 inner / etp, hidden], pieces gate and up
//   model.layers.N.mlp.experts.down_proj.weight       [experts / ep, hidden, inner / etp]
//   model.layers.N.mlp.shared_expert.{gate_up_proj,down_proj}.weight
//   model.layers.N.mlp.shared_expert_gate.weight
// and at the end
//   model.norm.weight
//   model.layers.N.{enorm,hnorm,eh_proj,shared_head.norm}.weight and a layer, for each of config.mtp_layers
//   lm_head.weight                                    or again model.embed_tokens.weight if they are tied,
//   score.weight                                      [1, hidden], of a reward model instead
// With an adapter, for each linear layer with target modules, prefixed with base_model.model.:
//   LAYER.lora_A.weight     [ranks, in], the A of all modules concatenated, pieces MODULE.lora_A.weight
//   MODULE.lora_B.weight    [out, rank], for each module
//   MODULE.lora_magnitude_vector [out], with use_dora
// split like the layer: B if it is split by outputs (qkv, gate and up, lm_head), A if it is split by inputs. Experts
// have stacks of one A and B per expert, in whose names {} is the index of the expert:
//   model.layers.N.mlp.experts.gate_up_proj.lora_A.weight  [experts / ep, ranks, hidden]
//   MODULE.lora_B.weight                                   [experts / ep, inner / etp, rank], of gate and up
//   model.layers.N.mlp.experts.down_proj.lora_A.weight     [experts / ep, rank, inner / etp]
//   MODULE.lora_B.weight                                   [experts / ep, hidden, rank], of down
// or, if the experts are one tensor in files, matrices in peft's form, in which B has the experts of each rank in turn:
//   WRAPPER.lora_A.weight   [experts / ep * rank, in]
//   WRAPPER.lora_B.weight   [out, rank * experts / ep]
// If the vision tower is in use, its parameters come before these (tower_plan.h).
// spec.replicated_over lists tp unless the parameter is split, and dp_cp; for experts edp. Throws ConfigError, with the
// names and numbers, if heads or sizes do not divide by tp, etp or ep.
std::vector<ParameterPlan> plan_parameters(const ModelConfig& config, const StageLayers& stage,
                                           const ParameterPlanOptions& options);

// Returns how often a last stage uses the embedding: each MTP layer embeds tokens, and each output of logits uses it if
// it is tied.
int64_t output_uses_of_embedding(const ModelConfig& config);

// Returns with_targets(|adapter|) for the modules of the model.
AdapterConfig adapter_for(const ModelConfig& config, AdapterConfig adapter);
// Returns the number of elements of all LoRA matrices and of the modules in modules_to_save.
int64_t adapter_parameters(const ModelConfig& config, const AdapterConfig& adapter);

}  // namespace concord
