// SmolLM 3: Llama whose every fourth layer does not rotate its queries and keys.
#include <fmt/core.h>

#include "core/models/families/family.h"

namespace concord {
namespace {

std::vector<bool> rotated_layers(const ConfigReader& read, const ModelConfig& model) {
  const auto layers = static_cast<size_t>(model.num_hidden_layers);
  const int64_t interval = read.integer("no_rope_layer_interval", {1, int64_t{1} << 16}, 4);
  const std::vector<int64_t> listed = read.integers("no_rope_layers", {0, 1});  // 1: rotated, whatever its name says
  if (read.has("no_rope_layers") && listed.size() < layers) {
    read.refuse("no_rope_layers", fmt::format("has {} entries, but needs one for each of the {} of num_hidden_layers",
                                              listed.size(), layers));
  }
  std::vector<bool> rotated(layers);
  for (size_t i = 0; i < layers; ++i) {
    rotated[i] = listed.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : listed[i] == 1;
  }
  return rotated;
}

void describe_smollm3(const ConfigReader& read, ModelConfig& model) {
  read_attention_bias(read, model);
  model.mlp_bias = read.flag("mlp_bias", false);
  model.tie_word_embeddings = read.flag("tie_word_embeddings", true);
  model.rotated = rotated_layers(read, model);
  if (!read.has("sliding_window")) return;
  read_qwen_windows(read, model, [&](int64_t layer, int64_t) { return !model.rotated[static_cast<size_t>(layer)]; });
}

}  // namespace

extern const Family kSmolLm3;
const Family kSmolLm3{"smollm3", "SmolLM3ForCausalLM", 4, 0, &describe_smollm3, 2e6};

}  // namespace concord
