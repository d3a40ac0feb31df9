// The FLOPs of a training step: Megatron's formula (num_floating_point_operations), as a pure function of the model's
// sizes. Counts only matrix products, a multiply-add as two; backward is twice forward; causal attention is half of the
// square; recomputation is not counted, so that MFU does not reward it.
#pragma once

#include <cstdint>

namespace concord {

struct TransformerShape {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;  // MLP size of dense layers
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  // Multi-head latent attention; kv_lora_rank 0: disabled.
  int64_t q_lora_rank = 0;  // 0: no latent for queries
  int64_t kv_lora_rank = 0;
  int64_t qk_rope_head_dim = 0;  // part of head_dim outside the latent
  int64_t v_head_dim = 0;
  // Gated-delta-net layers among num_layers.
  int64_t num_linear_layers = 0;
  int64_t linear_key_heads = 0, linear_value_heads = 0;
  int64_t linear_key_dim = 0, linear_value_dim = 0;
  int64_t linear_conv_taps = 0;
  bool attention_gate = false;  // the other layers have a gate with the same number of columns as the queries
  int64_t vocab_size = 0;       // Megatron counts the padded size
  int64_t seq_length = 0;       // length of a sample, if lengths are not given
  bool gated = true;            // SwiGLU: three products; false: two
  bool frozen = false;          // no weight gradients: an adapter is trained, whose own products are not counted
  // MoE layers among num_layers.
  int64_t num_moe_layers = 0;
  int64_t moe_intermediate_size = 0;
  int64_t experts_per_token = 0;
  int64_t shared_expert_intermediate_size = 0;  // sum over all shared experts
};

// Returns the FLOPs of forward and backward over |tokens| tokens in sequences whose squared lengths add up to
// |squared_lengths|.
double training_flops(const TransformerShape& shape, double tokens, double squared_lengths);

// Like training_flops() above, for sequences of shape.seq_length.
double training_flops(const TransformerShape& shape, double tokens);

// A vision tower whose patches are merged into tokens (core/models/vision/vision_config.h).
struct TowerShape {
  int64_t depth = 0;        // blocks; 0: there is no tower
  int64_t full_blocks = 0;  // blocks whose attention spans an image; in the others it spans |window|
  int64_t window = 0;       // patches
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  bool gated = false;          // an MLP of three products; false: two
  int64_t pixels = 0;          // of a patch
  int64_t merged_patches = 0;  // that become one token
  int64_t mergers = 0;         // the last one, and those of deepstack
  int64_t out_size = 0;        // hidden size of the text
  bool frozen = false;         // only computed forward
  bool merger_frozen = false;  // the last merger
};

// Returns the FLOPs over |patches| patches of images whose squared numbers of patches add up to |squared_patches|.
double tower_flops(const TowerShape& shape, double patches, double squared_patches);

// Returns the fraction of the devices' peak that was used.
double model_flops_utilisation(double flops, double seconds, double peak_flops, int64_t devices);

}  // namespace concord
