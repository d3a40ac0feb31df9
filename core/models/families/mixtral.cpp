// Mixtral: Mistral with experts in all layers, each of intermediate_size, under names of their own.
#include <algorithm>

#include "core/models/families/family.h"

namespace concord {

void read_mixtral_names(ModelConfig& model) {
  ExpertConfig& experts = model.experts;
  experts.intermediate_size = model.intermediate_size;
  experts.norm_topk_prob = true;
  experts.wide_weights = true;
  experts.router = "block_sparse_moe.gate.weight";
  experts.gate = "block_sparse_moe.experts.{}.w1.weight";
  experts.up = "block_sparse_moe.experts.{}.w3.weight";
  experts.down = "block_sparse_moe.experts.{}.w2.weight";
}

namespace {

void describe_mixtral(const ConfigReader& read, ModelConfig& model) {
  if (read.not_negative("router_jitter_noise", 0) != 0) read.refuse("router_jitter_noise", "must be 0");
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  std::fill(model.windows.begin(), model.windows.end(), read.integer("sliding_window", kWindowRange, 0));
  read_expert_counts(read, model, {.num_experts = 8, .num_experts_per_tok = 2, .moe_intermediate_size = 0});
  read_mixtral_names(model);
}

}  // namespace

extern const Family kMixtral;
const Family kMixtral{"mixtral", "MixtralForCausalLM", 8, 0, &describe_mixtral, 1e6};

}  // namespace concord
