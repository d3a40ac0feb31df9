// The angles of rotary position embeddings, with the scalings that models ship with, in the numbers that Hugging Face
// transformers computes (modeling_rope_utils.py): the same operations in the same order in fp32, so the same bits.
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace concord {

// A model's rope settings, named as in its config.json ("rope_parameters", or "rope_scaling" of older files). Values
// that a kind does not use are ignored.
struct RopeSettings {
  std::string rope_type = "default";  // default, linear, dynamic, llama3, yarn
  double rope_theta = 10000;
  int64_t head_dim = 0;
  double partial_rotary_factor = 1;
  int64_t max_position_embeddings = 0;           // dynamic; yarn without a factor
  int64_t original_max_position_embeddings = 0;  // llama3, yarn
  std::optional<double> factor = {};             // linear, dynamic, llama3, yarn
  std::optional<double> low_freq_factor = {};    // llama3
  std::optional<double> high_freq_factor = {};   // llama3
  std::optional<double> attention_factor = {};   // yarn
  std::optional<double> mscale = {};             // yarn
  std::optional<double> mscale_all_dim = {};     // yarn
  double beta_fast = 32;                         // yarn
  double beta_slow = 1;                          // yarn
  bool truncate = true;                          // yarn
};

struct RopeFrequencies {
  at::Tensor inverse;           // [r] fp32, on the cpu: an angle is its position times this
  double attention_factor = 1;  // cosines and sines are multiplied by it
};

// |length| is that of the sequence, the largest position + 1; only "dynamic" looks at it, and only beyond
// max_position_embeddings. Throws ConfigError for a kind that is not known, listing those that are, and for a value
// that is missing or cannot be meant.
RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length = 0);

struct RopeAngles {
  at::Tensor cos;
  at::Tensor sin;
};

// For |positions|, integers of any shape: fp32 of that shape and one more dimension, r, on the positions' device.
RopeAngles rope_angles(const RopeFrequencies& frequencies, const at::Tensor& positions);

}  // namespace concord
