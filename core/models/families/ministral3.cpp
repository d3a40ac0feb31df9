// Ministral 3: Mistral with YaRN; beyond the length that it was first trained on queries grow with their positions.
#include <algorithm>

#include "core/models/families/family.h"

namespace concord {
namespace {

void read_rope_of_ministral3(const ConfigReader& read, ModelConfig& model) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!read.has(key)) continue;
    model.query_scaling_beta = read.object(key).not_negative("llama_4_scaling_beta");
    return;
  }
  model.query_scaling_beta = 0.1;
  model.rope = {.rope_type = RopeType::yarn,
                .rope_theta = 1e6,
                .head_dim = model.head_dim,
                .max_position_embeddings = model.max_position_embeddings,
                .original_max_position_embeddings = 16384,
                .factor = 16,
                .mscale = 1,
                .mscale_all_dim = 1};
}

void describe_ministral3(const ConfigReader& read, ModelConfig& model) {
  model.rms_norm_eps = read.positive("rms_norm_eps", 1e-5);
  std::fill(model.windows.begin(), model.windows.end(), read.integer("sliding_window", kWindowRange, 0));
  read_rope_of_ministral3(read, model);
}

}  // namespace

extern const Family kMinistral3;
const Family kMinistral3{"ministral3", "Ministral3ForCausalLM", 8, 128, &describe_ministral3};

}  // namespace concord
