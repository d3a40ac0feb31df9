// The page docs/what-fits.md: what can be trained on one device, by its memory. Pure; needs no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// The shape of a published model.
struct PublishedModel {
  const char* name;  // on the Hugging Face hub
  const char* model_type;
  const char* architecture;
  int64_t hidden, layers, inner, heads, kv_heads, vocabulary;
  bool is_tied;
};
const std::vector<PublishedModel>& published_models();
std::string config_text(const PublishedModel& model);  // its config.json

// Returns the page. Each row is a command whose memory was planned (memory_fit.h).
std::string what_fits_page();

}  // namespace concord
