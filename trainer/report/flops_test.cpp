#include "trainer/report/flops.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TransformerShape qwen2_5_0_5b() {
  return {.num_layers = 24,
          .hidden_size = 896,
          .intermediate_size = 4864,
          .num_attention_heads = 14,
          .num_key_value_heads = 2,
          .head_dim = 64,
          .vocab_size = 151936,
          .seq_length = 4096};
}

// The form in which Megatron first published it, with hidden^2 factored out and attention halved by its mask.
double closed_form(const TransformerShape& shape, double batch) {
  const double s = static_cast<double>(shape.seq_length);
  const double h = static_cast<double>(shape.hidden_size);
  const double layers = static_cast<double>(shape.num_layers);
  const double heads = static_cast<double>(shape.num_attention_heads);
  const double query_ratio = heads * static_cast<double>(shape.head_dim) / h;
  const double attention = (1 + static_cast<double>(shape.num_key_value_heads) / heads + s / h / 2) * query_ratio;
  const double mlp = 1.5 * static_cast<double>(shape.intermediate_size) / h;
  return 12 * batch * s * layers * h * h * (attention + mlp + static_cast<double>(shape.vocab_size) / (2 * layers * h));
}

TEST(Flops, AreMegatronsClosedForm) {
  const TransformerShape shape = qwen2_5_0_5b();
  EXPECT_NEAR(training_flops(shape, 4 * 4096.0) / closed_form(shape, 4), 1, 1e-12);
  TransformerShape wide = shape;
  wide.head_dim = 128;  // heads wider than hidden_size / num_attention_heads, as in Qwen3
  EXPECT_NEAR(training_flops(wide, 4096.0) / closed_form(wide, 1), 1, 1e-12);
}

// 6 N D with N the weights that multiply: 24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864) + 896 * 151936.
TEST(Flops, OfVeryShortSequencesAreSixForEachWeightAndToken) {
  EXPECT_DOUBLE_EQ(training_flops(qwen2_5_0_5b(), 1000, 0), 6.0 * 1000 * 493'961'216);
}

// The tower of Qwen 2.5 VL 7B has 1176 * 1280 weights in its patch embedding, 32 * (4 * 1280^2 + 3 * 1280 * 3420) in
// blocks, four of which see a whole image and the others 64 patches, and 5120^2 + 5120 * 3584 per four patches in its
// merger.
TEST(Flops, OfATowerAreThoseOfItsPatchesAndOfTheirAttention) {
  TowerShape tower{.depth = 32,
                   .full_blocks = 4,
                   .window = 64,
                   .hidden_size = 1280,
                   .intermediate_size = 3420,
                   .gated = true,
                   .pixels = 1176,
                   .merged_patches = 4,
                   .mergers = 1,
                   .out_size = 3584};
  const double weights = 1'505'280 + 629'964'800, merger = 44'564'480 / 4.0;
  const double pairs = 4 * 1e4 + 28 * 100 * 64.0;
  EXPECT_DOUBLE_EQ(tower_flops(tower, 100, 1e4), 6 * (100 * (weights + merger) + 2 * 1280 * pairs));
  tower.frozen = true;
  EXPECT_DOUBLE_EQ(tower_flops(tower, 100, 1e4), 2 * (100 * weights + 2 * 1280 * pairs) + 6 * 100 * merger);
  tower.merger_frozen = true;
  EXPECT_DOUBLE_EQ(tower_flops(tower, 100, 1e4), 2 * (100 * (weights + merger) + 2 * 1280 * pairs));
  tower.frozen = false;
  EXPECT_DOUBLE_EQ(tower_flops(tower, 100, 1e4), 6 * (100 * weights + 2 * 1280 * pairs) + 4 * 100 * merger);
  EXPECT_EQ(tower_flops({}, 0, 0), 0);
}

TEST(Flops, OfFrozenWeightsAreFourForEachAndThoseOfAttentionStay) {
  TransformerShape frozen = qwen2_5_0_5b();
  frozen.frozen = true;
  EXPECT_DOUBLE_EQ(training_flops(frozen, 1000, 0), 4.0 * 1000 * 493'961'216);
  const double pairs = training_flops(frozen, 1000, 1e6) - training_flops(frozen, 1000, 0);
  EXPECT_NEAR(pairs / (training_flops(qwen2_5_0_5b(), 1000, 1e6) - training_flops(qwen2_5_0_5b(), 1000, 0)), 1, 1e-9);
}

// Six for each weight that multiplies a token: DeepSeek V3's attention has 187'107'328, as transformers counts them, of
// which 2048 are norms. Scores have 192 columns, and their use has 128.
TEST(Flops, OfLatentAttentionAreThoseOfItsWeightsAndOfBothWidths) {
  const TransformerShape shape{.num_layers = 1,
                               .hidden_size = 7168,
                               .num_attention_heads = 128,
                               .num_key_value_heads = 128,
                               .head_dim = 192,
                               .q_lora_rank = 1536,
                               .kv_lora_rank = 512,
                               .qk_rope_head_dim = 64,
                               .v_head_dim = 128};
  EXPECT_DOUBLE_EQ(training_flops(shape, 1000, 0), 6.0 * 1000 * (187'107'328 - 2048));
  EXPECT_DOUBLE_EQ(training_flops(shape, 1000, 1e6) - training_flops(shape, 1000, 0),
                   6.0 * 1e6 / 2 * 128 * (192 + 128));
}

// The layers of Qwen 3 Next: three with linear attention of 33'718'464 weights, as transformers counts them, of which
// 192 are a norm, biases and decays, and one whose attention has 27'263'488, 512 of them norms.
TEST(Flops, OfLinearAttentionAreThoseOfItsWeightsAndItsStates) {
  const TransformerShape shape{.num_layers = 4,
                               .hidden_size = 2048,
                               .num_attention_heads = 16,
                               .num_key_value_heads = 2,
                               .head_dim = 256,
                               .num_linear_layers = 3,
                               .linear_key_heads = 16,
                               .linear_value_heads = 32,
                               .linear_key_dim = 128,
                               .linear_value_dim = 128,
                               .linear_conv_taps = 4,
                               .attention_gate = true};
  const double weights = 3.0 * (33'718'464 - 192) + 27'263'488 - 512, states = 3.0 * 32 * 4 * 128 * 128;
  EXPECT_DOUBLE_EQ(training_flops(shape, 1000, 0), 6.0 * 1000 * (weights + states));
  EXPECT_DOUBLE_EQ(training_flops(shape, 1000, 1e6) - training_flops(shape, 1000, 0), 6.0 * 1e6 / 2 * 16 * 2 * 256);
}

TEST(Flops, OfPackedSequencesCountOnlyPairsWithinOne) {
  const TransformerShape shape = qwen2_5_0_5b();
  const double whole = training_flops(shape, 4096);
  const double halves = training_flops(shape, 4096, 2 * 2048.0 * 2048.0);
  EXPECT_DOUBLE_EQ(whole - halves, 6 * 896.0 * 24 * (4096.0 * 4096 - 2 * 2048.0 * 2048));
}

TEST(Flops, OfExpertsCountThoseATokenMeets) {
  TransformerShape dense = qwen2_5_0_5b();
  TransformerShape sparse = dense;
  sparse.num_moe_layers = 24;
  sparse.moe_intermediate_size = 4864 / 8;
  sparse.experts_per_token = 6;
  sparse.shared_expert_intermediate_size = 4864 / 4;  // together as wide as the dense one
  EXPECT_DOUBLE_EQ(training_flops(sparse, 4096), training_flops(dense, 4096));
  sparse.experts_per_token = 5;
  EXPECT_DOUBLE_EQ(training_flops(dense, 4096) - training_flops(sparse, 4096), 6 * 4096.0 * 24 * 3 * 896 * 608);
}

TEST(Flops, UtilisationIsOverAllDevices) { EXPECT_DOUBLE_EQ(model_flops_utilisation(8e12, 2, 4e12, 2), 0.5); }

}  // namespace
}  // namespace concord
