// Hunyuan 0.5B to 7B (dense): Llama with norms of q and k per head after rope. A rope of type dynamic with an alpha is
// a plain one with another theta (NTK-aware scaling).
#include <cmath>

#include "core/models/families/family.h"

namespace concord {
namespace {

void read_alpha(const ConfigReader& read, ModelConfig& model) {
  RopeSettings& rope = model.rope;
  const ConfigReader settings = read.object(read.has("rope_scaling") ? "rope_scaling" : "rope_parameters");
  if (rope.rope_type != RopeType::dynamic || !settings.has("alpha")) return;
  const auto size = static_cast<double>(rope.head_dim);
  rope.rope_theta *= std::pow(settings.positive("alpha"), size / (size - 2));
  rope.rope_type = RopeType::plain;
}

void describe_hunyuan(const ConfigReader& read, ModelConfig& model) {
  read_attention_bias(read, model);
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  model.qk_norm = model.qk_norm_after_rope = true;
  model.q_norm = "query_layernorm";
  model.k_norm = "key_layernorm";
  if (read.has("rope_scaling") || read.has("rope_parameters")) read_alpha(read, model);
}

}  // namespace

extern const Family kHunyuanV1Dense;
const Family kHunyuanV1Dense{"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", 0, 0, &describe_hunyuan};

}  // namespace concord
