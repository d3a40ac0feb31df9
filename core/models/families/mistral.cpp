// Mistral: no biases, one window for all layers.
#include <algorithm>

#include "core/models/families/family.h"

namespace concord {
namespace {

void describe_mistral(const ConfigReader& read, ModelConfig& model) {
  // null means none; only if the key is missing, it is the value of the first Mistral.
  const int64_t window = read.names("sliding_window") ? 0 : 4096;
  std::fill(model.windows.begin(), model.windows.end(), read.integer("sliding_window", kWindowRange, window));
}

}  // namespace

extern const Family kMistral;
const Family kMistral{"mistral", "MistralForCausalLM", 8, 0, &describe_mistral};

}  // namespace concord
