// The angles of rotary position embeddings, with the scalings that models ship with, in the numbers that Hugging Face
// transformers computes (modeling_rope_utils.py): the same operations in the same order in fp32, so the same bits.
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ops/attention/rope_settings.h"

namespace concord {

struct RopeFrequencies {
  at::Tensor inverse;           // [r] fp32, on the cpu: an angle is its position times this
  double attention_factor = 1;  // cosines and sines are multiplied by it
};

// |length| is that of the sequence, the largest position + 1; only "dynamic" uses it, and only beyond
// max_position_embeddings. Throws ConfigError for an unknown kind, listing the known ones, and for a value
// that is missing or invalid.
RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length = 0);

struct RopeAngles {
  at::Tensor cos;
  at::Tensor sin;
};

// For |positions|, integers of any shape: fp32 of that shape and one more dimension, r, on the positions' device.
RopeAngles rope_angles(const RopeFrequencies& frequencies, const at::Tensor& positions);

}  // namespace concord
