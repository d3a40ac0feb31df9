// State in types narrower than fp32, the one place that converts it: a piece of the moments at a time is widened to
// fp32, updated by a rule, which knows only fp32, and rounded to nearest (bf16: ties to even; 8-bit codes:
// core/ops/optimizer/block_codes.h). All rules, on the host and on devices, have their narrow state by this, and a
// device needs no kernel for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/optim/optimizer_options.h"
#include "core/optim/update_rule.h"

namespace concord {

c10::ScalarType scalar_type(StateType type);

// Moment |i| of |segment|, which is called |key|, in fp32: itself if it is, else a copy.
at::Tensor wide_moment(const Segment& segment, size_t i, const std::string& key);
// Sets the moment to |wide|, rounded.
void store_moment(const Segment& segment, size_t i, const std::string& key, const at::Tensor& wide);
// Sets the moment and its scales to zeros.
void zero_moment(const at::Tensor& moment, const at::Tensor& scales, const std::string& key);

// Returns a rule that does what |rule| does, for segments whose moments have any type. It keeps scratch memory of 4
// bytes for each narrow moment of up to 2^23 elements per device and 2^20 on the host. Elements that |rule| leaves
// unchanged keep their bits, except those in codes; therefore with |has_codes| it takes no factor.
std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule, bool has_codes);

}  // namespace concord
