// Sizes of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024), from config.json: queries, and keys together
// with values, are computed from a small latent vector per token. Needs no libtorch. Pure values; threads: any.
#pragma once

#include <cstdint>

namespace concord {

struct LatentConfig {
  int64_t q_lora_rank = 0;       // 0: queries have no latent
  int64_t kv_lora_rank = 0;      // 0: attention is not latent
  int64_t qk_nope_head_dim = 0;  // size of the part of a query or key head without rope
  int64_t qk_rope_head_dim = 0;  // size of the part with rope; keys have one, shared by all heads, outside the latent
  int64_t v_head_dim = 0;
  bool bias = false;  // of the projections to latents

  bool used() const { return kv_lora_rank > 0; }
  int64_t compressed() const { return kv_lora_rank + qk_rope_head_dim; }  // of keys and values
};

}  // namespace concord
