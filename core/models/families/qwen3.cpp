// Qwen 3: q and k are normalized per head; the head size is independent of the hidden size.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_qwen3(const ConfigReader& read, ModelConfig& model) {
  model.qk_norm = true;
  read_attention_bias(read, model);
  read_qwen_windows(read, model);
}

}  // namespace

extern const Family kQwen3;
const Family kQwen3{"qwen3", "Qwen3ForCausalLM", 32, 128, &describe_qwen3};

}  // namespace concord
