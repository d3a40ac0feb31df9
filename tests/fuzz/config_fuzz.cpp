// Any bytes as config.json: either rejected with a ConfigError, or a model with valid sizes.
#include <cstdint>
#include <optional>

#include "core/base/config_error.h"
#include "core/models/config.h"
#include "tests/fuzz/check.h"

namespace concord::fuzz {
namespace {

constexpr const char* kFile = "fuzz.config.json";

std::optional<ModelConfig> parse(std::string_view text) {
  try {
    return parse_model_config(text, kFile);
  } catch (const ConfigError& error) {
    check_error(error.what(), kFile);
    return std::nullopt;
  }
}

}  // namespace
}  // namespace concord::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  const std::optional<ModelConfig> config = fuzz::parse({reinterpret_cast<const char*>(data), size});
  if (!config) return 0;
  for (const int64_t value :
       {config->vocab_size, config->hidden_size, config->intermediate_size, config->num_hidden_layers,
        config->num_attention_heads, config->num_key_value_heads, config->head_dim})
    fuzz::check(value > 0, "sizes are positive");
  fuzz::check(config->num_attention_heads % config->num_key_value_heads == 0, "heads share keys evenly");
  fuzz::check(config->windows.size() == static_cast<size_t>(config->num_hidden_layers), "every layer has its window");
  const int64_t parameters = parameter_count(*config);
  fuzz::check(parameters > 0 && parameters <= kMaxParameters, "the parameters can be counted");
  return 0;
}
