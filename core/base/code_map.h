// The 256 fractions that 8-bit codes stand for: bitsandbytes' dynamic map (Dettmers, "8-bit approximations for
// parallelism in deep learning", 2015). Seven decades, each with twice the fractions of the one below, so that the
// relative error is smallest for the largest values. Needs no libtorch. Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace concord {

inline constexpr int64_t kStateBlock = 256;               // values that share a scale, in the state of optimizers
inline constexpr std::string_view kScaleKey = ".absmax";  // follows the key of a state in codes in that of its scales

// Which fractions there are: positive and negative ones, or none below 0.
enum class CodeMap { dynamic_signed, dynamic_unsigned };

// Returns the map of the optimizer's state |key|: second moments are never negative.
constexpr CodeMap code_map_of(std::string_view key) {
  return key == "exp_avg_sq" ? CodeMap::dynamic_unsigned : CodeMap::dynamic_signed;
}

// Returns the fractions in ascending order, with the bits of torchao's map where libtorch computes without vectors: the
// same on every machine. The last is 1, but no signed one is below -0.993.
const std::array<float, 256>& code_fractions(CodeMap map);
// Returns the code of 0.
constexpr int64_t code_of_zero(CodeMap map) { return map == CodeMap::dynamic_signed ? 127 : 0; }

}  // namespace concord
