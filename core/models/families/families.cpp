#include <fmt/core.h>

#include <array>

#include "core/models/families/family.h"

namespace concord {

extern const Family kLlama;
extern const Family kMistral;
extern const Family kQwen2;
extern const Family kQwen3;

std::span<const Family* const> all_families() {
  static const std::array families{&kLlama, &kMistral, &kQwen2, &kQwen3};
  return families;
}

void read_attention_bias(const ConfigReader& read, ModelConfig& model) {
  model.qkv_bias = read.flag("attention_bias", false);
  model.output_bias = model.qkv_bias;
}

namespace {

// Whether each layer has a sliding window.
std::vector<bool> windowed_layers(const ConfigReader& read, const ModelConfig& model, bool used) {
  const auto layers = static_cast<size_t>(model.num_hidden_layers);
  std::vector<bool> windowed(layers, false);
  const std::vector<std::string> types = read.texts("layer_types");
  if (read.has("layer_types") && types.size() != layers) {
    read.refuse("layer_types", fmt::format("has {} entries, but needs one for each of the {} of num_hidden_layers",
                                           types.size(), layers));
  }
  const int64_t first = read.integer("max_window_layers", {0, int64_t{1} << 40}, 28);
  for (size_t i = 0; i < layers; ++i) {
    if (types.empty()) {
      windowed[i] = used && static_cast<int64_t>(i) >= first;
    } else if (types[i] == "sliding_attention") {
      if (!used) read.refuse("layer_types", "names sliding_attention, which needs use_sliding_window true");
      windowed[i] = true;
    } else if (types[i] != "full_attention") {
      read.refuse("layer_types", fmt::format("names '{}'; supported are full_attention and sliding_attention",
                                             types[i].substr(0, 40)));
    }
  }
  return windowed;
}

}  // namespace

void read_qwen_windows(const ConfigReader& read, ModelConfig& model) {
  const bool none = read.names("sliding_window") && !read.has("sliding_window");  // null
  const bool used = read.flag("use_sliding_window", false) && !none;
  const std::vector<bool> windowed = windowed_layers(read, model, used);
  for (size_t i = 0; i < windowed.size(); ++i) {
    if (windowed[i]) model.windows[i] = read.integer("sliding_window", kWindowRange, 4096);
  }
}

}  // namespace concord
