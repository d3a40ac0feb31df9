// The angles of rotary position embeddings, with the scalings that models use, as computed by Hugging Face transformers
// (modeling_rope_utils.py): the same operations in the same order in fp32, so the same bits. Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ops/attention/rope_settings.h"

namespace concord {

struct RopeFrequencies {
  at::Tensor inverse;           // [r] fp32, on the cpu: inverse frequencies; an angle is a position times this
  double attention_factor = 1;  // factor of cosines and sines
};

// |length| is that of the sequence, the largest position + 1; used only by "dynamic" beyond max_position_embeddings.
// Throws ConfigError with the known kinds for an unknown one, and for a missing or invalid value.
RopeFrequencies rope_frequencies(const RopeSettings& settings, int64_t length = 0);

struct RopeAngles {
  at::Tensor cos;
  at::Tensor sin;
};

// |positions| are integers of any shape. Returns fp32 of that shape and an additional dimension r, on the same device.
RopeAngles rope_angles(const RopeFrequencies& frequencies, const at::Tensor& positions);

// Like rope_angles(), with positions [3, ...] on three axes, one of which each frequency uses (mrope_section). Throws
// ConfigError if there are other numbers of axes, or if sections that are not interleaved do not add up to r.
RopeAngles mrope_angles(const RopeFrequencies& frequencies, const RopeSettings& settings, const at::Tensor& positions);

}  // namespace concord
