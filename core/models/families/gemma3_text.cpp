// Gemma 3, text models: Gemma 2 with norms of q and k, no caps, and a different rope on layers with a window, which are
// five of six. Multimodal models (gemma3) are read and saved as their text model.
#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_gemma3_text(const ConfigReader& read, ModelConfig& model) {
  // transformers reads attn_logit_softcapping here, and does not use it.
  read_gemma(read, model, {.score_cap = 0, .logit_cap = 0, .pattern = 6});
  model.qk_norm = true;
}

}  // namespace

extern const Family kGemma3Text;
const Family kGemma3Text{.model_type = "gemma3_text",
                         .architecture = "Gemma3ForCausalLM",
                         .default_key_value_heads = 4,
                         .default_head_dim = 256,
                         .describe = &describe_gemma3_text,
                         .default_rope_theta = 1e6,
                         .default_window_rope_theta = 1e4,
                         .activation_key = "hidden_activation",
                         .activation = "gelu_pytorch_tanh",
                         .whole_model_type = "gemma3",
                         .whole_architecture = "Gemma3ForConditionalGeneration",
                         .text_defaults = R"({"vocab_size": 262208, "num_attention_heads": 8, "hidden_size": 2304,
                             "intermediate_size": 9216, "num_hidden_layers": 26, "max_position_embeddings": 131072})",
                         .scoring_architecture = "Gemma3TextForSequenceClassification"};

}  // namespace concord
