// What a model computes on at a time: some sequences of tokens, the same on all ranks of a tensor-, context- or
// pipeline-parallel group. The model takes its part of the tokens itself (core/parallel/context_slices.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace concord {

inline constexpr int64_t kIgnoredLabel = -100;

// What random numbers of a micro-batch are addressed by, whichever rank computes it: the step, and where in its global
// batch the rows begin. Packed sequences are one row.
struct BatchDraws {
  int64_t step = 0;
  int64_t first_row = 0;
};

// On the host or on the device. A value; copies share the tensors.
struct MicroBatch {
  at::Tensor input_ids;                  // int64 [B, S]; packed sequences: [1, T]
  at::Tensor labels = {};                // int64 like input_ids: the token that is to follow, kIgnoredLabel for none
  at::Tensor position_ids = {};          // int64 like input_ids; undefined: counted from the sequence's first token
  std::vector<int64_t> cu_seqlens = {};  // boundaries of packed sequences [0, ..., T]; empty: not packed
  // Of a batch of pairs, two rows or packed sequences each: numbers by which they are known, negative ones are padding.
  std::vector<int64_t> pairs = {};
  std::vector<double> margins = {};      // by how much the first of each is to be better; of reward models
  std::optional<BatchDraws> draws = {};  // none: there is no dropout
};

}  // namespace concord
