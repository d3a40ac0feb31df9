// State in types narrower than fp32, the one place that converts it: a piece of the moments at a time is widened to
// fp32, updated by a rule, which knows only fp32, and rounded to nearest (bf16: ties to even; 8-bit codes:
// core/ops/optimizer/block_codes.h; fp8: x / scale in e4m3, where the scale of a block is its largest |x|, at least
// 1e-12, divided by 448, as in torchao's OptimStateFp8; fp16: likewise, divided by 65504). Main weights without an fp32
// copy are widened and kept again (core/optim/main_weights.h). All rules, on the host and on devices, have their narrow
// state by this. A device needs no kernel for it, but one that has a kernel of AdamW for narrow state
// (core/ops/optimizer/adamw.h) uses that, except for fp8, fp16, kahan_sum and bf16_stochastic_round.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "core/optim/optimizer_options.h"
#include "core/optim/rules/update_rule.h"

namespace concord {

c10::ScalarType scalar_type(StateType type);
// Whether moments of this type have a scale per block.
inline bool has_scales(c10::ScalarType type) {
  return type == c10::kByte || type == c10::kFloat8_e4m3fn || type == c10::kHalf;
}

// Moment |i| of |segment|, which is called |key|, in fp32: itself if it is, else a copy.
at::Tensor wide_moment(const Segment& segment, size_t i, const std::string& key);
// Sets the moment to |wide|, rounded.
void store_moment(const Segment& segment, size_t i, const std::string& key, const at::Tensor& wide);
// Sets the moment and its scales to zeros.
void zero_moment(const at::Tensor& moment, const at::Tensor& scales, const std::string& key);

// Returns the elements [begin, begin + count) of |segment|; views. Blocks of codes are not split.
Segment part_of(const Segment& segment, int64_t begin, int64_t count);
// Returns parts of a segment without an fp32 copy of its main weights, each with at most 2^23 elements; else the
// segment.
std::vector<Segment> pieces_of(const Segment& segment);

// Returns a rule that does what |rule| does, for segments whose state has any type. It keeps scratch memory of 4 bytes
// for each narrow tensor of up to 2^23 elements per device and 2^20 on the host. Elements that |rule| leaves
// unchanged keep their bits, except those in codes; therefore with codes it takes no factor, except on devices with a
// kernel for narrow state.
std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule, const StatePrecision& precision);

}  // namespace concord
