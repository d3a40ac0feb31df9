// Qwen 2 and 2.5: q, k and v have biases, the output has none.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_qwen2(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = true;
  read_qwen_windows(read, model);
}

}  // namespace

extern const Family kQwen2;
const Family kQwen2{"qwen2", "Qwen2ForCausalLM", 32, 0, &describe_qwen2};

}  // namespace concord
