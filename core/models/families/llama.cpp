// Llama 2, 3, 3.1 to 3.3, and any other model of type llama.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_llama(const ConfigReader& read, ModelConfig& model) {
  read_attention_bias(read, model);
  model.mlp_bias = read.flag("mlp_bias", false);
}

}  // namespace

extern const Family kLlama;
const Family kLlama{"llama", "LlamaForCausalLM", 0, 0, &describe_llama};

}  // namespace concord
