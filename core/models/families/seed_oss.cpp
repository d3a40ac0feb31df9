// Seed-OSS: Llama with biases of q, k and v.
#include <fmt/core.h>

#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_seed_oss(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("attention_bias", true);
  model.output_bias = read.flag("attention_out_bias", false);
  model.mlp_bias = read.flag("mlp_bias", false);
  // transformers drops out a tenth unless the file says otherwise.
  model.attention_dropout = read.not_negative("attention_dropout", 0.1);
  if (read.not_negative("residual_dropout", 0.1) != 0) {
    read.refuse(
        "residual_dropout must be 0 (0.1 if it is missing); set it to 0, and hidden_dropout in the arguments to drop "
        "out");
  }
}

}  // namespace

extern const Family kSeedOss;
const Family kSeedOss{"seed_oss", "SeedOssForCausalLM", 8, 128, &describe_seed_oss};

}  // namespace concord
