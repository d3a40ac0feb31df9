#include "trainer/report/flops.h"

namespace concord {
namespace {

// A multiply-add counts as two; the input gradient and the weight gradient each cost as much as the forward pass.
constexpr double kTrainingPerProduct = 2 * 3;
constexpr double kFrozenPerProduct = 2 * 2;  // no weight gradient

double real(int64_t value) { return static_cast<double>(value); }

// Returns the weights of attention that multiply a token.
double attention_weights(const TransformerShape& shape) {
  const double hidden = real(shape.hidden_size), heads = real(shape.num_attention_heads);
  const double query = heads * real(shape.head_dim);
  if (shape.kv_lora_rank == 0) {
    const double columns = shape.attention_gate ? 2 * query : query;
    return hidden * (columns + 2 * real(shape.num_key_value_heads * shape.head_dim)) + query * hidden;
  }
  const double rank = real(shape.q_lora_rank), value = heads * real(shape.v_head_dim);
  const double of_queries = rank > 0 ? rank * (hidden + query) : hidden * query;
  const double latent = real(shape.kv_lora_rank), shared = real(shape.qk_rope_head_dim);
  const double of_keys = hidden * (latent + shared) + latent * (query - heads * shared + value);
  return of_queries + of_keys + value * hidden;
}

// Like attention_weights(), for a gated delta net.
double delta_weights(const TransformerShape& shape) {
  const double hidden = real(shape.hidden_size), heads = real(shape.linear_value_heads);
  const double keys = real(shape.linear_key_heads * shape.linear_key_dim),
               values = heads * real(shape.linear_value_dim);
  return hidden * (2 * keys + 2 * values + 2 * heads) + real(shape.linear_conv_taps) * (2 * keys + values) +
         values * hidden;
}
// Returns the products of each token with the state: Megatron counts k k^T, v k^T, the remaining state, and the
// query's.
double state_products(const TransformerShape& shape) {
  return 4 * real(shape.linear_value_heads * shape.linear_value_dim * shape.linear_value_dim);
}

}  // namespace

double training_flops(const TransformerShape& shape, double tokens, double squared_lengths) {
  const double hidden = real(shape.hidden_size);
  const double query = real(shape.num_attention_heads * shape.head_dim);
  const double value = shape.kv_lora_rank > 0 ? real(shape.num_attention_heads * shape.v_head_dim) : query;
  const double products = shape.gated ? 3 : 2;
  const double dense_layers = real(shape.num_layers - shape.num_moe_layers);
  const double dense = products * hidden * real(shape.intermediate_size);
  const double experts =
      products * hidden *
      real(shape.moe_intermediate_size * shape.experts_per_token + shape.shared_expert_intermediate_size);
  const double linear = real(shape.num_linear_layers), attending = real(shape.num_layers) - linear;
  const double weights_of_a_token = attending * attention_weights(shape) + linear * delta_weights(shape) +
                                    dense_layers * dense + real(shape.num_moe_layers) * experts +
                                    hidden * real(shape.vocab_size);
  // Attention scores and their use: products of |query| and |value| columns per pair of positions, half of which are
  // masked.
  const double pairs = squared_lengths / 2;
  const double per_weight = shape.frozen ? kFrozenPerProduct : kTrainingPerProduct;
  return per_weight * tokens * weights_of_a_token +
         kTrainingPerProduct * (pairs * (query + value) * attending + tokens * linear * state_products(shape));
}

double training_flops(const TransformerShape& shape, double tokens) {
  return training_flops(shape, tokens, tokens * real(shape.seq_length));
}

double tower_flops(const TowerShape& shape, double patches, double squared_patches) {
  constexpr double kForward = 2;
  const double hidden = real(shape.hidden_size), depth = real(shape.depth), full = real(shape.full_blocks);
  const double blocks = depth * (4 * hidden + (shape.gated ? 3 : 2) * real(shape.intermediate_size)) * hidden;
  const double merged = hidden * real(shape.merged_patches);
  const double merger = shape.depth == 0 ? 0 : (merged + real(shape.out_size)) * hidden;  // weights per patch
  const double weights = blocks + hidden * real(shape.pixels) + real(shape.mergers - 1) * merger;
  const double pairs = full * squared_patches + (depth - full) * patches * real(shape.window);
  const double per_product = shape.frozen ? kForward : kTrainingPerProduct;
  const double frozen_merger = shape.frozen ? kForward : kFrozenPerProduct;
  return per_product * (patches * weights + 2 * hidden * pairs) +
         (shape.merger_frozen ? frozen_merger : kTrainingPerProduct) * patches * merger;
}

double model_flops_utilisation(double flops, double seconds, double peak_flops, int64_t devices) {
  return flops / (seconds * peak_flops * real(devices));
}

}  // namespace concord
