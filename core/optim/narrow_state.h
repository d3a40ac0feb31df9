// State in types narrower than fp32, the one place that converts it: a piece of the moments at a time is widened to
// fp32, updated by a rule, which knows only fp32, and rounded to nearest (ties to even). All rules, on the host and on
// devices, have their narrow state by this, and a device needs no kernel for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "core/optim/optimizer_options.h"
#include "core/optim/update_rule.h"

namespace concord {

c10::ScalarType scalar_type(StateType type);

// Returns a rule that does what |rule| does, for segments whose moments have any type. It keeps scratch memory of 4
// bytes for each narrow moment of up to 2^23 elements per device and 2^20 on the host. Elements that |rule| leaves
// unchanged keep their bits.
std::unique_ptr<UpdateRule> with_narrow_state(std::unique_ptr<UpdateRule> rule);

}  // namespace concord
