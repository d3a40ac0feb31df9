// OLMo 3: OLMo 2 with windows on three of four layers, which have a rope without scaling.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_olmo3(const ConfigReader& read, ModelConfig& model) {
  read_olmo(read, model);
  read_alternating_windows(read, model, 4096, 4);
}

}  // namespace

extern const Family kOlmo3;
const Family kOlmo3{.model_type = "olmo3",
                    .architecture = "Olmo3ForCausalLM",
                    .default_key_value_heads = 0,
                    .default_head_dim = 0,
                    .describe = &describe_olmo3,
                    .default_rope_theta = 5e5,
                    .default_window_rope_theta = 5e5};

}  // namespace concord
